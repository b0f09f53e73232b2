"""Commands of the cases, and servers that they start."""
import os, re, resource, shlex, signal, socket, subprocess, tempfile, time

from case_answers import Skip, Proc
from case_names import CLI, BENCH_KEYS, PATHS, CHILD_AS_GB, CLI_SECONDS


class Served:
    def __init__(self, h, proc, port, log):
        self.h, self.proc, self.port, self.log = h, proc, port, log
        self.url, self.pid = f"http://127.0.0.1:{port}", proc.pid

    def children(self):
        out, todo = [], [self.pid]
        while todo:
            p = todo.pop()
            try:
                tasks = os.listdir(f"/proc/{p}/task")
            except OSError:
                continue
            for t in tasks:
                try:
                    with open(f"/proc/{p}/task/{t}/children") as f:
                        kids = [int(x) for x in f.read().split()]
                except OSError:
                    kids = []
                for k in kids:
                    if k not in out:
                        out.append(k)
                        todo.append(k)
        return out

    def log_text(self):
        with open(self.log, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def wait(self, secs):
        try:
            return self.proc.wait(secs)
        except subprocess.TimeoutExpired:
            return None

    def helper(self):
        return type(self.h)(self.h.a, self.url, self.h.model, self.h.dir)

    def __enter__(self):
        return self

    def __exit__(self, *a):
        kids = self.children()
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
            if self.wait(15) is None:
                self.proc.kill()
                self.wait(5)
        for k in kids:
            try:
                os.kill(k, signal.SIGKILL)
            except OSError:
                pass


class CommandHelper:
    # ---- commands
    def run(self, verb, stdin=b"", timeout=None, cwd=None, env=None, **sub):
        if verb in self.a.off:
            raise Skip(f"the verb '{verb}' is switched off")
        if not self.a.luna:
            raise Skip("no --luna")
        sub.setdefault("luna", self.a.luna)
        sub.setdefault("model_file", self.a.model_file or "")
        if any("{model_file}" in x for x in CLI[verb]) and not self.a.model_file:
            raise Skip("no --model-file")
        argv = [x.format(**sub) for x in CLI[verb]]
        if isinstance(stdin, str):
            stdin = stdin.encode("utf-8")
        timeout = timeout or CLI_SECONDS

        def lim():
            n = CHILD_AS_GB << 30
            resource.setrlimit(resource.RLIMIT_AS, (n, n))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        e = dict(os.environ)
        e.update(env or {})
        with tempfile.TemporaryFile() as fi, tempfile.TemporaryFile() as fo, tempfile.TemporaryFile() as fe:
            fi.write(stdin)
            fi.seek(0)
            t0 = time.monotonic()
            p = subprocess.Popen(argv, stdin=fi, stdout=fo, stderr=fe, preexec_fn=lim, cwd=cwd or self.dir, env=e)
            rss, late = 0, False
            while True:
                pid, st, ru = os.wait4(p.pid, os.WNOHANG)
                if pid:
                    p.returncode = os.waitstatus_to_exitcode(st)
                    rss = ru.ru_maxrss / 1024
                    break
                if time.monotonic() - t0 > timeout:
                    late = True
                    p.kill()
                    timeout += 1e9
                time.sleep(0.005)
            secs = time.monotonic() - t0
            fo.seek(0)
            fe.seek(0)
            return Proc(p.returncode, fo.read(), fe.read(), secs, rss, late)

    def clean(self, p, what="the command"):
        assert not p.timed_out, f"{what} ran into the time limit"
        assert p.rc >= 0 and p.rc not in (134, 136, 137, 139), f"{what} died by a signal (status {p.rc}): {p.msg[-300:].strip()}"

    def refused(self, p, pattern=None, what="the command"):
        self.clean(p, what)
        assert p.rc != 0, f"{what} took it (exit 0): {p.msg[:200].strip()}"
        assert p.msg.strip(), f"{what} gave no message"
        if pattern:
            assert re.search(pattern, p.msg), f"the message does not match {pattern!r}: {p.msg[:300].strip()}"

    def accepted(self, p, what="the command"):
        self.clean(p, what)
        assert p.rc == 0, f"{what} refused it (exit {p.rc}): {p.msg[:300].strip()}"

    def bench_value(self, out, key):
        v = out
        for k in BENCH_KEYS[key].split("."):
            assert isinstance(v, dict) and k in v, f"the bench JSON has no {BENCH_KEYS[key]}"
            v = v[k]
        return v

    def serve(self, config=None, wait=180, env=None, port=None, expect_up=True):
        if not self.a.serve:
            raise Skip("no --serve")
        if port is None:
            k = socket.socket()
            k.bind(("127.0.0.1", 0))
            port = k.getsockname()[1]
            k.close()
        cfg = self.write("serve.toml", config) if config is not None else (os.path.abspath(self.a.base_config) if self.a.base_config else "")
        if "{config}" in self.a.serve and not cfg:
            raise Skip("no --base-config")
        argv = shlex.split(self.a.serve.format(port=port, config=cfg, luna=self.a.luna or "", model_file=self.a.model_file or ""))
        log = self.path(f"serve-{port}.log")
        e = dict(os.environ)
        e.update(env or {})
        with open(log, "wb") as f:
            p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, env=e, start_new_session=True)
        s = Served(self, p, port, log)
        if expect_up:
            h, end = s.helper(), time.monotonic() + wait
            while True:
                try:
                    if h.req("GET", PATHS["health"], timeout=5).status == 200:
                        break
                except Exception:
                    pass
                if p.poll() is not None or time.monotonic() > end:
                    t = s.log_text()[-500:]
                    s.__exit__()
                    raise AssertionError(f"the server did not come up: {t}")
                time.sleep(0.2)
        return s

    # ---- small model files to damage

    def base_toml(self):
        if self.a.base_config:
            with open(self.a.base_config, encoding="utf-8") as f:
                return f.read()
        return '[server]\nport = 8080\n'
