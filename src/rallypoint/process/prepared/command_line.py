"""A Python command line that an existing process runs.

For the prepared process, whose interpreter may be older than the agent's and lack other packages:
it does what `python [options] script args` and `python [options] -m module args` do after their
start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

RUN_PATH = (
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""The code for `--run-path`, which Python gets with -c: it removes itself from the script's
sys.argv."""

_WITH_VALUE = ("-X", "-W")


class CommandLine(NamedTuple):
    """The parts of a Python command line.

    `kind` says what `name` is: a `script`, a `module`, or a `path` that runpy runs.
    """

    python: str
    options: tuple[str, ...]
    kind: str
    name: str
    arguments: tuple[str, ...]


def parse(argv: Sequence[str]) -> CommandLine | None:
    """Parse a command line of Python; None if an existing process can't run it.

    It can't run `sleep 1`, which is not Python's, nor `python -i`, nor `python -c` with any code
    but RUN_PATH.
    """
    program = os.path.basename(argv[0]) if argv else ""
    if "python" not in program and "pypy" not in program:
        return None
    place = 1
    while place < len(argv) and argv[place].startswith("-") and argv[place] not in ("-m", "-c"):
        place += 2 if argv[place] in _WITH_VALUE else 1
    options, rest = tuple(argv[1:place]), tuple(argv[place:])
    if "-" in options or "-i" in options:
        return None
    if rest[:1] == ("-m",) and len(rest) > 1:
        return CommandLine(argv[0], options, "module", rest[1], rest[2:])
    if rest[:2] == ("-c", RUN_PATH) and len(rest) > 2:
        return CommandLine(argv[0], options, "path", rest[2], rest[3:])
    if rest and rest[0] not in ("-c", "-m"):
        return CommandLine(argv[0], options, "script", rest[0], rest[1:])
    return None


def add_first_path(line: CommandLine) -> None:
    """Add the directory to sys.path that Python adds for this command line.

    Adds nothing where Python does not (its option -P).
    """
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, first_path(line))


def first_path(line: CommandLine) -> str:
    """Return the path that Python puts first into sys.path for this command line."""
    if line.kind == "module":
        return os.getcwd()
    if line.kind == "path":
        return ""
    if _holds_modules(line.name):
        return os.path.abspath(line.name)
    return os.path.dirname(os.path.realpath(line.name))


def run(line: CommandLine, argv: Sequence[str]) -> None:
    """Run the program as `__main__`, to its end; `argv` is the whole command."""
    sys.orig_argv = list(argv)
    sys.argv[:] = [line.name, *line.arguments]
    if line.kind == "module":
        _run_module(line.name)
    elif line.kind == "path" or line.name.endswith(".pyc"):
        import runpy

        runpy.run_path(line.name, run_name="__main__")
    elif _holds_modules(line.name):
        _run_main_of(os.path.abspath(line.name))
    else:
        _run_source(line.name)


def _run_module(name: str) -> None:
    """Run the module as `python -m` does.

    A missing module ends the process with one line.
    """
    import runpy

    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except ImportError as error:
        ours, trace = (__file__, runpy.run_module.__code__.co_filename), error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in ours:
            trace = trace.tb_next
        if trace is not None:
            raise  # A module that was found has raised it.
        sys.exit(f"{sys.executable}: {error}")


def _holds_modules(name: str) -> bool:
    """Return whether the path is a directory or an archive, which may hold modules."""
    if name.endswith((".py", ".pyc")):
        return False
    import zipfile

    return os.path.isdir(name) or zipfile.is_zipfile(name)


# In contrast to runpy, the next two leave sys.argv[0] as it was given, make `__file__` absolute,
# and run in a `__main__` that lasts, all as Python does.


def _run_main_of(path: str) -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("__main__", [path])
    if spec is None or spec.loader is None:
        sys.exit(f"{sys.executable}: can't find '__main__' module in {path!r}")
    main = sys.modules["__main__"] = module_from_spec(spec)
    spec.loader.exec_module(main)


def _run_source(name: str) -> None:
    import types
    from importlib.machinery import SourceFileLoader

    path = os.path.join(os.getcwd(), name)
    loader = SourceFileLoader("__main__", path)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __loader__=loader, __cached__=None, __annotations__={})
    sys.modules["__main__"] = main
    exec(loader.source_to_code(loader.get_data(path), path), main.__dict__)
