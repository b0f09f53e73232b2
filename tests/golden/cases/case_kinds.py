"""The kinds of check."""
import base64, hashlib, json, os, re, shutil, signal, socket, subprocess, threading, time

from case_answers import Skip
from case_names import PATHS, CLI_SECONDS


def text_of(inp):
    if "bytes_b64" in inp:
        return base64.b64decode(inp["bytes_b64"])
    if "text_expr" in inp:
        return eval(inp["text_expr"], {"__builtins__": {}}).encode("utf-8")
    return inp["text"].encode("utf-8")


def k_tokenize(h, c):
    inp, exp = c["input"], c["expected"]
    verb = "tokenize_plain" if inp.get("mode") == "plain" else "tokenize"
    p = h.run(verb, text_of(inp), timeout=max(CLI_SECONDS, 4 * exp.get("max_seconds", 1)))
    check_ids(h, p, exp)


def k_tokenize_json(h, c):
    d = os.path.dirname(h.write("tok/tokenizer.json", json.dumps(c["input"]["tokenizer_json"])))
    p = h.run("tokenize_json", text_of(c["input"]), dir=d)
    check_ids(h, p, c["expected"])


def check_ids(h, p, exp):
    h.clean(p)
    if exp.get("ok_or_message"):
        if p.rc != 0:
            assert re.search(r"(?i)utf-?8|encod", p.msg), f"refused without naming UTF-8: {p.msg[:200].strip()!r}"
            return
        ids = json.loads(p.out)
        assert isinstance(ids, list) and all(isinstance(i, int) and i >= 0 for i in ids), "not a JSON list of ids"
    else:
        assert p.rc == 0, f"exit {p.rc}: {p.msg[:200].strip()}"
        try:
            ids = json.loads(p.out)
        except Exception:
            raise AssertionError(f"the output is not JSON: {p.out[:120]!r}")
        if "ids" in exp:
            assert ids == exp["ids"], f"ids {str(ids)[:160]} are not {str(exp['ids'])[:160]}"
        if "ids_any" in exp:
            assert ids in exp["ids_any"], f"ids {str(ids)[:160]} are none of {str(exp['ids_any'])[:200]}"
        if "count" in exp:
            assert len(ids) == exp["count"], f"{len(ids)} ids, not {exp['count']}"
        if "sha256_ids" in exp:
            assert hashlib.sha256(json.dumps(ids, separators=(",", ":")).encode()).hexdigest() == exp["sha256_ids"], "other ids than the reference (hash)"
    if "max_seconds" in exp:
        assert p.secs <= exp["max_seconds"] + 2, f"took {p.secs:.1f} s, limit {exp['max_seconds']} s (and 2 s for the start)"


def k_template(h, c):
    inp, exp = c["input"], c["expected"]
    v = {k: x for k, x in inp["vars"].items() if k not in ("bos_token", "eos_token") or "template_text" in inp}
    only = set(v) <= {"messages", "add_generation_prompt"} and v.get("add_generation_prompt", True) is True
    stdin = json.dumps(v["messages"] if only else v)
    if "template_text" in inp:
        p = h.run("template_text", stdin, file=h.write("t.jinja", inp["template_text"]))
    else:
        p = h.run("template", stdin)
    h.clean(p)
    if "error_re" in exp:
        h.refused(p, exp["error_re"])
        return
    assert p.rc == 0, f"exit {p.rc}: {p.msg[:250].strip()}"
    out = p.out.decode("utf-8")
    if "text_re" in exp:
        assert re.search(exp["text_re"], out), f"{out[:120]!r} does not match {exp['text_re']!r}"
    else:
        assert out == exp["text"], f"{out[:200]!r} is not {exp['text'][:200]!r}"


def k_py(h, c):
    env = {"H": h, "P": PATHS, "case": c, "json": json, "time": time, "re": re, "os": os, "struct": __import__("struct"),
           "base64": base64, "socket": socket, "signal": signal, "math": __import__("math"), "random": __import__("random"),
           "Skip": Skip, "shutil": shutil, "subprocess": subprocess, "threading": threading, "input_": c["input"], "expected": c["expected"]}
    src = c["check"]["code"]
    if c["input"].get("make"):
        exec(compile(c["input"]["make"], c["id"] + ":make", "exec"), env)
    exec(compile(src, c["id"], "exec"), env)


def k_unit(h, c):
    raise Skip("a value table for unit tests, no command or request")


KINDS = {"tokenize": k_tokenize, "tokenize_json": k_tokenize_json, "template": k_template, "py": k_py, "unit": k_unit}
