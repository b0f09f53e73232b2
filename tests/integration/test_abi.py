"""The plugin ABI holds still: layouts against the golden ones."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "golden"))
import abi_layout  # noqa: E402


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
         "luna_req_row.n_prompt moved from byte 44 to 48: plugins of ABI 1.0 would break"),
        ("scheduler.h", "  int32_t priority;", "  uint32_t priority;",
         "luna_req_row.priority was 'int32_t priority' and is 'uint32_t priority'"),
        ("scheduler.h", "  uint32_t slice_end_token;\n", "  uint32_t slice_end_token;\n  uint64_t weight;\n",
         "luna_req_row.weight is new at byte 112: allowed with a new minor version. Set LUNA_ABI_MINOR to 1"),
        ("transport.h", "  uint64_t cookie;      /*", "  uint64_t rank;\n  uint64_t cookie;      /*",
         "luna_xfer.cookie moved from byte 40 to 48"),
        ("transport.h", "comes back in luna_xfer_done */\n", "comes back */\n  uint64_t rank;\n",
         "luna_xfer.rank is new at byte 48, inside of the 48 bytes of frozen record luna_xfer"),
        ("transport.h", "(*drop_peer)(void* self, uint32_t peer);",
         "(*drop_peer)(void* self, uint32_t peer, uint32_t why);", "luna_transport_if.drop_peer was 'void (*drop_peer)"),
        ("role.h", "#define LUNA_ITEM_END 3u", "#define LUNA_ITEM_END 9u", "LUNA_ITEM_END was 3 and is 9: plugins"),
        ("op_program.h", "#define LUNA_N_OPS 29u", "#define LUNA_OP_SORT 29u\n#define LUNA_N_OPS 30u",
         "LUNA_OP_SORT is new: allowed with a new minor version"),
        ("plugin.h", '"luna.role/1"', '"luna.role/2"', 'LUNA_KIND_ROLE was "luna.role/1" and is "luna.role/2"'),
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
