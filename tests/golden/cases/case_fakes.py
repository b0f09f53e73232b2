"""Servers that answer wrongly, for the commands that ask servers."""
import json, socket, threading


class FakeHelper:
    def fake(self, handler):
        """A small local HTTP server for bench cases: handler(request_number, body, send) -> None."""
        import http.server
        n = [0]
        lock = threading.Lock()

        class Hd(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *a):
                pass

            def do_GET(self):
                b = json.dumps({"object": "list", "data": [{"id": "fake", "object": "model"}], "status": "ok"}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(b)))
                self.end_headers()
                self.wfile.write(b)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
                with lock:
                    i = n[0]
                    n[0] += 1

                class Send:
                    def error(s, status, text="no"):
                        b = json.dumps({"error": {"message": text, "type": "server_error"}}).encode()
                        self.send_response(status)
                        self.send_header("Content-Type", "application/json")
                        self.send_header("Content-Length", str(len(b)))
                        self.end_headers()
                        self.wfile.write(b)

                    def start(s):
                        self.send_response(200)
                        self.send_header("Content-Type", "text/event-stream")
                        self.send_header("Transfer-Encoding", "chunked")
                        self.end_headers()

                    def event(s, obj):
                        b = b"data: " + (obj if isinstance(obj, bytes) else json.dumps(obj).encode()) + b"\n\n"
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(b), b))
                        self.wfile.flush()

                    def delta(s, d, finish=None, **k):
                        o = {"id": f"c{i}", "object": "chat.completion.chunk", "created": 1, "model": "fake",
                             "choices": [{"index": 0, "delta": d, "finish_reason": finish}]}
                        o.update(k)
                        s.event(o)

                    def usage(s, prompt, out):
                        s.event({"id": f"c{i}", "object": "chat.completion.chunk", "created": 1, "model": "fake", "choices": [],
                                 "usage": {"prompt_tokens": prompt, "completion_tokens": out, "total_tokens": prompt + out}})

                    def end(s, done=True):
                        if done:
                            s.event(b"[DONE]")
                        self.wfile.write(b"0\r\n\r\n")
                        self.wfile.flush()

                    def drop(s):
                        self.close_connection = True
                        self.connection.shutdown(socket.SHUT_RDWR)
                try:
                    handler(i, body, Send())
                except OSError:
                    self.close_connection = True
        srv = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hd)
        srv.daemon_threads, srv.handle_error = True, lambda *a: None
        threading.Thread(target=srv.serve_forever, daemon=True).start()
        srv.url, srv.count = f"http://127.0.0.1:{srv.server_address[1]}", n
        return srv
