"""Writes the seeds of fuzz_template: the small templates that the tests against jinja2 use.

usage: python3 tests/golden/fuzz/make_template_seeds.py
"""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "integration"))

from template_snippets import FAILING, SNIPPETS  # noqa: E402

for i, source in enumerate(SNIPPETS + FAILING):
    (HERE / "template" / f"{i:03}.jinja").write_text(source, encoding="utf-8", newline="")
