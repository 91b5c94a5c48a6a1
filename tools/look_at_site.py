"""Pictures of the site of the documentation in a real Chromium, and a search in it.

    python -m tools.look_at_site [FOLDER]    after `make docs`; default: site-pictures

Ends with 1 if a page does not load, is not dark where it should be, scrolls sideways, or a search
finds nothing.
Chromium is driven by its DevTools protocol over two pipes (`--remote-debugging-pipe`).
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "site"
TRIES, TRY_MS = 100, 100
"""A condition of a page is looked at so often, in these intervals of the page's own clock."""
PAGES = ("", "by-task/", "watching/", "design/taking-over/", "reference/worker/")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on loopback; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


class Browser:
    """A Chromium without a window. Each page is the first visit of a new person."""

    def __init__(self, program: str, profile: str) -> None:
        """Start it. Blocks until it answers."""
        child_reads, self._to = os.pipe()
        self._from, child_writes = os.pipe()
        command = [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
        ]
        line = f'exec "$@" 3<&{child_reads} 4>&{child_writes}'
        self._process = subprocess.Popen(
            ["bash", "-c", line, "chromium", *command, f"--user-data-dir={profile}"],
            pass_fds=(child_reads, child_writes),
            stderr=subprocess.DEVNULL,
        )
        os.close(child_reads)
        os.close(child_writes)
        self._number, self._session, self._rest = 0, "", b""

    def call(self, method: str, **parameters: object) -> Any:
        """Return the result of a method of the DevTools protocol. Raises RuntimeError."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _read(self) -> bytes:
        while b"\0" not in self._rest:
            if not (piece := os.read(self._from, 1 << 16)):
                raise RuntimeError("chromium has ended")
            self._rest += piece
        message, self._rest = self._rest.split(b"\0", 1)
        return message

    def _visit(self) -> None:
        self._session = ""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        return found["result"].get("value")

    def wait(self, condition: str) -> bool:
        """Wait until a condition in the page is true. Returns whether it became so."""
        look = f"new Promise(r => setTimeout(() => r(!!({condition})), {TRY_MS}))"
        # A page that is left meanwhile answers with nothing.
        return any(self.value(look) is True for _ in range(TRIES))

    def open(self, url: str, *, width: int, dark: bool = False) -> bool:
        """Load a page. Returns whether it has a heading, and the colours that were asked for."""
        self._visit()  # The theme keeps the colours of the first visit.
        scheme = "dark" if dark else "light"
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=media)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Page.navigate", url=url)
        palette = "slate" if dark else "default"
        return self.wait(
            f"location.href == {json.dumps(url)} && document.readyState == 'complete'"
            f" && document.body.dataset.mdColorScheme == '{palette}'"
            " && document.querySelector('h1')"
        )

    def picture(self, path: Path) -> None:
        """Write what the page shows."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        """End it. Blocks until it has."""
        self._process.terminate()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)


def look(browser: Browser, site: str, folder: Path) -> list[str]:
    """Write the pictures. Returns what is wrong."""
    wrong = []
    for page in PAGES:
        name = page.strip("/").replace("/", "-") or "index"
        for look_, width, dark in (
            ("light", 1280, False),
            ("dark", 1280, True),
            ("narrow", 420, False),
        ):
            if not browser.open(site + page, width=width, dark=dark):
                wrong.append(f"{page or 'index'} does not load ({look_})")
            browser.picture(folder / f"{name}-{look_}.png")
            if browser.value("document.documentElement.scrollWidth > innerWidth"):
                wrong.append(f"{page or 'index'} scrolls sideways ({look_})")
    browser.open(site + "?q=drain", width=1280)
    if not browser.wait("document.querySelectorAll('.md-search-result__item').length > 2"):
        wrong.append("a search for 'drain' finds nothing")
    browser.picture(folder / "search.png")
    return wrong


def main() -> int:
    """Return the command."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site-pictures")
    if (program := which("chromium")) is None:
        print("no chromium is installed: see tools/install_chromium.sh")
        return 0
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, served(SITE) as site:
        browser = Browser(program, profile)
        try:
            wrong = look(browser, site, folder)
        finally:
            browser.close()
    print(
        "\n".join(wrong) or f"{len(PAGES)} pages look right in Chromium, and a search finds pages"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
