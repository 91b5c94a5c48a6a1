"""Tells over HTTP whether an agent is alive.

(`--metrics-port` and TORCHELASTIC_HEALTH_CHECK_PORT have the agent of a job answer such checks by
itself.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer


class HealthCheckServer:
    """A server that answers GET and HEAD of any path with 200 while the agent is alive, else 503.

    The agent is alive if the time that `alive_callback()` returns, in Unix seconds, is no older
    than `timeout` seconds. Torch's class of this name does nothing unless it is overridden.

    The server listens at `port` (0: any) of all addresses of this machine from `start` to `stop`.
    """

    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        self._alive_callback, self._port, self._timeout = alive_callback, port, timeout
        self._server: ThreadingHTTPServer | None = None

    @property
    def alive_callback(self) -> Callable[[], int]:
        """The function that returns the time of the agent's last progress, in Unix seconds."""
        return self._alive_callback

    @property
    def port(self) -> int:
        """The port that the server listens on; before `start`, the port that was given."""
        return self._port if self._server is None else int(self._server.server_address[1])

    def is_alive(self) -> bool:
        """Return whether the last progress is no older than the timeout."""
        return time.time() - self._alive_callback() <= self._timeout

    def start(self) -> None:
        """Listen in a thread, and return at once; do nothing if it listens already.

        Raises OSError if the port is taken.
        """
        if self._server is not None:
            return
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        answers_well = self.is_alive

        class Handler(BaseHTTPRequestHandler):
            timeout = 5.0
            """The number of seconds after which a connection without a request is closed."""

            def do_GET(self) -> None:  # Its name in http.server.
                """Answer with 200 while the agent is alive, else with 503; no body."""
                self.send_response(200 if answers_well() else 503)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                """Write no log line for a check."""

        self._server = ThreadingHTTPServer(("", self._port), Handler)
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.name = "rallypoint-health-checks"
        thread.start()

    def stop(self) -> None:
        """Close the port. Blocks for half a second at most. May be called again."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


def create_healthcheck_server(
    alive_callback: Callable[[], int], port: int, timeout: int
) -> HealthCheckServer:
    """Return a `HealthCheckServer` that is not started yet."""
    return HealthCheckServer(alive_callback, port, timeout)
