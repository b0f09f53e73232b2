"""A relay between processes and a TCP port of this machine: a cable that can go dead on either side."""

from __future__ import annotations

import contextlib
import socket
import threading


class Connection:
    """One that passes through the relay: two sockets and a thread for each direction."""

    def __init__(self, client: socket.socket, server: socket.socket, passes: threading.Event):
        self.sides = {"client": client, "server": server}
        self.passes_, self.is_half_open = passes, False
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self.pump_, args=(source, sink), daemon=True).start()

    def pump_(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                self.passes_.wait()
                if not self.is_half_open:
                    sink.sendall(piece)
        self.passes_.wait()  # an end is not heard of either
        if not self.is_half_open:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    def forget(self, side: str) -> None:
        """Ends it towards one side; the other one keeps a connection to nobody."""
        self.is_half_open = True
        with contextlib.suppress(OSError):
            self.sides[side].shutdown(socket.SHUT_RDWR)
        self.sides[side].close()

    def close(self) -> None:
        self.is_half_open = True
        for side in self.sides.values():
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()


class Relay:
    """Passes bytes both ways until it is told to be silent: then nothing passes, no end and no new connection."""

    def __init__(self, target_port: int):
        self.target_port_ = target_port
        self.listener_ = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener_.getsockname()[1]
        self.passes_ = threading.Event()
        self.passes_.set()
        self.connections: list[Connection] = []
        threading.Thread(target=self.accept_, daemon=True).start()

    def accept_(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener_.accept()
                threading.Thread(target=self.connect_, args=(client,), daemon=True).start()

    def connect_(self, client: socket.socket) -> None:
        self.passes_.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self.target_port_), timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        self.connections.append(Connection(client, server, self.passes_))

    def be_silent(self) -> None:
        self.passes_.clear()

    def pass_again(self) -> None:
        self.passes_.set()

    def forget(self, side: str) -> None:
        """Of all connections there are now."""
        for connection in self.connections:
            if not connection.is_half_open:
                connection.forget(side)

    def close(self) -> None:
        self.passes_.set()
        # Wakes the thread that accepts, which close() alone does not.
        with contextlib.suppress(OSError):
            self.listener_.shutdown(socket.SHUT_RDWR)
        self.listener_.close()
        for connection in self.connections:
            connection.close()
