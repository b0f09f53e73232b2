"""What came back: of a request, a stream, a command."""
import json


class Skip(Exception):
    pass


class Resp:
    def __init__(self, status, headers, body, secs):
        self.status, self.headers, self.body, self.secs = status, headers, body, secs

    @property
    def text(self):
        return self.body.decode("utf-8", "replace")

    @property
    def json(self):
        try:
            return json.loads(self.body.decode("utf-8"))
        except Exception as e:
            raise AssertionError(f"body is not JSON in UTF-8 ({e}): {self.body[:200]!r}")


class Stream:
    """A server-sent event answer. chunks: parsed JSON; times: seconds since the request began."""
    def __init__(self):
        self.status, self.headers, self.body = 0, {}, b""
        self.chunks, self.times, self.done, self.after_done, self.bad = [], [], False, 0, []
        self.closed_early, self.secs = False, 0.0

    def text(self, index=0):
        out = []
        for c in self.chunks:
            for ch in c.get("choices", []):
                if ch.get("index", 0) == index:
                    out.append(ch["text"] if "text" in ch and ch["text"] is not None
                               else (ch.get("delta") or {}).get("content") or "")
        return "".join(out)

    def finish(self, index=0):
        r = [ch.get("finish_reason") for c in self.chunks for ch in c.get("choices", [])
             if ch.get("index", 0) == index and ch.get("finish_reason")]
        return r[-1] if r else None

    def usage(self):
        u = [c["usage"] for c in self.chunks if c.get("usage")]
        return u[-1] if u else None


class Proc:
    def __init__(self, rc, out, err, secs, rss_mb, timed_out):
        self.rc, self.out, self.err, self.secs, self.rss_mb, self.timed_out = rc, out, err, secs, rss_mb, timed_out

    @property
    def msg(self):
        return (self.err + b"\n" + self.out).decode("utf-8", "replace")
