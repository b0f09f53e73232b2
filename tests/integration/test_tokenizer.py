"""`luna tokenize` against `tokenizers` built from the same vocabulary: equal ids, and the text again.

needs: LUNA_BIN, the luna program (or tests/text_driver: then folders only)
"""
import os
import random

import pytest
import text_reference as ref

N_STRINGS = 24000
SEED = int(os.environ.get("LUNA_TEST_SEED", "20240917"))
MODEL = ref.default_model()
BLOCKS = [(0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF),
          (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1EFF),
          (0x2000, 0x206F), (0x20A0, 0x20CF), (0x2150, 0x218F), (0x2460, 0x24FF), (0x3000, 0x30FF),
          (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF),
          (0x1F1E6, 0x1F1FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0xE0100, 0xE01EF), (0, 0x1F),
          (0x7F, 0x9F), (0x10000, 0x10FFF), (0x16800, 0x16FFF)]
WORDS = ("the of and to in is you that it he was for on are I'm don't we'll THEY'VE it's x's 's 'S 'll 'Re "
         "def return print(\"hi\") for(i=0;i<10;i++) https://a.b/c?d=e&f=1 3.14159 1,000,000 0xFF naïve "
         "Straße Привет мир 你好世界 こんにちは 안녕하세요 مرحبا שלום नमस्ते สวัสดี Ελληνικά 🦙 👨‍👩‍👧‍👦 "
         "𝔘𝔫𝔦 Ⅻ ½ ٣٤ ß ſ 'ſ").split()
GAPS = [" ", "  ", "\n", "\r\n", "\n\n", "\t", " \n ", "\u00a0", "\u3000", "   \n\n  ", "", "'", "_", "-",
        "\u200d", "\x00", "\x1b", "\x7f", "\u2028", "\x85", "\x0b", "\x0c", "\x1c"]


def make_strings(tokens, rng, n):
    """Many kinds of text: characters of one or many scripts, words, digits, pieces of tokens."""
    control = [t for t in tokens[:17]]
    look_alike = control + ["<|im_", "im_start|>", "<|", "|>", "<|IM_END|>", "<|im_end|", "<|im_start|><|im_end|>"]

    def characters():
        first, last = rng.choice(BLOCKS)
        return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 24)))

    def anything():
        out = []
        while len(out) < rng.randint(1, 20):
            point = rng.randrange(0x110000)
            if not 0xD800 <= point <= 0xDFFF:
                out.append(chr(point))
        return "".join(out)

    def words():
        return "".join(rng.choice(WORDS) + rng.choice(GAPS) for _ in range(rng.randint(1, 20)))

    def digits():
        return "".join(rng.choice("0123456789 .,-+eE٣Ⅻ½") for _ in range(rng.randint(1, 30)))

    def spaces():
        return "".join(rng.choice(GAPS) for _ in range(rng.randint(1, 12))) + rng.choice(WORDS)

    def specials():
        return "".join(rng.choice(look_alike) + rng.choice(GAPS + WORDS) for _ in range(rng.randint(1, 8)))

    def from_tokens():
        return "".join(rng.choice(tokens).replace("Ġ", " ").replace("Ċ", "\n") for _ in range(rng.randint(1, 12)))

    def mixed():
        return "".join(rng.choice(kinds[:-1])() for _ in range(rng.randint(2, 5)))

    kinds = [characters, anything, words, digits, spaces, specials, from_tokens, mixed]
    made = [rng.choice(kinds)() for _ in range(n)]
    long = [c * 100_000 for c in "a 1\n=é中"] + ["ab" * 50_000, "<|im_" * 20_000, " a" * 50_000, "🦙" * 25_000]
    return made + ["", " ", "\n"] + long


@pytest.fixture(scope="module")
def vocabulary():
    return ref.read_vocabulary(MODEL)


@pytest.fixture(scope="module", params=["smollm", "gpt-2", "llama3", "qwen2"])
def family(request, vocabulary, tmp_path_factory):
    """(name, reference, folder) of one way of splitting words."""
    tokenizer = ref.reference(vocabulary, request.param)
    folder = ref.write_folder(tokenizer, vocabulary, str(tmp_path_factory.mktemp(request.param)))
    return request.param, tokenizer, folder


def strings(vocabulary, n=N_STRINGS):
    print(f"LUNA_TEST_SEED={SEED}")
    return make_strings(vocabulary["tokens"], random.Random(SEED), n)


def assert_equal_ids(texts, expected, actual):
    assert len(actual) == len(texts)
    wrong = [(t[:80], e[:40], a[:40]) for t, e, a in zip(texts, expected, actual) if e != a]
    assert not wrong, f"{len(wrong)} of {len(texts)} differ, the first: {wrong[0]}"


def test_ids_equal_the_reference_for_every_family(family, vocabulary):
    _, tokenizer, folder = family
    texts = strings(vocabulary)
    actual = ref.luna_lines("tokenize", "--model", folder, values=texts)
    assert_equal_ids(texts, [tokenizer.encode(t, add_special_tokens=False).ids for t in texts], actual)


def test_every_character_alone_and_in_company_has_the_ids_of_the_reference(family, vocabulary):
    _, tokenizer, folder = family
    points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    texts = ["".join(f"a{chr(c)}{chr(c)}1 {chr(c)}b\n" for c in points[i:i + 512])
             for i in range(0, len(points), 512)]
    actual = ref.luna_lines("tokenize", "--model", folder, values=texts)
    assert_equal_ids(texts, [tokenizer.encode(t, add_special_tokens=False).ids for t in texts], actual)


def test_decoded_ids_are_the_text_again(vocabulary, tmp_path):
    """But for the bytes that the vocabulary has no token for: the reference drops them too."""
    tokenizer = ref.reference(vocabulary)
    folder = ref.write_folder(tokenizer, vocabulary, str(tmp_path / "model"))
    from_byte = __import__("tokenizers").pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    known = set(vocabulary["tokens"])

    def representable(text):
        return all(c in known for piece, _ in from_byte.pre_tokenize_str(text) for c in piece)

    texts = [t for t in strings(vocabulary) if representable(t)]
    assert len(texts) > N_STRINGS * 2 // 3
    ids = ref.luna_lines("tokenize", "--model", folder, values=texts)
    again = ref.luna_lines("tokenize", "--model", folder, "--decode", values=ids)
    assert again == texts


def test_without_specials_the_text_of_control_tokens_stays_text(vocabulary, tmp_path):
    plain = dict(vocabulary, types=[1] * len(vocabulary["types"]))
    folder = ref.write_folder(ref.reference(vocabulary), vocabulary, str(tmp_path / "model"))
    tokenizer = ref.reference(plain)
    texts = strings(vocabulary, 4000)
    actual = ref.luna_lines("tokenize", "--model", folder, "--no-special", values=texts)
    assert_equal_ids(texts, [tokenizer.encode(t, add_special_tokens=False).ids for t in texts], actual)


@pytest.mark.skipif(os.path.basename(os.environ.get("LUNA_BIN", "")) == "text_driver",
                    reason="the driver reads folders only")
def test_the_model_file_gives_the_ids_of_the_reference(vocabulary):
    texts = strings(vocabulary)
    tokenizer = ref.reference(vocabulary)
    actual = ref.luna_lines("tokenize", "--model", MODEL, values=texts)
    assert_equal_ids(texts, [tokenizer.encode(t, add_special_tokens=False).ids for t in texts], actual)
