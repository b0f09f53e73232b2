"""Writes core/text/case_expansions.inc: characters whose upper or title case is several characters.

usage: python3 tests/golden/text/make_case_expansions.py > core/text/case_expansions.inc
"""
import unicodedata


def c_string(text):
    return '"' + "".join(f"\\x{b:02X}" for b in text.encode("utf-8")) + '"'


print(f"// Made by tests/golden/text/make_case_expansions.py, Unicode {unicodedata.unidata_version}; do not edit.")
print("constexpr CaseExpansion kCaseExpansions[] = {")
for point in range(0x110000):
    c = chr(point)
    if len(c.upper()) > 1 or len(c.title()) > 1:
        print(f"    {{0x{point:X}, {c_string(c.upper())}, {c_string(c.title())}}},")
print("};")
