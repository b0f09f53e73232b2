"""Writes core/text/unicode_classes.inc: the characters that the reference tokenizer library takes for
letters, numbers and white space, found by asking it about every code point. Hence the splitter agrees
with the reference whatever Unicode version either was built for.

usage: python3 tests/golden/text/make_unicode_classes.py > core/text/unicode_classes.inc
needs: tokenizers (made with 0.23.3)
"""
import sys

import tokenizers
from tokenizers import Regex
from tokenizers.pre_tokenizers import Digits, Split

POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CHUNK = 4096


def members(pre_tokenizer, isolating):
    """Code points that `pre_tokenizer` cuts out of a text where they stand between two commas."""
    found = []
    for start in range(0, len(POINTS), CHUNK):
        points = [c for c in POINTS[start:start + CHUNK] if c != 0x2C]
        text = "," + "".join(chr(c) + "," for c in points)
        pieces = {p for p, _ in pre_tokenizer.pre_tokenize_str(text)}
        found += [c for c in points if chr(c) in pieces]
    assert isolating
    return found


def ranges(points):
    out = []
    for c in points:
        # Surrogates are not characters, so a range may run across them.
        if out and (out[-1][1] + 1 == c or (out[-1][1] == 0xD7FF and c == 0xE000)):
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def write(name, points):
    spans = ranges(points)
    print(f"constexpr CodeRange {name}[] = {{")
    line = "   "
    for first, last in spans:
        item = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(item) > 99:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


def main():
    letters = members(Split(Regex(r"\p{L}"), "isolated"), True)
    numbers = members(Split(Regex(r"\p{N}"), "isolated"), True)
    spaces = members(Split(Regex(r"\s"), "isolated"), True)
    digits = members(Digits(individual_digits=True), True)
    print("// Made by tests/golden/text/make_unicode_classes.py from tokenizers "
          f"{tokenizers.__version__}; do not edit.")
    write("kLetters", letters)
    write("kNumbers", numbers)
    write("kSpaces", spaces)
    print(f"letters {len(letters)}, numbers {len(numbers)}, spaces {len(spaces)}, digits of Digits() "
          f"{len(digits)}, in one only {sorted(set(digits) ^ set(numbers))[:50]}", file=sys.stderr)
    write("kDigits", digits)


main()
