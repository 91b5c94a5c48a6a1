"""The HTTP requests by which `TrainerStatus` reports progress to Kubeflow Trainer. For a thread."""

from __future__ import annotations

from urllib.parse import urlsplit

from rallypoint.agent.environ import ProgressReceiver
from rallypoint.core.text import shown
from rallypoint.register.http import HttpConnection, HttpError, HttpRequest, ServerKind, tls_context

LIMIT_S = 5.0
_KIND = ServerKind("no Kubeflow Trainer", "http://...", "https://...")
_PORTS = {"http": 80, "https": 443}


class NotPostedError(Exception):
    """A status did not arrive; the text says why, for a person."""


def post(receiver: ProgressReceiver, body: bytes, limit_s: float = LIMIT_S) -> None:
    """Send one status to Kubeflow Trainer, with the token that the receiver's file has now.

    The token changes about once an hour. Blocks for at most `limit_s`, and while a name is looked
    up. Raises NotPostedError.
    """
    try:
        status, said = _asked(receiver, body, limit_s)
    except (OSError, HttpError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        if (path := getattr(error, "filename", None)) is not None:
            why = f"{path}: {why}"
        raise _not_posted(receiver, why) from error
    if status != 200:
        raise _not_posted(receiver, f"it answers {status} ({shown(said)})")


def _not_posted(receiver: ProgressReceiver, why: str) -> NotPostedError:
    return NotPostedError(f"progress can't be posted to {receiver.origin}: {why}")


def _asked(receiver: ProgressReceiver, body: bytes, limit_s: float) -> tuple[int, str]:
    """Send the request, and return the status and the text of the answer."""
    url = urlsplit(receiver.url)
    if url.scheme not in _PORTS or not url.hostname:
        raise ValueError("is no URL like https://HOST:8082/PATH")
    where = url.netloc if url.port else f"{url.netloc}:{_PORTS[url.scheme]}"
    headers = {"Content-Type": "application/json"}
    if receiver.token_file:
        with open(receiver.token_file) as file:
            headers["Authorization"] = f"Bearer {file.read().strip()}"
    tls = tls_context(receiver.ca_cert) if url.scheme == "https" else None
    path = url._replace(scheme="", netloc="", fragment="").geturl() or "/"
    connection = HttpConnection(where, tls, _KIND)
    try:
        answer = connection.ask(HttpRequest("POST", path, body, headers), limit_s)
    finally:
        connection.close()
    return answer.status, answer.data[:200].decode("utf-8", "replace")
