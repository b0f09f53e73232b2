"""The layout of the plugin ABI: what the C headers are to a compiler, as text, and how two of them differ.

    python abi_layout.py                   prints the layout of the headers of this tree
    python abi_layout.py --check           compares it with the golden file of its minor version
    python abi_layout.py --write           writes that golden file (a new minor version, see below)

A layout lists every constant with its value and every record with its size, and each field with its
offset, size and declaration. The golden files `abi-<major>.<minor>/layout.txt` are the specification:
the headers must be the newest of them, and each must be an extension of the ones before it. What is
an extension: constants and records that were not there, and fields at the end of records that grow.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent
HEADERS = GOLDEN.parents[1] / "sdk" / "include"
COMPILERS = {"gcc": ["gcc", "-std=c11", "-x", "c"], "g++": ["g++", "-std=c++20", "-x", "c++"],
             "clang": ["clang", "-std=c11", "-x", "c"], "clang++": ["clang++", "-std=c++20", "-x", "c++"]}  # fmt: skip

# Rows of tables that are walked with the stride that the host gives.
GROWS_BY_STRIDE = {"luna_req_row", "luna_device_row", "luna_link_row", "luna_slice_row", "luna_prefix_row",
                   "luna_tensor_entry"}  # fmt: skip
# Heads inside of other records: nothing can be put behind them, although they tell a size.
FROZEN_HEADS = {"luna_if"}
# What counts or numbers the rest, and so grows with it.
COUNTS = {"LUNA_ABI_MINOR", "LUNA_N_OPS"}


@dataclass
class Field:
    offset: int
    size: int
    declaration: str


@dataclass
class Record:
    size: int
    growth: str  # "size", "stride" or "frozen"
    fields: dict[str, Field] = field(default_factory=dict)


@dataclass
class Layout:
    constants: dict[str, str] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)

    @property
    def version(self) -> tuple[int, int]:
        return int(self.constants["LUNA_ABI_MAJOR"]), int(self.constants["LUNA_ABI_MINOR"])


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def declarations_of(body: str) -> list[tuple[str, str]]:
    """(name, declaration) of each field, in order; those of a union without a name belong to its record."""
    body = re.sub(r"union\s*\{(.*?)\}\s*;", r"\1", body, flags=re.S)
    fields = []
    for declaration in (" ".join(part.split()) for part in body.split(";")):
        if not declaration:
            continue
        if pointer := re.search(r"\(\*(\w+)\)\s*\(", declaration):
            fields.append((pointer[1], declaration))
            continue
        first, *others = declaration.split(",")
        kind = re.match(r"(.*[\s*])\w+(?:\[\w+\])?$", first)[1].strip()
        for one in [first, *(f"{kind} {other.strip()}" for other in others)]:
            fields.append((re.search(r"(\w+)(?:\[\w+\])?$", one)[1], one))
    return fields


def parse_headers(include: Path) -> tuple[dict[str, bool], dict[str, list[tuple[str, str]]]]:
    """Constants and whether they are texts; the fields of each record."""
    text = "".join(without_comments(path.read_text(encoding="utf-8"))
                   for path in sorted((include / "luna" / "abi").glob("*.h")))  # fmt: skip
    constants = {name: first == '"' for name, first in re.findall(r"^#define (LUNA_\w+)[ \t]+(\S)", text, re.M)
                 if name != "LUNA_EXPORT"}  # fmt: skip
    records = {name: declarations_of(body)
               for name, body in re.findall(r"struct (\w+)\s*\{((?:[^{}]|\{[^{}]*\})*)\}", text)}  # fmt: skip
    return constants, records


def growth_of(name: str, fields: list[tuple[str, str]]) -> str:
    if name in GROWS_BY_STRIDE:
        return "stride"
    begins_with_size = fields[0][1] in ("uint32_t struct_size", "luna_if head")
    return "size" if begins_with_size and name not in FROZEN_HEADS else "frozen"


def probe_source(include: Path) -> str:
    """A C program that prints the layout of the headers below a folder."""
    constants, records = parse_headers(include)
    lines = ["#include <luna/plugin.h>", "#include <luna/abi/backend.h>", "#include <luna/abi/role.h>",
             "#include <luna/abi/scheduler.h>", "#include <stdio.h>",
             "static void text(const char* name, const char* value) "
             '{ printf("constant %s \\"%s\\"\\n", name, value); }',
             "static void number(const char* name, long long value) "
             '{ printf("constant %s %lld\\n", name, value); }', "int main(void) {"]  # fmt: skip
    for name in constants:
        lines.append(f'  {"text" if constants[name] else "number"}("{name}", {name});')
    for name, fields in records.items():
        lines.append(f'  printf("record {name} %zu {growth_of(name, fields)}\\n", sizeof(struct {name}));')
        for field_name, declaration in fields:
            lines.append(f'  printf("  {field_name} %zu %zu {declaration}\\n", '
                         f"offsetof(struct {name}, {field_name}), "
                         f"sizeof(((struct {name}*)0)->{field_name}));")  # fmt: skip
    return "\n".join([*lines, "  return 0;", "}", ""])


def layout_text(compiler: list[str], include: Path = HEADERS) -> str:
    """The layout that a compiler gives the headers, without the head of the golden file."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "probe.c", Path(folder) / "probe"
        source.write_text(probe_source(include), encoding="utf-8")
        subprocess.run([*compiler, "-Wno-invalid-offsetof", "-I", str(include), str(source), "-o", str(program)],
                       check=True, capture_output=True, text=True)  # fmt: skip
        return subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout


