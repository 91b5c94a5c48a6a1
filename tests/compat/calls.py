"""Calls at the edges of what torch's launcher takes: what each returns, or which error it raises.

Each line of calls.txt is an expression over the modules of `MODULES`, evaluated with torch's and
with ours.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MODULES = {
    "agent": "elastic.agent.server",
    "errors": "elastic.multiprocessing.errors",
    "events": "elastic.events",
    "launch": "launch",
    "local": "elastic.agent.server.local_elastic_agent",
    "launcher": "launcher",
    "metrics": "elastic.metrics",
    "mp": "elastic.multiprocessing",
    "rdzv": "elastic.rendezvous",
    "dynamic": "elastic.rendezvous.dynamic_rendezvous",
    "registry": "elastic.rendezvous.registry",
    "run": "run",
    "stores": "",
    "timer": "elastic.timer",
    "utils": "elastic.rendezvous.utils",
}
_LINES = Path(__file__).with_suffix(".txt").read_text().splitlines()
CALLS = tuple(line for line in _LINES if line and line[0] != "#")
_GENERAL = ("Exception", "BaseException", "object")


class _Backend:
    """A backend without a state."""

    name = "backend"

    def get_state(self) -> None:
        return None

    def set_state(self, state: bytes, token: object = None) -> None:
        return None


def outcomes(
    find: Callable[[str], Any], like: Mapping[str, object] | None = None
) -> dict[str, object]:
    """By call: what it returns, or `raises` and Python's own type of its error. `find` gives the
    module of a path below `torch.distributed`. An error that is also of the type that `like` says
    has that type."""
    names = {name: find(path) for name, path in MODULES.items()}
    with _scene() as helpers:
        wanted = like or {}
        return {call: _outcome(call, names | helpers, wanted.get(call)) for call in CALLS}


@contextmanager
def _scene() -> Iterator[dict[str, object]]:
    """What calls use besides the modules, in a folder that has the script `a.py`."""
    kept: list[socket.socket] = []

    def listening() -> int:
        kept.append(socket.create_server(("127.0.0.1", 0)))
        return os.dup(kept[-1].fileno())

    def listened() -> int:
        kept.append(socket.create_server(("127.0.0.1", 0)))
        return int(kept[-1].getsockname()[1])

    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("a.py").touch()
        yield {
            "timedelta": timedelta,
            "backend": _Backend,
            "listening": listening,
            "listened": listened,
        }
    for each in kept:
        each.close()


def _outcome(call: str, names: dict[str, Any], wanted: object) -> object:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            return _shown(eval(call, dict(names)))
        except BaseException as error:
            kinds = [k.__name__ for k in type(error).__mro__ if k.__module__ == "builtins"]
            raised = [f"raises {name}" for name in kinds if name not in _GENERAL]
            return wanted if wanted in raised else (raised or ["raises Exception"])[0]


def _shown(value: object) -> object:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _shown(each) for key, each in value.items()}
    if isinstance(value, bool | int | float | str | None):
        return value
    return repr(value) if isinstance(value, bytes | timedelta) else type(value).__name__
