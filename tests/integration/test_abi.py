"""The plugin ABI holds still: layouts against the golden ones, and older and newer sides together."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "golden"), str(TESTS / "support")]
import abi_layout  # noqa: E402
from luna_server import LunaServer, config_text  # noqa: E402

CHECK_TIMEOUT_S = 300
MAJOR, MINOR = abi_layout.golden_layouts(1)[-1].version
REFUSAL = f"needs plugin ABI {MAJOR}.{MINOR + 1} or newer, this program has {MAJOR}.{MINOR}"


@pytest.mark.parametrize("compiler", abi_layout.COMPILERS)
def test_the_headers_are_what_the_golden_layout_says(compiler: str) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    now = abi_layout.parse_layout(abi_layout.layout_text(abi_layout.COMPILERS[compiler]))
    assert abi_layout.complaints(now) == []


@pytest.mark.parametrize(
    ("header", "old", "new", "complaint"),
    [
        ("scheduler.h", "  uint32_t n_prompt;", "  uint32_t n_parts;\n  uint32_t n_prompt;",
         f"luna_req_row.n_prompt moved from byte 44 to 48: plugins of ABI 1.{MINOR} would break"),
        ("scheduler.h", "  int32_t priority;", "  uint32_t priority;",
         "luna_req_row.priority was 'int32_t priority' and is 'uint32_t priority'"),
        ("scheduler.h", "  uint32_t slice_end_token;\n", "  uint32_t slice_end_token;\n  uint64_t weight;\n",
         f"luna_req_row.weight is new at byte 112: allowed with a new minor version. Set LUNA_ABI_MINOR to {MINOR + 1}"),
        ("transport.h", "  uint64_t cookie;      /*", "  uint64_t rank;\n  uint64_t cookie;      /*",
         "luna_xfer.cookie moved from byte 40 to 48"),
        ("transport.h", "comes back in luna_xfer_done */\n", "comes back */\n  uint64_t rank;\n",
         "luna_xfer.rank is new at byte 48, inside of the 48 bytes of frozen record luna_xfer"),
        ("transport.h", "(*drop_peer)(void* self, uint32_t peer);",
         "(*drop_peer)(void* self, uint32_t peer, uint32_t why);", "luna_transport_if.drop_peer was 'void (*drop_peer)"),
        ("role.h", "#define LUNA_ITEM_END 3u", "#define LUNA_ITEM_END 9u", "LUNA_ITEM_END was 3 and is 9: plugins"),
        ("op_program.h", "#define LUNA_N_OPS ", "#define LUNA_OP_SORT 99u\n#define LUNA_N_OPS ",
         "LUNA_OP_SORT is new: allowed with a new minor version"),
        ("plugin.h", '"luna.role/1"', '"luna.role/2"', 'LUNA_KIND_ROLE was "luna.role/1" and is "luna.role/2"'),
        ("plugin.h", "  char kinds[128]; ", "  char kinds[128];\n  uint64_t flags; ",
         "luna_note.flags is 'uint64_t flags': the note lies 20 bytes into its section"),
        ("quant.h", "  uint64_t n_cols;\n", "", "luna_weight_desc.n_cols is gone"),
    ],
)  # fmt: skip
def test_a_drift_is_told_with_its_field_and_what_to_do(
    header: str, old: str, new: str, complaint: str, tmp_path: Path
) -> None:
    shutil.copytree(abi_layout.HEADERS, tmp_path / "include")
    path = tmp_path / "include" / "luna" / "abi" / header
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    now = abi_layout.parse_layout(abi_layout.layout_text(abi_layout.COMPILERS["gcc"], tmp_path / "include"))
    found = abi_layout.complaints(now)
    assert any(complaint in one for one in found), found


def grown(change: Callable[[abi_layout.Layout], None]) -> list[str]:
    """Complaints about a next minor version that changes the newest golden layout so."""
    now = abi_layout.golden_layouts(1)[-1]
    now.constants["LUNA_ABI_MINOR"] = str(now.version[1] + 1)
    change(now)
    return abi_layout.complaints(now)


def test_a_next_minor_version_may_extend_and_must_not_change() -> None:
    def append(now: abi_layout.Layout) -> None:
        now.records["luna_plan"].fields["next"] = abi_layout.Field(32, 8, "uint64_t next")
        now.records["luna_plan"].size = 40

    assert ["--write" in one for one in grown(append)] == [True]

    def move(now: abi_layout.Layout) -> None:
        now.records["luna_plan"].fields["wake_at_ns"].offset = 32

    assert any("luna_plan.wake_at_ns moved" in one for one in grown(move))


# ---- newer and older sides -------------------------------------------------------------------------
# The next minor version exists in tests/abi alone: every record that grows has a field more there.
EXAMPLES = ("scheduler_express", "role_redact", "quant_mxfp4", "transport_logging", "backend_plain")


@pytest.fixture(scope="module")
def build(luna_bin: Path) -> Path:
    folder = luna_bin.parents[1]
    if not (folder / "tests" / "abi" / "luna-check-next").is_file():
        pytest.skip(f"{folder}/tests/abi/luna-check-next is not built")
    return folder


def check(checker: Path, library: Path, build: Path) -> subprocess.CompletedProcess[str]:
    """Every rule, by a validator that is of its own minor version."""
    plugins = build / "lib" / "luna" / "plugins"
    # Decorators look for the plugin behind them beside the program that loads them.
    settings = {
        "transport_logging": f"inner={plugins}/transport_inproc.so",
        "transport_slow": f"inner={plugins}/transport_inproc.so",
        "backend_meter": f"inner={plugins}/backend_cpu.so",
        "role_intent": "labels=code|chat",
    }
    setting = settings.get(library.stem.removeprefix("needs_").removeprefix("next_"))
    return subprocess.run([str(checker), str(library), *(["--set", setting] if setting else [])],
                          capture_output=True, text=True, timeout=CHECK_TIMEOUT_S)  # fmt: skip


def shipped(build: Path) -> list[Path]:
    return sorted((build / "lib" / "luna" / "plugins").glob("*.so"))


def test_older_plugins_keep_every_rule_on_a_newer_host(build: Path) -> None:
    libraries = shipped(build)
    assert len(libraries) >= 15
    for library in libraries:
        done = check(build / "tests" / "abi" / "luna-check-next", library, build)
        assert done.returncode == 0, f"{library.name}\n{done.stdout[-3000:]}{done.stderr}"


@pytest.mark.parametrize("example", EXAMPLES)
def test_newer_plugins_keep_every_rule_on_this_host(example: str, build: Path) -> None:
    library = build / "tests" / "abi" / "next" / f"next_{example}.so"
    done = check(build / "bin" / "luna-check", library, build)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


@pytest.mark.parametrize("example", EXAMPLES)
def test_plugins_that_need_a_newer_host_are_refused_with_both_versions(example: str, build: Path) -> None:
    library = build / "tests" / "abi" / "needs_next" / f"needs_next_{example}.so"
    done = check(build / "bin" / "luna-check", library, build)
    assert done.returncode == 1
    assert "rule V2:" in done.stdout
    assert REFUSAL in done.stdout
    newer = check(build / "tests" / "abi" / "luna-check-next", library, build)
    assert newer.returncode == 0, newer.stdout[-3000:] + newer.stderr


def test_newer_plugins_serve_on_this_host(
    build: Path, luna_bin: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUNA_PLUGIN_PATH", str(build / "tests" / "abi" / "next"))
    serve_with_examples(luna_bin, config_text(model, n_devices=2, policy="express", transport="logging"), tmp_path)


def test_a_server_stops_its_start_for_a_plugin_that_needs_a_newer_host(
    build: Path, run_luna: Callable, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUNA_PLUGIN_PATH", str(build / "tests" / "abi" / "needs_next"))
    config = tmp_path / "luna.toml"
    config.write_text(config_text(model, policy="express"), encoding="utf-8")
    done = run_luna("serve", "--config", config)
    assert done.returncode == 1
    assert REFUSAL in done.stdout + done.stderr


def serve_with_examples(luna_bin: Path, config: str, folder: Path) -> None:
    """One request through a scheduler, a role and a transport of the path of plugins."""
    stage = '[[stage]]\nrole = "redact"\npatterns = ["[aeiou]"]\nreplacement = "#"\n\n[scheduler]\n'
    path = folder / "luna.toml"
    path.write_text(config.replace("[scheduler]\n", stage, 1), encoding="utf-8")
    server = LunaServer(luna_bin, path)
    try:
        status, answer = server.chat("Name three colours.", max_tokens=24)
        assert status == 200, answer
        text = answer["choices"][0]["message"]["content"]
        assert "#" in text and not set(text) & set("aeiou"), text
    finally:
        assert server.stop() == 0, server.log()
    assert "ends: sent" in server.log()


# ---- plugins that were built when a version was made ------------------------------------------------
KEPT = TESTS / "golden" / "abi-1.0"


def kept() -> dict[str, str]:
    """Digest of each kept file, by its name in the folder of the version."""
    lines = (KEPT / "manifest.txt").read_text(encoding="utf-8").splitlines()
    return {line.split()[-1]: line.split()[0] for line in lines if not line.startswith("#")}


def test_kept_plugins_are_those_of_the_manifest() -> None:
    files = {f"plugins/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
             for path in (KEPT / "plugins").iterdir()}  # fmt: skip
    assert files == kept()
    kinds = [name.split("/")[1].split("_")[0] for name in files]
    assert all(kinds.count(kind) >= 2 for kind in ("scheduler", "role", "quant", "transport", "backend"))


@pytest.mark.parametrize("name", [path.stem for path in sorted((KEPT / "plugins").glob("*.so"))])
@pytest.mark.parametrize("checker", ["bin/luna-check", "tests/abi/luna-check-next"])
def test_kept_plugins_keep_every_rule(name: str, checker: str, build: Path) -> None:
    done = check(build / checker, KEPT / "plugins" / f"{name}.so", build)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


def test_kept_plugins_serve(
    build: Path, luna_bin: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUNA_PLUGIN_PATH", str(KEPT / "plugins"))
    config = config_text(model, n_devices=2, policy="shortest", transport="logging")
    serve_with_examples(luna_bin, config.replace('backend = "cpu"', 'backend = "meter"'), tmp_path)