def parse_layout(text: str) -> Layout:
    layout = Layout()
    record = None
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        if line.startswith("constant "):
            _, name, value = line.split(" ", 2)
            layout.constants[name] = value
        elif line.startswith("record "):
            _, name, size, growth = line.split()
            record = layout.records[name] = Record(int(size), growth)
        else:
            name, offset, size, declaration = line.strip().split(" ", 3)
            record.fields[name] = Field(int(offset), int(size), declaration)
    return layout


@dataclass
class Difference:
    """One difference of a layout to an older one."""

    is_extension: bool
    text: str


def differences(old: Layout, new: Layout) -> list[Difference]:
    found = []

    def breaks(text: str) -> None:
        found.append(Difference(False, text))

    def extends(text: str) -> None:
        found.append(Difference(True, text))

    for name, value in old.constants.items():
        if name not in new.constants:
            breaks(f"{name} is gone")
        elif new.constants[name] != value:
            (extends if name in COUNTS else breaks)(f"{name} was {value} and is {new.constants[name]}")
    for name in new.constants.keys() - old.constants.keys():
        extends(f"{name} is new")
    for name in new.records.keys() - old.records.keys():
        extends(f"record {name} is new")
    for name, was in old.records.items():
        now = new.records.get(name)
        if now is None:
            breaks(f"record {name} is gone")
            continue
        if now.growth != was.growth:
            breaks(f"record {name}: grew by {was.growth}, now by {now.growth}")
        for field_name, before in was.fields.items():
            after = now.fields.get(field_name)
            where = f"{name}.{field_name}"
            if after is None:
                breaks(f"{where} is gone")
                continue
            if after.offset != before.offset:
                breaks(f"{where} moved from byte {before.offset} to {after.offset}")
            if after.size != before.size:
                breaks(f"{where} had {before.size} bytes and has {after.size}")
            if after.declaration != before.declaration:
                breaks(f"{where} was '{before.declaration}' and is '{after.declaration}'")
        for field_name in now.fields.keys() - was.fields.keys():
            # What fills the end of the old record would be inside of it for an older side.
            is_behind = now.growth != "frozen" and now.fields[field_name].offset >= was.size
            (extends if is_behind else breaks)(
                f"{name}.{field_name} is new at byte {now.fields[field_name].offset}"
                + ("" if is_behind else f", inside of the {was.size} bytes of {now.growth} record {name}")
            )
        if now.size != was.size and not any(f.offset >= was.size for f in now.fields.values()):
            breaks(f"record {name} had {was.size} bytes and has {now.size}")
    return found


