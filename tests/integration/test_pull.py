"""`luna pull` of a URL: resuming, redirects, and servers that get either wrong."""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

# The smallest file that is a model to the reader: version 3, no tensor, one text, and some padding
# so that there is something to resume.
KEY, TEXT = b"general.name", b"tiny" * 20_000
FILE = (
    b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(KEY)) + KEY
    + struct.pack("<IQ", 8, len(TEXT)) + TEXT
)  # fmt: skip
HALF = len(FILE) // 2


class Handler(BaseHTTPRequestHandler):
    """Answers by path; what was asked is kept by the server."""

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        asked = self.headers.get("range")
        self.server.asked.append((self.path, asked, self.headers["host"]))
        first = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        last, total = len(FILE) - 1, len(FILE)
        folder, _, name = self.path.rpartition("/")
        if folder.startswith("/to"):
            return self.answer(302, location=self.server.redirects[folder])
        if name != "m.gguf" or folder not in ("", "/deep/down", "/other", "/shifted", "/silent", "/whole"):
            return self.answer(404)
        if not asked or folder == "/whole":
            return self.answer(200, FILE)
        if first >= total:
            return self.answer(416, content_range=f"bytes */{total}")
        if folder == "/shifted":
            return self.answer(206, FILE, content_range=f"bytes 0-{last}/{total}")
        if folder == "/silent":
            return self.answer(206, FILE[first:])
        return self.answer(206, FILE[first:], content_range=f"bytes {first}-{last}/{total}")


@pytest.fixture(scope="module")
def files() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.redirects = {
        "/to/here": "m.gguf?ignored", "/to/up": "../../deep/down/m.gguf", "/to/root": "/other/m.gguf",
        "/to/host": f"//127.0.0.1:{server.server_port}/m.gguf", "/to/self": "/to/self/m.gguf",
        "/to/file": "file:///etc/passwd",
    }
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture
def pull(files: ThreadingHTTPServer, run_luna: Callable, tmp_path: Path) -> Callable:
    """Pulls a path with so many bytes already there; gives the run and where the file ends up."""
    files.asked = []
    target = tmp_path / "luna" / "models" / "m" / "m.gguf"

    def run(path: str, part: bytes = b"") -> tuple:
        if part:
            target.parent.mkdir(parents=True, exist_ok=True)
            Path(f"{target}.arrived.part").write_bytes(part)
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        digest = hashlib.sha256(FILE).hexdigest()
        done = run_luna("pull", files.url + path, "--sha256", digest, env=environment)
        return done, target

    return run


def test_a_file_comes_whole_and_says_whom_it_asked(pull: Callable, files: ThreadingHTTPServer) -> None:
    done, target = pull("/m.gguf")
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == FILE
    assert files.asked == [("/m.gguf", None, f"127.0.0.1:{files.server_port}")]


def test_a_part_is_continued_where_it_ends(pull: Callable, files: ThreadingHTTPServer) -> None:
    done, target = pull("/m.gguf", FILE[:HALF])
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == FILE
    assert files.asked[0][1] == f"bytes={HALF}-"


def test_a_part_that_is_the_whole_needs_no_more(pull: Callable) -> None:
    done, target = pull("/m.gguf", FILE)
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == FILE


def test_a_server_that_cannot_continue_sends_all_again(pull: Callable) -> None:
    done, target = pull("/whole/m.gguf", FILE[:HALF])
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == FILE


@pytest.mark.parametrize("path", ["/shifted/m.gguf", "/silent/m.gguf"])
def test_bytes_from_elsewhere_are_not_put_behind_a_part(pull: Callable, path: str) -> None:
    done, target = pull(path, FILE[:HALF])
    assert done.returncode == 1 and "Content-Range" in done.stderr and "remove" in done.stderr
    assert not target.exists()
    assert Path(f"{target}.arrived.part").read_bytes() == FILE[:HALF]


def test_a_part_longer_than_the_file_is_not_taken_for_it(pull: Callable) -> None:
    done, target = pull("/m.gguf", FILE + b"x")
    assert done.returncode == 1 and "Content-Range" in done.stderr
    assert not target.exists()


@pytest.mark.parametrize(
    ("folder", "ends_at"),
    [("/to/up", "/deep/down/m.gguf"), ("/to/root", "/other/m.gguf"), ("/to/host", "/m.gguf")],
)
def test_redirects_may_leave_out_what_stays(
    pull: Callable, files: ThreadingHTTPServer, folder: str, ends_at: str
) -> None:
    done, target = pull(f"{folder}/m.gguf")
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == FILE
    assert files.asked[-1][0] == ends_at


@pytest.mark.parametrize("folder", ["/to/self", "/to/file", "/to/here"])
def test_redirects_that_lead_nowhere_are_errors(pull: Callable, folder: str) -> None:
    done, target = pull(f"{folder}/m.gguf")
    assert done.returncode == 1 and "redirect" in done.stderr
    assert not target.exists()
