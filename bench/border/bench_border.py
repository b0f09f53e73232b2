"""What the plugin contract costs a step of one sequence: plan, submit and role beside the step's time."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from luna_server import LunaServer, config_text, wait_until  # noqa: E402

BAR_PERCENT = 1.0


def steps_after(server: LunaServer, last: int) -> list[dict]:
    with urllib.request.urlopen(f"{server.url}/admin/steps", timeout=30) as answer:
        records = [json.loads(line) for line in answer]
    return [record for record in records if record["step"] > last]


def measure(server: LunaServer, options: argparse.Namespace) -> dict[str, float]:
    """Medians in microseconds a step of one row, and the role's time a step."""
    parts: dict[str, list[float]] = {"plan": [], "submit": [], "step": [], "role": []}
    last = 0
    for i in range(options.requests + 1):
        role_s = server.metric("luna_role_run_seconds_total")
        n_events = sum(1 for _ in server.stream(f"{i} " + "word " * options.prompt_tokens, options.output_tokens))
        wait_until(server.is_idle, 30, "nothing runs")
        assert n_events > options.output_tokens / 2, "the stream ended early"
        records = steps_after(server, last)
        last = records[-1]["step"]
        if i == 0:
            continue  # the first request warms up
        # The step before each is of the same request: what lies between them is a step's whole time.
        decoding = [record for record in records[2:] if record["rows"] == record["seqs"] == 1]
        assert len(decoding) >= options.output_tokens - 4
        parts["plan"] += [record["plan_ns"] / 1e3 for record in decoding]
        parts["submit"] += [record["submit_ns"] / 1e3 for record in decoding]
        parts["step"] += [record["since_last_ns"] / 1e3 for record in decoding]
        spent_s = server.metric("luna_role_run_seconds_total") - role_s
        parts["role"].append(spent_s * 1e6 / len(records))
    return {name: statistics.median(values) for name, values in parts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--luna", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=0, help="of the device; 0: all cores")
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--policy", default="static")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "luna.toml"
        text = config_text(options.model.resolve(), n_threads=options.threads, policy=options.policy)
        config.write_text(text, encoding="utf-8")
        server = LunaServer(options.luna, config)
        try:
            medians = measure(server, options)
        finally:
            server.stop()
    border_us = medians["plan"] + medians["submit"] + medians["role"]
    percent = 100 * border_us / medians["step"]
    for name in ("plan", "submit", "role"):
        print(f"{name:7} {medians[name]:8.2f} us  {100 * medians[name] / medians['step']:.3f}%")
    print(f"border  {border_us:8.2f} us  {percent:.3f}% of a step of {medians['step']:.0f} us (bar: {BAR_PERCENT}%)")
    if options.json:
        options.json.write_text(json.dumps(medians | {"percent": percent}, indent=1), encoding="utf-8")
    return 0 if percent <= BAR_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