def golden_file(version: tuple[int, int]) -> Path:
    return GOLDEN / f"abi-{version[0]}.{version[1]}" / "layout.txt"


def golden_layouts(major: int) -> list[Layout]:
    """Those of a major version, oldest first."""
    files = sorted(GOLDEN.glob(f"abi-{major}.*/layout.txt"), key=lambda f: int(f.parent.name.split(".")[1]))
    return [parse_layout(file.read_text(encoding="utf-8")) for file in files]


def complaints(now: Layout) -> list[str]:
    """What is wrong with the headers, each with what to do; empty: nothing."""
    major, minor = now.version
    golden = golden_layouts(major)
    if not golden:
        return [f"there is no golden layout of major version {major}"]
    found = []
    for old in golden[:-1]:
        for one in differences(old, now):
            if not one.is_extension:
                found.append(f"{one.text}: plugins of ABI {major}.{old.version[1]} would break. "
                             "Never within a major version: append, or a new record or id.")  # fmt: skip
    for name, one in now.records["luna_note"].fields.items():
        if not re.match(r"(uint32_t|char) ", one.declaration):
            found.append(f"luna_note.{name} is '{one.declaration}': the note lies 20 bytes into its section of the "
                         "file, so that it may have texts and fields of 4 bytes only")  # fmt: skip
    newest = golden[-1]
    for one in differences(newest, now):
        if not one.is_extension:
            found.append(f"{one.text}: plugins of ABI {major}.{newest.version[1]} would break. "
                         "Never within a major version: append, or a new record or id.")  # fmt: skip
        elif minor == newest.version[1]:
            found.append(f"{one.text}: allowed with a new minor version. Set LUNA_ABI_MINOR to {minor + 1} and "
                         "run tests/golden/abi_layout.py --write; docs/plugin-rules.md, 'How it grows'.")  # fmt: skip
    if minor != newest.version[1] and not found:
        found.append(f"the headers are {major}.{minor}, the newest golden layout {major}.{newest.version[1]}: "
                     "run tests/golden/abi_layout.py --write")  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--compiler", choices=COMPILERS, default="gcc")
    options = parser.parse_args()
    text = layout_text(COMPILERS[options.compiler])
    now = parse_layout(text)
    if options.check:
        found = complaints(now)
        print("\n".join(found) or "the headers are what the golden layout says")
        return 1 if found else 0
    if options.write:
        broken = [one.text for old in golden_layouts(now.version[0]) for one in differences(old, now)
                  if not one.is_extension and old.version != now.version]  # fmt: skip
        if broken:
            sys.exit("\n".join(broken))
        file = golden_file(now.version)
        tag = f"abi-{now.version[0]}.{now.version[1]}"
        is_tagged = subprocess.run(["git", "-C", str(GOLDEN), "rev-parse", "--quiet", "--verify", f"refs/tags/{tag}"],
                                   capture_output=True).returncode == 0  # fmt: skip
        if is_tagged and file.exists():
            sys.exit(f"{tag} is tagged: its layout is final; raise LUNA_ABI_MINOR")
        file.parent.mkdir(exist_ok=True)
        head = (f"# Plugin ABI {now.version[0]}.{now.version[1]}: constants and their values; records with size and "
                "how they grow\n# (by struct_size, by stride, or frozen), fields with offset, size and "
                "declaration.\n# Written by tests/golden/abi_layout.py; never changed once tagged.\n")  # fmt: skip
        file.write_text(head + text, encoding="utf-8")
        print(file)
        return 0
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
