"""The shelf of docs/registers.md: an HTTP server that keeps a value for each path, with an ETag.

python shelf_server.py            prints its port when it listens
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Lock

values: dict[str, tuple[str, bytes]] = {}
"""The ETag and the value, by path."""
tags, lock = count(1), Lock()


class Shelf(BaseHTTPRequestHandler):
    """Answers 200, 404, or 412 where the condition of a PUT does not hold."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        with lock:
            if self.path.endswith("/"):
                below = {path for path in values if path.startswith(self.path)}
                there = {path.removeprefix(self.path): values[path][0] for path in sorted(below)}
                self._answer(200, "", json.dumps(there).encode())
            elif found := values.get(self.path):
                self._answer(200, *found)
            else:
                self._answer(404)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        with lock:
            now = values.get(self.path, ("", b""))[0]
            wanted = self.headers.get("If-Match", "")
            if wanted != now or (now and self.headers.get("If-None-Match")):
                self._answer(412)
                return
            values[self.path] = tag, _ = f'"{next(tags)}"', data
            self._answer(200, tag)

    def _answer(self, status: int, tag: str = "", data: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shelf)
    print(server.server_port, flush=True)
    server.serve_forever()
