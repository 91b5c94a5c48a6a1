"""What Kubeflow Trainer's controller answers to the progress of a TrainJob: a server with TLS."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.http_thread import HttpThread

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/training/trainjobs/digits/status"


class Posted(NamedTuple):
    """One request."""

    path: str
    token: str
    kind: str
    status: dict[str, Any]


class TrainerServer(HttpThread):
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
        super().__init__(Handler, context)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}{PATH}"

    def __exit__(self, *ended: Any) -> None:
        self.answers.set()
        super().__exit__(*ended)
