"""What a command line asks of this machine: programs, devices, and what packages offer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from rallypoint.cli.values import EVENT_HANDLERS


class Machine(Struct, frozen=True):
    """The questions that a command line asks of this machine; tests answer them themselves."""

    count_workers: Callable[[str, str, Mapping[str, str]], int]
    """(cpu | gpu | xpu | auto, interpreter, environment) -> workers; 0: no such device."""
    find_program: Callable[[str], str | None]
    script_exists: Callable[[str], bool]
    """Whether Python could run it: a file, or a directory with a __main__.py."""
    random_id: Callable[[], str]
    interpreter: str
    handlers: Callable[[], Sequence[str]] = lambda: ("file",)
    """The rendezvous backends that are known besides the coordinator's."""
    logs_specs: Callable[[], Sequence[str]] = lambda: ("default",)
    """The names that --logs-specs takes."""
    event_handlers: Callable[[], Sequence[str]] = lambda: EVENT_HANDLERS
    path_kind: Callable[[str], str] = lambda path: ""
    """`file`, `directory` or nothing: for a better word on a mistake."""


def this_machine() -> Machine:
    """Asks the real one, each answer looked up only when it is needed."""
    import sys

    return Machine(
        count_workers=_count_workers,
        find_program=_find_program,
        script_exists=_script_exists,
        random_id=_random_id,
        interpreter=sys.executable,
        handlers=_handlers,
        logs_specs=_logs_specs,
        event_handlers=_event_handlers,
        path_kind=_path_kind,
    )


def _find_program(name: str) -> str | None:
    from shutil import which

    return which(name)


def _script_exists(path: str) -> bool:
    return os.path.exists(os.path.join(path, "__main__.py") if os.path.isdir(path) else path)


def _path_kind(path: str) -> str:
    if os.path.isdir(path):
        return "directory"
    return "file" if os.path.exists(path) else ""


def _handlers() -> Sequence[str]:
    from rallypoint.rendezvous.registry import known_backends

    return known_backends()


def _logs_specs() -> Sequence[str]:
    from rallypoint.process.logs.specs import known_logs_specs

    return known_logs_specs()


def _event_handlers() -> Sequence[str]:
    from rallypoint.observe.event_handlers import known_event_handlers

    return known_event_handlers()


def _count_workers(word: str, interpreter: str, environ: Mapping[str, str]) -> int:
    from rallypoint.cli.devices import count_workers

    return count_workers(word, interpreter, environ)


def _random_id() -> str:
    """Short enough to read aloud: `job-` and 40 random bits in base 32."""
    bits = int.from_bytes(os.urandom(5), "big")
    letters = "abcdefghijkmnpqrstuvwxyz23456789"
    return "job-" + "".join(letters[bits >> shift & 31] for shift in range(35, -1, -5))
