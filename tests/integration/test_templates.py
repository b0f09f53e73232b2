"""`luna template` against jinja2, set up as transformers sets it up for chat templates.

needs: LUNA_BIN, the luna program (or tests/text_driver)
"""
import concurrent.futures
import json
import os
import random
import subprocess

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import pytest
from chat_families import CONVERSATIONS, FAMILIES, TOOLS
from template_snippets import FAILING, GENERATED_FILTERS, SNIPPETS

SEED = int(os.environ.get("LUNA_TEST_SEED", "20240917"))


class Generation(jinja2.ext.Extension):
    """{% generation %}: what the assistant wrote; renders as its body."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def make_environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment


ENVIRONMENT = make_environment()


def by_reference(source, variables):
    """The text, or None where the reference fails."""
    try:
        return ENVIRONMENT.from_string(source).render(**variables)
    except Exception:  # any failure of the reference is a failure of the template
        return None


def by_luna(source, variables, folder):
    """The text, or None and the message where luna refuses."""
    path = os.path.join(folder, "template.jinja")
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(source)
    done = subprocess.run([os.environ["LUNA_BIN"], "template", "--template", path],
                          input=json.dumps(variables).encode(), capture_output=True, timeout=120)
    assert done.returncode in (0, 1), (done.returncode, done.stderr[-500:])
    if done.returncode == 0:
        return done.stdout.decode("utf-8"), ""
    assert done.stderr, "refused without a word"
    return None, done.stderr.decode("utf-8", "replace")


def check(source, variables, folder):
    expected = by_reference(source, variables)
    actual, message = by_luna(source, variables, folder)
    assert actual == expected, message or source


def variables_of(conversation, tools, prompt):
    variables = {"messages": conversation, "add_generation_prompt": prompt, "bos_token": "<s>", "eos_token": "</s>"}
    if tools is not None:
        variables["tools"] = tools
    return variables


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_s_template_renders_as_the_reference(family, tmp_path):
    n_rendered = 0
    for conversation in CONVERSATIONS:
        for tools in (None, TOOLS, []):
            for prompt in (True, False):
                variables = variables_of(conversation, tools, prompt)
                n_rendered += by_reference(FAMILIES[family], variables) is not None
                check(FAMILIES[family], variables, str(tmp_path))
    assert n_rendered >= 6, "hardly any conversation suits the template: the test shows nothing"


@pytest.mark.parametrize("i", range(len(SNIPPETS)))
def test_a_snippet_renders_as_the_reference(i, tmp_path):
    source = SNIPPETS[i]
    variables = variables_of(CONVERSATIONS[3], TOOLS, True) | {
        "n": 5, "x": -2.5, "word": "Straße Éa ǆ", "items": [3, 1, 2], "empty": [], "nothing": None, "flag": True,
        "nested": {"b": {"c": [1, {"d": "e"}]}, "items": "shadowed"}, "lines": "one\n\n two\r\nthree\n"}
    assert by_reference(source, variables) is not None, "the reference refuses the snippet"
    check(source, variables, str(tmp_path))


@pytest.mark.parametrize("i", range(len(FAILING)))
def test_what_the_reference_refuses_is_refused(i, tmp_path):
    variables = variables_of(CONVERSATIONS[0], None, True)
    assert by_reference(FAILING[i], variables) is None, "the reference renders the snippet"
    actual, message = by_luna(FAILING[i], variables, str(tmp_path))
    assert actual is None, FAILING[i]
    assert "template:" in message, message


def test_every_filter_on_every_kind_of_value_does_as_the_reference(tmp_path):
    values = ["''", "'a b'", "'Hello World'", "'ÄÖ ß'", "0", "7", "-3", "2.5", "1e20", "true", "none", "[]", "[3, 1, 2]",
              "['b', 'A', 'c']", "{}", "{'k': 'v', 'a': 1}", "missing", "(1, 2)", "'12'", "' 3.7 '", "range(3)",
              "[{'n': 1}, {'n': 2}]"]
    # The reference cuts and counts lists as if they were texts, and has integers of any size.
    odd = [("truncate", ("[", "{", "(", "range")), ("int", ("1e20",))]
    sources = [f"{{{{ {v} | {f} }}}}" for v in values for f in GENERATED_FILTERS
               if not any(f.startswith(name) and v.startswith(kinds) for name, kinds in odd)]
    jobs = []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for i, source in enumerate(sources):
            expected = by_reference(source, {"messages": []})
            if expected is not None and " object at 0x" in expected:
                continue
            folder = tmp_path / str(i)
            folder.mkdir()
            jobs.append((source, expected, pool.submit(by_luna, source, {"messages": []}, str(folder))))
        wrong = [(s, e, j.result()) for s, e, j in jobs if j.result()[0] != e]
    assert not wrong, f"{len(wrong)} of {len(jobs)} differ: {wrong[:10]}"


def test_white_space_control_does_as_the_reference_for_random_templates(tmp_path):
    rng = random.Random(SEED)
    print(f"LUNA_TEST_SEED={SEED}")
    pieces = ["\n", " ", "\t", "a", "b\n", "  ", "\r\n", "{{ 1 }}", "{{- 2 }}", "{{ 3 -}}", "{% if true %}", "{%- if true %}",
              "{% if true -%}", "{%+ if true %}", "{% if true +%}", "{# c #}", "{#- c #}", "{# c -#}", "{# c +#}", "{#+ c #}",
              "{% raw %}{{ x }} {% endraw %}", "{%- raw -%} {% {%- endraw -%}", "{% set z = 1 %}", "{%- set z = 1 -%}"]
    sources = []
    for _ in range(400):
        made = [rng.choice(pieces) for _ in range(rng.randint(1, 14))]
        n_open = sum("if true" in p for p in made)
        ends = ["{% endif %}", "{%- endif %}", "{% endif -%}", "{%- endif -%}\n"]
        sources.append("".join(made) + "".join(rng.choice(["", " ", "\n"]) + rng.choice(ends) for _ in range(n_open)))
    jobs = []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for i, source in enumerate(sources):
            folder = tmp_path / str(i)
            folder.mkdir()
            jobs.append((source, pool.submit(by_luna, source, {"messages": []}, str(folder))))
        wrong = [(s, by_reference(s, {}), j.result()) for s, j in jobs if j.result()[0] != by_reference(s, {})]
    assert not wrong, f"{len(wrong)} of {len(sources)} differ: {wrong[:5]}"


def test_letter_case_is_the_reference_s_for_every_character(tmp_path):
    """Characters of the reference's Unicode version; newer ones may differ by version alone."""
    import unicodedata
    became_lower_case = (0x10FC, 0xA7F2, 0xA7F3, 0xA7F4, 0xAB69)  # in Unicode 15
    points = [c for c in range(0x80, 0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")
              and c not in became_lower_case]
    text = [" ".join(chr(c) + "x" for c in points[i:i + 20000]) for i in range(0, len(points), 20000)]
    source = "{% for t in texts %}{{ t | upper }}{{ t | lower }}{{ t.title() }}{{ t | capitalize }}{{ [t] }}{% endfor %}"
    check(source, {"messages": [], "texts": text}, str(tmp_path))
