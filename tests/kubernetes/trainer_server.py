"""What Kubeflow Trainer's controller answers to the progress of a TrainJob: a server with TLS."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/training/trainjobs/digits/status"


class Posted(NamedTuple):
    """One request."""

    path: str
    token: str
    kind: str
    status: dict[str, Any]


class TrainerServer:
    """Takes what is posted with `token`. `answers`: set while it answers at all."""

    def __init__(self, certificates: Path, token: str) -> None:
        self.token, self.posted = token, list[Posted]()
        self.answers = threading.Event()
        self.answers.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                token = self.headers["Authorization"].removeprefix("Bearer ")
                kind = self.headers["Content-Type"]
                server.posted.append(Posted(self.path, token, kind, json.loads(body)))
                server.answers.wait()
                known = token == server.token
                said = body if known else b'{"kind": "Status", "message": "Unauthorized"}'
                self.send_response(200 if known else 401)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, format: str, *args: object) -> None:
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._http.server_port}{PATH}"

    def __enter__(self) -> TrainerServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.answers.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
