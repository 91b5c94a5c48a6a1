"""The environment of commands under `rallypoint shim`, and of their workers without it.

PATH begins with a directory that has a `torchrun`, PYTHONPATH with the same one, which has a
`sitecustomize`. It is in the installation: nothing has to be removed, and a command in the
background keeps its environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from shutil import which

ENTRIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "entries")
INTERPRETER = "RALLYPOINT_SHIM"
"""The name of the variable with the path of the Python that has Rallypoint."""
_LISTS = ("PATH", "PYTHONPATH")
_USUAL_PATH = os.defpath


def enter(environ: Mapping[str, str], interpreter: str) -> dict[str, str]:
    """Return the environment of a command under the shim, for this interpreter of Rallypoint."""
    bare = without_shim(environ)
    search = {"PATH": bare.get("PATH", _USUAL_PATH), "PYTHONPATH": bare.get("PYTHONPATH", "")}
    first = {name: os.pathsep.join(filter(None, (ENTRIES, search[name]))) for name in _LISTS}
    return bare | first | {INTERPRETER: interpreter}


def without_shim(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment as it was before the shim; unchanged if there is none."""
    bare = {name: value for name, value in environ.items() if name != INTERPRETER}
    for name in _LISTS:
        parts = bare.get(name, "").split(os.pathsep)
        if ENTRIES in parts:
            bare[name] = os.pathsep.join(part for part in parts if part != ENTRIES)
    if INTERPRETER in environ and not bare.get("PYTHONPATH", "x"):
        del bare["PYTHONPATH"]
    return bare


@contextmanager
def left(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Remove the shim from an environment during the block, so that workers do not inherit it."""
    before = {name: environ[name] for name in (*_LISTS, INTERPRETER) if name in environ}
    bare = without_shim(environ)
    for name in before.keys() - bare.keys():
        del environ[name]
    environ.update(bare)
    try:
        yield
    finally:
        environ.update(before)


def next_torchrun(environ: Mapping[str, str]) -> str | None:
    """Return the path of the torchrun that the shim hides; None: PATH has none."""
    return which("torchrun", path=without_shim(environ).get("PATH", _USUAL_PATH))


def interpreter_of(program: str) -> str:
    """Return the path in a program's `#!` line, if that is a Python that can be run; else empty."""
    try:
        with open(program, "rb") as file:
            first = file.readline(4096)
    except OSError:
        return ""
    words = os.fsdecode(first).removeprefix("#!").split()
    is_python = first.startswith(b"#!/") and len(words) == 1 and "python" in words[0]
    return words[0] if is_python and os.access(words[0], os.X_OK) else ""
