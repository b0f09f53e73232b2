"""Requests of the cases, and what they say of the answers."""
import http.client, json, re, socket, threading, time

from case_answers import Skip, Resp, Stream
from case_names import PATHS, METRICS, HEALTH_SECONDS


class HttpHelper:
    # ---- HTTP
    def _headers(self, headers, key):
        h = {"Content-Type": "application/json"}
        if key == "good" and self.a.key:
            h["Authorization"] = "Bearer " + self.a.key
        elif key == "bad":
            h["Authorization"] = "Bearer wrong-" + (self.a.key or "key")
        elif key not in ("good", "none"):
            h["Authorization"] = key
        h.update(headers or {})
        return {k: v for k, v in h.items() if v is not None}

    def req(self, method, path, body=None, headers=None, key="good", timeout=120):
        c = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        t0 = time.monotonic()
        try:
            if isinstance(body, str):
                body = body.encode("utf-8")
            c.request(method, path, body=body, headers=self._headers(headers, key))
            r = c.getresponse()
            b = r.read()
            return Resp(r.status, {k.lower(): v for k, v in r.getheaders()}, b, time.monotonic() - t0)
        finally:
            c.close()

    def get(self, path, **k):
        return self.req("GET", path, **k)

    def post(self, path, obj, **k):
        return self.req("POST", path, body=json.dumps(obj), **k)

    def chat(self, content="Hi", **f):
        k = {x: f.pop(x) for x in ("headers", "key", "timeout") if x in f}
        b = {"model": self.model, "messages": content if isinstance(content, list) else [{"role": "user", "content": content}],
             "max_tokens": 8, "temperature": 0}
        b.update(f)
        return self.post(PATHS["chat"], {x: y for x, y in b.items() if y is not ...}, **k)

    def complete(self, prompt="Hi", **f):
        k = {x: f.pop(x) for x in ("headers", "key", "timeout") if x in f}
        b = {"model": self.model, "prompt": prompt, "max_tokens": 8, "temperature": 0}
        b.update(f)
        return self.post(PATHS["completions"], {x: y for x, y in b.items() if y is not ...}, **k)

    def ok(self, r):
        assert r.status == 200, f"status {r.status}: {r.text[:300]}"
        return r.json

    def content(self, r, i=0):
        ch = self.ok(r)["choices"][i]
        return ch["text"] if "text" in ch else (ch["message"]["content"] or "")

    def error(self, r, status=400):
        """The OpenAI error shape with the given status (or one of a list)."""
        st = status if isinstance(status, (list, tuple)) else [status]
        assert r.status in st, f"status {r.status}, not {st}: {r.text[:300]}"
        e = r.json.get("error")
        assert isinstance(e, dict) and isinstance(e.get("message"), str) and e["message"].strip(), f"no error object with a message: {r.text[:300]}"
        assert isinstance(e.get("type"), str) and e["type"], f"error has no type: {r.text[:300]}"
        assert "content-type" not in r.headers or "json" in r.headers["content-type"], f"content type {r.headers['content-type']}"
        return e

    def stream(self, path, obj, stop_after=None, stop_secs=None, headers=None, key="good", timeout=120, on_chunk=None, read_delay=0):
        """Sends obj with stream on; stop_after N chunks (or seconds) closes the connection."""
        s = Stream()
        c = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        t0 = time.monotonic()
        try:
            obj = dict(obj)
            obj.setdefault("stream", True)
            c.request("POST", path, body=json.dumps(obj).encode(), headers=self._headers(headers, key))
            if stop_secs is not None and stop_after is None:
                c.sock.settimeout(stop_secs)
            try:
                r = c.getresponse()
            except (socket.timeout, TimeoutError):
                if stop_secs is None:
                    raise
                s.closed_early = True
                return s
            s.status, s.headers = r.status, {k.lower(): v for k, v in r.getheaders()}
            if "text/event-stream" not in s.headers.get("content-type", ""):
                s.body = r.read()
                return s
            data = []
            while True:
                try:
                    line = r.readline()
                except (socket.timeout, TimeoutError):
                    if stop_secs is None:
                        raise
                    s.closed_early = True
                    return s
                s.body += line
                if not line:
                    break
                line = line.rstrip(b"\r\n")
                if line.startswith(b"data:"):
                    data.append(line[5:].lstrip(b" "))
                elif not line and data:
                    d = b"\n".join(data)
                    data = []
                    if d == b"[DONE]":
                        s.done = True
                        continue
                    if s.done:
                        s.after_done += 1
                    try:
                        s.chunks.append(json.loads(d.decode("utf-8")))
                        s.times.append(time.monotonic() - t0)
                    except Exception as e:
                        s.bad.append((d[:200], str(e)))
                    if on_chunk:
                        on_chunk(s)
                    if read_delay:
                        time.sleep(read_delay)
                    if stop_after is not None and len(s.chunks) >= stop_after:
                        s.closed_early = True
                        return s
                    if stop_secs is not None and time.monotonic() - t0 > stop_secs:
                        s.closed_early = True
                        return s
            return s
        finally:
            s.secs = time.monotonic() - t0
            c.close()

    def chat_stream(self, content="Hi", **f):
        k = {x: f.pop(x) for x in ("headers", "key", "timeout", "stop_after", "stop_secs", "on_chunk", "read_delay") if x in f}
        b = {"model": self.model, "messages": content if isinstance(content, list) else [{"role": "user", "content": content}],
             "max_tokens": 8, "temperature": 0}
        b.update(f)
        return self.stream(PATHS["chat"], {x: y for x, y in b.items() if y is not ...}, **k)

    def good_stream(self, s, done=True):
        assert s.status == 200, f"status {s.status}: {s.body[:300]!r}"
        assert not s.bad, f"chunk is not JSON in UTF-8: {s.bad[0]}"
        if done:
            assert s.done, "the stream did not end with [DONE]"
            assert s.after_done == 0, "data after [DONE]"
        return s

    def raw(self, parts, timeout=15, half_close=False, read=True):
        """Sends byte parts over one connection ((bytes, pause) or bytes); returns all bytes, and whether it was closed."""
        k = socket.create_connection((self.host, self.port), timeout=timeout)
        t0, got, closed = time.monotonic(), b"", False
        try:
            for p in parts if isinstance(parts, (list, tuple)) else [parts]:
                b, pause = p if isinstance(p, (list, tuple)) else (p, 0)
                try:
                    k.sendall(b if isinstance(b, bytes) else b.encode("latin-1"))
                except OSError:
                    closed = True
                    break
                time.sleep(pause)
            if half_close:
                try:
                    k.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
            while read and time.monotonic() - t0 < timeout:
                k.settimeout(max(0.05, timeout - (time.monotonic() - t0)))
                try:
                    b = k.recv(65536)
                except (socket.timeout, TimeoutError):
                    break
                except OSError:
                    closed = True
                    break
                if not b:
                    closed = True
                    break
                got += b
        finally:
            k.close()
        return got, closed, time.monotonic() - t0

    def statuses(self, data):
        return [int(x) for x in re.findall(rb"(?:^|\n|\}|\r)HTTP/1\.[01] (\d{3})", data)]

    def alive(self, why=""):
        try:
            r = self.req("GET", PATHS["health"], timeout=HEALTH_SECONDS)
        except Exception as e:
            raise AssertionError(f"the server does not answer {PATHS['health']} {why}: {e}")
        assert r.status == 200, f"{PATHS['health']} is {r.status} {why}"

    def together(self, jobs, timeout=300):
        """Runs functions at once; returns results or exceptions in order."""
        out = [None] * len(jobs)

        def go(i, f):
            try:
                out[i] = f()
            except BaseException as e:
                out[i] = e
        ts = [threading.Thread(target=go, args=(i, f), daemon=True) for i, f in enumerate(jobs)]
        for t in ts:
            t.start()
        end = time.monotonic() + timeout
        for t in ts:
            t.join(max(0, end - time.monotonic()))
        assert not any(t.is_alive() for t in ts), f"some of {len(jobs)} jobs did not end within {timeout} s"
        return out

    def results(self, outs):
        for o in outs:
            if isinstance(o, BaseException):
                raise AssertionError(f"a request failed: {type(o).__name__}: {o}")
        return outs

    def wait_for(self, f, secs, why):
        end = time.monotonic() + secs
        while True:
            v = f()
            if v:
                return v
            assert time.monotonic() < end, f"not within {secs} s: {why}"
            time.sleep(0.1)

    def listener(self):
        """A local TCP listener that counts connections; .port, .hits, .close()."""
        class L:
            pass
        l = L()
        l.s = socket.socket()
        l.s.bind(("127.0.0.1", 0))
        l.s.listen(16)
        l.port, l.hits = l.s.getsockname()[1], 0

        def run():
            while True:
                try:
                    c, _ = l.s.accept()
                except OSError:
                    return
                l.hits += 1
                try:
                    c.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    c.close()
                except OSError:
                    pass
        threading.Thread(target=run, daemon=True).start()
        l.close = l.s.close
        return l

    # ---- metrics
    def scrape(self):
        r = self.req("GET", PATHS["metrics"])
        if r.status in (404, 501):
            raise Skip("no metrics page")
        assert r.status == 200, f"metrics page is {r.status}"
        return r

    def parse_metrics(self, text):
        """{(name, labels): value}; raises on a line that is not in the text format."""
        out, types, order = {}, {}, []
        name_re, lab_re = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
        for i, line in enumerate(text.split("\n"), 1):
            if not line.strip() or line.startswith("# EOF"):
                continue
            if line.startswith("#"):
                m = re.match(r"# (HELP|TYPE) (\S+) ?(.*)$", line)
                if m and m.group(1) == "TYPE":
                    assert m.group(2) not in types, f"metrics line {i}: a second TYPE for {m.group(2)}"
                    assert m.group(3) in ("counter", "gauge", "histogram", "summary", "untyped", "unknown"), f"metrics line {i}: type {m.group(3)!r}"
                    types[m.group(2)] = m.group(3)
                continue
            m = re.match(rf"({name_re})(?:\{{((?:{lab_re}(?:,|$|(?=\}})))*)\}})? (\S+)( -?\d+)?$", line)
            assert m, f"metrics line {i} is not in the text format: {line[:150]!r}"
            labs = tuple(sorted(re.findall(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"', m.group(2) or "")))
            assert len({k for k, _ in labs}) == len(labs), f"metrics line {i}: a label is there twice"
            assert (m.group(1), labs) not in out, f"metrics line {i}: the series is there twice: {line[:150]!r}"
            out[(m.group(1), labs)] = float(m.group(3))
            order.append(m.group(1))
        self.types = types
        return out

    def metrics(self):
        return self.parse_metrics(self.scrape().text)

    def metric(self, role, m=None):
        m = self.metrics() if m is None else m
        v = [x for (n, l), x in m.items() if re.search(METRICS[role], n)]
        if not v:
            raise Skip(f"no metric for '{role}' (see METRICS in the runner)")
        return sum(v)
