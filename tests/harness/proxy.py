"""A TCP proxy, on loopback as a rule, whose wire a test can cut and mend."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

CHUNK_BYTES = 65536


class Proxy:
    """Forwards connections to `target`. One thread per direction; all end with `close`."""

    def __init__(
        self, target: int, host: str = "127.0.0.1", to: str = "127.0.0.1", port: int = 0
    ) -> None:
        """From this host and port (0: any) to the port `target` there; all in the network of the
        calling thread."""
        self._target = to, target
        self._listener = socket.create_server((host, port))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._deaf: set[socket.socket] = set()
        self._far: set[socket.socket] = set()
        """Those of the target's end."""
        self._cut = False
        self.turned_away = 0
        """How many connections broke at once."""
        self._threads = [self._start(self._accept)]

    def cut(self) -> None:
        """Every connection breaks, and new ones do at once."""
        with self._lock:
            self._cut = True
            for end in self._open:
                with suppress(OSError):  # the other side may have gone by itself
                    end.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def reset(self) -> None:
        """Every connection is reset, as by a router that forgot them, and new ones break too."""
        with self._lock:
            self._cut = True
            for end in self._open:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with suppress(OSError):  # the other side may have gone by itself
                    end.shutdown(socket.SHUT_RD)  # who reads it closes it, which resets it now
            self._open.clear()

    def deafen(self) -> None:
        """The connections that are open stay open, and nothing gets through them any more."""
        with self._lock:
            self._deaf |= self._open

    def mute(self) -> None:
        """What the target says on the connections that are open gets lost, not what it is told."""
        with self._lock:
            self._deaf |= self._open & self._far

    def cut_off(self) -> None:
        """What is open stays open and deaf, and new connections break at once."""
        with self._lock:
            self._deaf |= self._open
            self._cut = True

    def mend(self) -> None:
        """New connections get through again."""
        with self._lock:
            self._cut = False

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, body: object, *args: socket.socket) -> threading.Thread:
        assert callable(body)
        thread = threading.Thread(target=body, args=args, daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._connect(near)

    def _connect(self, near: socket.socket) -> None:
        with self._lock:
            if not self._cut:
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    return
                self._open |= {near, far}
                self._far.add(far)
                self._threads += [
                    self._start(self._forward, near, far),
                    self._start(self._forward, far, near),
                ]
                return
            self.turned_away += 1
        near.close()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        """Until either end is gone; then both are. Each thread closes the end it reads."""
        try:
            while data := source.recv(CHUNK_BYTES):
                if source not in self._deaf:
                    sink.sendall(data)
        except OSError:
            pass
        with self._lock:
            if sink in self._open:
                try:
                    sink.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self._open.discard(source)
            self._deaf.discard(source)
            self._far.discard(source)
            source.close()
