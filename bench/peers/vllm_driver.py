"""vLLM's CPU build, driven step by step; runs in vLLM's own environment.

  vllm_driver.py HF_FOLDER SETTINGS   SETTINGS: JSON {"engine": {...}} of vllm.LLM's arguments

The protocol is that of openvino_driver.py.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time

# The engine in this process: its steps can be timed, and its threads are this process's.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
from vllm import LLM, SamplingParams  # noqa: E402

TOKEN_IDS = range(300, 20000)


def measure(llm: LLM, work: dict, rng: random.Random) -> list[list[float]]:
    engine = llm.llm_engine
    sampling = SamplingParams(
        temperature=0.0, max_tokens=work["generated_tokens"], ignore_eos=True, detokenize=False
    )
    prompts = [
        [rng.choice(TOKEN_IDS) for _ in range(work["prompt_tokens"])] for _ in range(work["sequences"])
    ]
    times: dict[str, list[float]] = {str(i): [] for i in range(len(prompts))}
    begin = time.perf_counter()
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), {"prompt_token_ids": prompt}, sampling)
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter() - begin
        for output in outputs:
            taken = times[output.request_id.split("-")[0]]
            taken += [now] * (len(output.outputs[0].token_ids) - len(taken))
    return list(times.values())


def main() -> None:
    # What the engine prints must not mix with the protocol.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.argv[2])
    llm = LLM(model=sys.argv[1], **settings["engine"])
    rng = random.Random(time.time_ns())
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(llm, json.loads(line), rng)), file=answers, flush=True)


if __name__ == "__main__":
    main()
