"""The command line: help that teaches, wrong use that is explained, broken input that is refused."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from luna_server import config_text

COMMANDS = ["serve", "chat", "generate", "inspect", "quantize", "split", "verify", "tokenize", "template", "plugins", "check",
            "pull", "version"]
CHAT_TIMEOUT_S = 60


def test_help_names_every_command(run_luna: Callable) -> None:
    done = run_luna("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run_luna: Callable, command: str) -> None:
    done = run_luna(command, "--help")
    assert done.returncode == 0 and len(done.stdout.splitlines()) >= 3


def test_version_is_one_line(run_luna: Callable) -> None:
    done = run_luna("version")
    assert done.returncode == 0 and done.stdout.startswith("luna ") and done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["no-such-command"], ["serve", "--no-such-flag"], ["serve", "--port", "99999"],
     ["serve", "--port", "http"], ["generate", "--max-tokens", "-1", "hi"], ["inspect"], ["check"],
     ["plugins", "frobnicate"]],
)
def test_wrong_use_exits_with_2_and_explains(run_luna: Callable, arguments: list[str]) -> None:
    done = run_luna(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip() and not done.stdout


def test_generate_takes_the_prompt_from_argument_or_standard_input(
    run_luna: Callable, model: Path
) -> None:
    options = ["generate", "--model", model, "--max-tokens", 8, "--temperature", 0]
    by_argument = run_luna(*options, "Once upon a time")
    by_input = run_luna(*options, text="Once upon a time")
    assert by_argument.returncode == by_input.returncode == 0, by_argument.stderr + by_input.stderr
    assert by_argument.stdout.strip() and by_argument.stdout == by_input.stdout


def test_generate_repeats_itself_for_a_seed(run_luna: Callable, model: Path) -> None:
    options = ["generate", "--model", model, "--max-tokens", 12, "--temperature", 1.2, "--seed"]
    first, again, other = (run_luna(*options, seed, "Tell me a story") for seed in (5, 5, 6))
    assert first.returncode == 0 and first.stdout == again.stdout != other.stdout


def test_generate_refuses_a_missing_model(run_luna: Callable, tmp_path: Path) -> None:
    done = run_luna("generate", "--model", tmp_path / "gone.gguf", "hi")
    assert done.returncode == 1 and "gone.gguf" in done.stderr


def test_serve_without_its_model_says_how_to_pull_it(run_luna: Callable, tmp_path: Path) -> None:
    config = tmp_path / "luna.toml"
    text = config_text(Path("x")).replace('path = "x"', 'path = "smollm2-135m-instruct"')
    config.write_text(text, encoding="utf-8")
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "empty")}
    done = run_luna("serve", "--config", config, env=environment)
    assert done.returncode == 1 and "pull smollm2-135m-instruct" in done.stderr
    checked = run_luna("check", config, env=environment)
    assert checked.returncode == 0 and "pull smollm2-135m-instruct" in checked.stderr


def test_check_accepts_the_shipped_files(run_luna: Callable) -> None:
    configs = Path(__file__).resolve().parents[2] / "configs"
    for config in sorted(configs.glob("*.toml")):
        done = run_luna("check", config)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("old", "new", "line_of", "says"),
    [
        ("port = 0", "prot = 0", "prot", "port"),
        ("port = 0", 'port = "many"', "many", "port"),
        ("port = 0", "port = 70000", "70000", "65535"),
        ('policy = "static"', 'policy = "statik"', "statik", "static"),
        ('backend = "cpu"', 'backend = "cpuu"', "cpuu", "cpu"),
        ('role = "generate"', 'role = "genrate"', "genrate", "generate"),
        ('devices = ["cpu0"]', 'devices = ["cpu7"]', "cpu7", "cpu0"),
        ("[scheduler]", "[scheduler", "[scheduler", ""),
    ],
)
def test_check_names_place_and_key_of_a_mistake(
    run_luna: Callable, model: Path, tmp_path: Path, old: str, new: str, line_of: str, says: str
) -> None:
    text = config_text(model).replace(old, new, 1)
    assert new in text
    config = tmp_path / "broken.toml"
    config.write_text(text, encoding="utf-8")
    line = next(i for i, row in enumerate(text.splitlines(), 1) if line_of in row)
    done = run_luna("check", config)
    assert done.returncode == 1
    assert f"broken.toml:{line}:" in done.stderr and says in done.stderr


def test_inspect_shows_the_model(run_luna: Callable, model: Path) -> None:
    done = run_luna("inspect", model)
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("llama", "token_embd.weight", "Q4_1", "8192"))


@pytest.mark.parametrize("n_bytes", [0, 3, 24, 1000, 1_000_000])
def test_inspect_refuses_a_cut_file(
    run_luna: Callable, model: Path, tmp_path: Path, n_bytes: int
) -> None:
    path = tmp_path / "cut.gguf"
    with open(model, "rb") as source:
        path.write_bytes(source.read(n_bytes))
    done = run_luna("inspect", path)
    assert done.returncode == 1 and "cut.gguf" in done.stderr


def test_inspect_reads_safetensors_headers(run_luna: Callable, tmp_path: Path) -> None:
    header = b'{"a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
    done = run_luna("inspect", path)
    assert done.returncode == 0 and "a.weight" in done.stdout and "F32" in done.stdout


def read_until(terminal: int, wanted: bytes, process: subprocess.Popen) -> bytes:
    """Output of a terminal until it holds the bytes."""
    got, end = b"", time.monotonic() + CHAT_TIMEOUT_S
    while wanted not in got:
        assert time.monotonic() < end, f"no {wanted!r} in {got!r}"
        try:
            got += os.read(terminal, 4096)
        except OSError:  # the other side closed
            process.wait(10)
            assert wanted in got, f"ended with {process.returncode}: {got!r}"
    return got


@contextlib.contextmanager
def chat_on_a_terminal(luna_bin: Path, model: Path, *options: str) -> Iterator[tuple[int, subprocess.Popen]]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [str(luna_bin), "chat", "--model", str(model), *options], stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        read_until(ours, b">", process)
        yield ours, process
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_chat_answers_on_a_terminal_and_ends_on_ctrl_c(luna_bin: Path, model: Path) -> None:
    # Greedy and bounded: a drawn answer of a small model may go on to the end of its context.
    options = ["--temperature", "0", "--max-tokens", "64"]
    with chat_on_a_terminal(luna_bin, model, *options) as (terminal, process):
        os.write(terminal, b"Say hello.\n")
        read_until(terminal, b"\n> ", process)
        process.send_signal(signal.SIGINT)
        assert process.wait(CHAT_TIMEOUT_S) in (0, 130)


def test_ctrl_c_ends_a_chat_in_the_middle_of_an_answer(luna_bin: Path, model: Path) -> None:
    with chat_on_a_terminal(luna_bin, model, "--temperature", "0") as (terminal, process):
        os.write(terminal, b"TELL ME A LONG STORY.\n")
        read_until(terminal, b"e", process)  # not the echo: the answer has begun
        process.send_signal(signal.SIGINT)
        assert process.wait(CHAT_TIMEOUT_S) in (0, 130)


def test_check_keys_names_every_table(run_luna: Callable) -> None:
    done = run_luna("check", "--keys")
    assert done.returncode == 0
    for table in ("[server]", "[[device]]", "[[model]]", "[[stage]]", "[scheduler]", "[transport]", "[log]"):
        assert table in done.stdout
