"""What the tests of a cluster under trouble share: streams under way, and the texts that they should have."""

from __future__ import annotations

import threading

from luna_cluster import LunaCluster, get_json
from luna_server import MODEL_NAME, LunaServer, wait_until

N_WORKERS = 4
N_STREAMS = 8
N_TOKENS = 64


def body_of(i: int) -> dict:
    sampling = {"temperature": 0} if i % 2 == 0 else {"temperature": 0.9, "seed": 100 + i}
    return {
        "model": MODEL_NAME,
        "prompt": f"Chapter {i}. Once upon a time",
        "max_tokens": N_TOKENS,
        "ignore_eos": True,
        **sampling,
    }


class Streams:
    """All requests at the same time, greedy and seeded ones."""

    def __init__(self, server: LunaServer, prompts: list[str] | None = None, **fields: object):
        """prompts, fields: of each request, in place of its own"""
        bodies = [body_of(i) | fields for i in range(N_STREAMS)]
        for body, prompt in zip(bodies, prompts or []):
            body["prompt"] = prompt
        self.texts = [""] * N_STREAMS
        self.threads = [
            threading.Thread(target=self.run_, args=(server, i, body)) for i, body in enumerate(bodies)
        ]
        for thread in self.threads:
            thread.start()

    @classmethod
    def under_way(cls, server: LunaServer, prompts: list[str] | None = None, **fields: object) -> Streams:
        """Some tokens of them have come."""
        started = server.metric("luna_generation_tokens_total")
        streams = cls(server, prompts, **fields)
        wait_until(
            lambda: server.metric("luna_generation_tokens_total") > started + 5 * N_STREAMS, 60, "some tokens"
        )
        return streams

    def run_(self, server: LunaServer, i: int, body: dict) -> None:
        status, answer = server.post("/v1/completions", body)
        self.texts[i] = answer["choices"][0]["text"] if status == 200 else f"{status}: {answer}"

    def join(self) -> list[str]:
        for thread in self.threads:
            thread.join()
        return self.texts


def lies_on_all(cluster: LunaCluster) -> bool:
    """Whether one copy of the model lies on all workers."""
    _, page = get_json(cluster.server_port, "/admin/cluster")
    return any(len(group) == cluster.n_workers for model in page["models"] for group in model["groups"])


def wait_for_all(cluster: LunaCluster) -> None:
    wait_until(lambda: lies_on_all(cluster), 30, "a model on all workers")
