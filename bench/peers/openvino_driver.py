"""OpenVINO GenAI, driven step by step; runs in OpenVINO's own environment.

  openvino_driver.py MODEL.gguf SETTINGS   SETTINGS: JSON {"scheduler": {...}, "properties": {...}}

The protocol of every driver: a first line out says that it is ready. Then one line of JSON in,
`{"sequences", "prompt_tokens", "generated_tokens"}`, and one out: the list of each sequence's token
times, in seconds since all of them were handed over.
"""

from __future__ import annotations

import json
import random
import sys
import time

import numpy as np
import openvino_genai
from openvino import Tensor

# Ordinary tokens of the model's vocabulary, as in bench_peers.py.
TOKEN_IDS = range(300, 20000)


def open_pipeline(path: str, settings: dict) -> openvino_genai.ContinuousBatchingPipeline:
    scheduler = openvino_genai.SchedulerConfig()
    for name, value in settings["scheduler"].items():
        setattr(scheduler, name, value)
    return openvino_genai.ContinuousBatchingPipeline(path, scheduler, "CPU", settings["properties"])


def measure(pipeline, work: dict, rng: random.Random) -> list[list[float]]:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = work["generated_tokens"]
    config.ignore_eos, config.do_sample = True, False
    prompts = [
        np.array([[rng.choice(TOKEN_IDS) for _ in range(work["prompt_tokens"])]], dtype=np.int64)
        for _ in range(work["sequences"])
    ]
    begin = time.perf_counter()
    handles = [pipeline.add_request(i, Tensor(prompt), config) for i, prompt in enumerate(prompts)]
    times: list[list[float]] = [[] for _ in handles]
    while pipeline.has_non_finished_requests():
        pipeline.step()
        now = time.perf_counter() - begin
        for handle, taken in zip(handles, times):
            while handle.can_read():
                taken += [now] * sum(len(output.generated_ids) for output in handle.read().values())
    return times


def main() -> None:
    pipeline = open_pipeline(sys.argv[1], json.loads(sys.argv[2]))
    rng = random.Random(time.time_ns())  # new prompts in each process: no cache can know them
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(pipeline, json.loads(line), rng)), flush=True)


if __name__ == "__main__":
    main()
