#!/usr/bin/env python3
"""Writes broken/*.toml and broken/expectations.tsv: one mistake a file.

Each case: name, a mistake put into GOOD (find, replace), and what one message must contain: the
place line:column, the key or word, and the nearest right word or what is allowed. Places are
counted by hand from GOOD below, not taken from the program. Run it in its own folder.
"""
import pathlib

GOOD = """[server]
host = "127.0.0.1"
port = 8080
body_bytes_max = "8 MiB"

[[device]]
name = "a0"
backend = "cpu"
memory = "1 GiB"
threads = 1

[[device]]
name = "a1"
backend = "cpu"
memory = "1 GiB"

[[model]]
name = "main"
path = "smollm2-135m-instruct"
devices = ["a0", "a1"]
layers = [15, 15]

[[stage]]
role = "generate"
model = "main"

[scheduler]
policy = "static"

[transport]
data = "inproc"

[log]
level = "info"
"""

# A second model, and [speculation] up to its last key.
SMALL = """[[model]]
name = "small"
path = "smollm2-135m-instruct"
devices = ["a0"]
[speculation]
method = "draft"
"""

CASES = [
    # name, find, replace, place, key, what is right
    ("key_misspelt", "port = 8080", "prot = 8080", "3:1", "'prot'", "'port'"),
    ("key_with_unit_forgotten", "body_bytes_max", "body_max", "4:1", "'body_max'", "'body_bytes_max'"),
    ("key_of_another_table", "[log]\n", "[log]\nport = 1\n", "34:1", "'port'", "'level'"),
    ("key_at_the_top", "[server]\n", "port = 80\n[server]\n", "1:1", "'port'", "[server]"),
    ("key_unknown_at_the_top", "[server]\n", "sever = 80\n[server]\n", "1:1", "'sever'", "'server'"),
    ("key_swapped_letters", "policy = ", "polciy = ", "28:1", "'polciy'", "'policy'"),
    ("model_key_misspelt", "layers = ", "layer = ", "21:1", "'layer'", "'layers'"),
    ("table_misspelt", "[server]", "[sever]", "1:2", "'sever'", "'server'"),
    ("table_misspelt_repeated", "[[stage]]", "[[stages]]", "23:3", "'stages'", "'stage'"),
    ("table_unknown", "[log]", "[zz_unknown]", "33:2", "'zz_unknown'", "nearest"),
    ("device_single_brackets", "[[device]]\nname = \"a0\"\nbackend = \"cpu\"\nmemory = \"1 GiB\"\nthreads = 1\n\n[[device]]",
     "[device]", "6:2", "device", "[[device]]"),
    ("server_double_brackets", "[server]", "[[server]]", "1:1", "server", "[server]"),
    ("port_text", "port = 8080", 'port = "eighty"', "3:8", "server.port", "0..65535"),
    ("port_negative", "port = 8080", "port = -1", "3:8", "server.port = -1", "0..65535"),
    ("port_too_large", "port = 8080", "port = 70000", "3:8", "server.port = 70000", "0..65535"),
    ("port_float", "port = 8080", "port = 8080.5", "3:8", "server.port = 8080.5", "whole number"),
    ("port_exponent", "port = 8080", "port = 1e9", "3:8", "server.port", "whole number"),
    ("port_true", "port = 8080", "port = true", "3:8", "server.port = true", "whole number"),
    ("port_list", "port = 8080", "port = [8080]", "3:8", "server.port = a list", "whole number"),
    ("port_overflow", "port = 8080", "port = 99999999999999999999", "3:", "port", "not valid TOML"),
    ("port_date", "port = 8080", "port = 2024-01-02", "3:8", "server.port = a date", "whole number"),
    ("host_number", 'host = "127.0.0.1"', "host = 127", "2:8", "server.host = 127", "a text"),
    ("host_empty", 'host = "127.0.0.1"', 'host = ""', "2:8", "server.host", "1..255"),
    ("bytes_bad_unit", '"8 MiB"', '"8 MB"', "4:18", "server.body_bytes_max", "MiB"),
    ("bytes_no_number", '"8 MiB"', '"MiB"', "4:18", "server.body_bytes_max", "MiB"),
    ("bytes_negative", '"8 MiB"', '"-8 MiB"', "4:18", "server.body_bytes_max", "MiB"),
    ("bytes_overflow", 'memory = "1 GiB"\nthreads', 'memory = "9999999999 TiB"\nthreads', "9:10", "device[0].memory", "GiB"),
    ("bytes_too_small", 'memory = "1 GiB"\nthreads', "memory = 1\nthreads", "9:10", "device[0].memory = 1", "1048576"),
    ("memory_missing", 'memory = "1 GiB"\nthreads', "threads", "6:1", "device[0].memory is missing", "a size"),
    ("device_name_missing", 'name = "a1"\n', "", "12:1", "device[1].name is missing", "a text"),
    ("device_name_twice", 'name = "a1"', 'name = "a0"', "13:8", 'device[1].name = "a0"', "another device"),
    ("model_device_unknown", '["a0", "a1"]', '["a0", "b1"]', "20:18", '"b1"', "'a1'"),
    ("model_device_twice", '["a0", "a1"]', '["a0", "a0"]', "20:18", '"a0"', "twice"),
    ("model_devices_empty", '["a0", "a1"]', "[]", "20:11", "model[0].devices = an empty list", "at least one"),
    ("model_devices_text", '["a0", "a1"]', '"a0"', "20:11", 'model[0].devices = "a0"', "a list"),
    ("model_path_missing", 'path = "smollm2-135m-instruct"\n', "", "17:1", "model[0].path is missing", "a text"),
    ("layers_count", "[15, 15]", "[30]", "21:10", "model[0].layers", "2 devices"),
    ("layers_zero", "[15, 15]", "[30, 0]", "21:10", "model[0].layers", "[18, 12]"),
    ("layers_gap", "[15, 15]", '["0..14", "16..29"]', "21:10", "model[0].layers", "ranges"),
    ("layers_backwards", "[15, 15]", '["14..0", "15..29"]', "21:10", "model[0].layers", "ranges"),
    ("layers_word", "[15, 15]", '"even"', "21:10", 'model[0].layers = "even"', '"auto"'),
    ("kv_cache_unknown", "layers = ", 'kv_cache = "int4"\nlayers = ', "21:12", "model[0].kv_cache", "bf16|int8"),
    ("numerics_unknown", "layers = ", 'numerics = "f32"\nlayers = ', "21:12", "model[0].numerics", "i12|i8|bf16"),
    ("micro_batches_too_many", "layers = ", "micro_batches = 9\nlayers = ", "21:17", "model[0].micro_batches = 9", "0..8"),
    ("kv_block_not_power", "layers = ", "kv_block_tokens = 48\nlayers = ", "21:19", "model[0].kv_block_tokens = 48", "32|64"),
    ("stage_model_unknown", 'model = "main"', 'model = "mian"', "25:9", 'stage[0].model = "mian"', "'main'"),
    ("stage_role_missing", 'role = "generate"\n', "", "23:1", "stage[0].role is missing", "a text"),
    ("policy_missing", 'policy = "static"\n', "", "27:1", "scheduler.policy is missing", "a text"),
    ("scheduler_missing", '[scheduler]\npolicy = "static"\n', "", "1:1", "[scheduler]", "no [scheduler]"),
    ("log_level_unknown", 'level = "info"', 'level = "inof"', "34:9", "log.level", "trace|debug|info"),
    ("speculation_method_draft", "[log]", '[speculation]\nmethod = "draft"\n[log]', "34:10", 'speculation.method = "draft"', "draft_model"),
    ("speculation_method_unknown", "[log]", '[speculation]\nmethod = "eagle"\n[log]', "34:10", 'speculation.method = "eagle"', "off|ngram|draft"),
    ("draft_model_unknown", "[log]", '[speculation]\nmethod = "draft"\ndraft_model = "mian"\n[log]', "35:15", 'speculation.draft_model = "mian"', "'main'"),
    ("draft_model_alone", "[log]", '[speculation]\nmethod = "draft"\ndraft_model = "main"\n[log]', "35:15", 'speculation.draft_model = "main"', "the only [[model]]"),
    ("draft_model_of_a_stage", "[log]", SMALL + 'draft_model = "main"\n[log]', "25:9", 'stage[0].model = "main"', "another [[model]]"),
    ("draft_model_without_bound", "[log]", SMALL + 'draft_model = "small"\n[log]', "39:15", 'speculation.draft_model = "small"', "kv_tokens_max"),
    ("draft_model_pruned", "[log]", SMALL.replace("devices", "prune_keep_percent = 50\nkv_tokens_max = 4096\ndevices") + 'draft_model = "small"\n[log]', "41:15", 'speculation.draft_model = "small"', "prune_keep_percent = 100"),
    ("draft_model_prefix_cache", "[log]", SMALL.replace("devices", "kv_tokens_max = 4096\nprefix_cache = false\ndevices") + 'draft_model = "small"\n[log]', "37:1", "model[1].prefix_cache", "remove it here"),
    ("draft_model_prefix_cache_scope", "[log]", SMALL.replace("devices", "kv_tokens_max = 4096\nprefix_cache_scope = \"tenant\"\ndevices") + 'draft_model = "small"\n[log]', "37:1", "model[1].prefix_cache_scope", "remove it here"),
    ("draft_model_kv_reserve_percent", "[log]", SMALL.replace("devices", "kv_tokens_max = 4096\nkv_reserve_percent = 10\ndevices") + 'draft_model = "small"\n[log]', "37:1", "model[1].kv_reserve_percent", "remove it here"),
    ("draft_model_output_check", "[log]", SMALL.replace("devices", "kv_tokens_max = 4096\nvalidate_output_consistency = 10\ndevices") + 'draft_model = "small"\n[log]', "37:1", "model[1].validate_output_consistency", "remove it here"),
    ("output_check_true", "layers = ", "validate_output_consistency = true\nlayers = ", "21:31", "model[0].validate_output_consistency", "0..100"),
    ("speculation_model", "[log]", '[speculation]\nmodel = "main"\n[log]', "34:1", "'model'", "'method'"),
    ("speculation_ngrams", "[log]", "[speculation]\nngram_min = 5\nngram_max = 3\n[log]", "34:13", "speculation.ngram_min = 5", "ngram_max = 3"),
    ("key_twice", "port = 8080", "port = 8080\nport = 8081", "4:", "port", "not valid TOML"),
    ("table_twice", "[log]", "[server]", "33:", "server", "not valid TOML"),
    ("three_brackets", "[log]", "[[[log]]]", "33:", "log", "not valid TOML"),
    ("text_not_closed", '"127.0.0.1"', '"127.0.0.1', "2:", "host", "not valid TOML"),
    ("list_not_closed", '["a0", "a1"]', '["a0", "a1"', "21:", "layers", "not valid TOML"),
    ("value_missing", "port = 8080", "port =", "3:", "port", "not valid TOML"),
    ("equals_missing", "port = 8080", "port 8080", "3:", "port", "not valid TOML"),
    ("two_on_a_line", "port = 8080", "port = 8080 x = 1", "3:", "port", "not valid TOML"),
    ("zero_byte", "port = 8080", "port = 80\x0080", "3:10", "port", "zero byte"),
    ("not_utf8", '"127.0.0.1"', b'"\xff\xfe"', "2:", "host", "not valid TOML"),
    ("mark_in_the_middle", "[log]", b"\xef\xbb\xbf[log]", "33:1", "log", "byte order mark"),
    ("nested_too_deeply", "port = 8080", "port = " + "[" * 200 + "]" * 200, "3:", "port", "not valid TOML"),
    ("dotted_too_deeply", "port = 8080", "a" + ".a" * 5000 + " = 1", "3:", "a.a", "64 parts"),
    ("crlf_and_misspelt", "port = 8080", "prot = 8080", "3:1", "'prot'", "'port'"),
    ("mark_and_misspelt", "port = 8080", "prot = 8080", "3:1", "'prot'", "'port'"),
    ("empty", None, "", "1:1", "[[device]]", "at least one"),
]


def main():
    folder = pathlib.Path(__file__).parent / "broken"
    folder.mkdir(exist_ok=True)
    lines = ["# file\tplace\tkey\tright one; written by make_broken.py\n"]
    for name, find, replace, place, key, right in CASES:
        good = GOOD.encode()
        new = replace if isinstance(replace, bytes) else replace.encode()
        if find is None:
            text = new
        else:
            assert good.count(find.encode()) >= 1, name
            text = good.replace(find.encode(), new, 1)
        if name.startswith("crlf"):
            text = text.replace(b"\n", b"\r\n")
        if name.startswith("mark_and"):
            text = b"\xef\xbb\xbf" + text
        (folder / f"{name}.toml").write_bytes(text)
        lines.append(f"{name}.toml\t{place}\t{key}\t{right}\n")
    (folder / "expectations.tsv").write_text("".join(lines))


if __name__ == "__main__":
    main()
