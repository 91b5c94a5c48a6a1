"""Read the words behind the options: the script, the module or the program that workers run.

A command that can't run as it was written is refused. `wrong_script.py` looks at the file for the
reason. Pure: `ThisHost` looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rallypoint.cli.machine import ThisHost
from rallypoint.cli.parser import Command, Scanned
from rallypoint.core.text import shown
from rallypoint.errors import UsageError
from rallypoint.files import local_path

_OF_LAUNCHERS = frozenset(
    {"--nnodes", "--nproc-per-node", "--node-rank", "--max-restarts", "--standalone"}
    | {"--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"}
)
"""The options of launchers such as torchrun that few scripts have themselves."""


def need_a_script(scanned: Scanned) -> None:
    """Raise UsageError for a command line that ends with its options."""
    if scanned.words:
        return
    for name, given in scanned.values.items():
        if given[-1].text.endswith(".py"):
            raise UsageError(
                f"the script is missing: {name} took {given[-1].text} as its value; give {name} a "
                "value, or leave it out"
            )
    raise UsageError(
        "the script is missing; for example: rallypoint run --nproc-per-node 2 train.py"
    )


def options_behind(command: Command, argv: Sequence[str], scanned: Scanned) -> list[str]:
    """Return at most one remark, on options of launchers that stand after the script.

    They belong to the script then. Only options in `_OF_LAUNCHERS` count. There is no remark where
    that may be intended: for a script that is a launcher itself, with `--no-python`, after `--`, or
    for an option that stands before the script too.
    """
    script, *arguments = scanned.words or ("",)
    is_parted = "--" in argv[: len(argv) - len(scanned.words)]
    is_launcher = any(word == "-m" or word.endswith(".py") for word in arguments)
    if is_parted or is_launcher or scanned.on("--no-python"):
        return []
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    names = (word.partition("=")[0].replace("_", "-") for word in own)
    found = [name for name in names if name in _OF_LAUNCHERS and name in command.options]
    found = [name for name in dict.fromkeys(found) if scanned.get(name) is None]
    if not found:
        return []
    *others, last = found
    listed = f"{', '.join(others)} and {last} stand" if others else f"{last} stands"
    they = "they belong" if others else "it belongs"
    before = f"options of rallypoint {command.name} stand before it"
    return [f"{listed} behind {shown(script)}, so {they} to the script: {before}"]


def worker_command(
    scanned: Scanned, environ: Mapping[str, str], machine: ThisHost
) -> tuple[str, ...]:
    """Return the worker's argv: torchrun's `python -u [-m] script args`, or the program itself.

    With --run-path, Python code (`-c`) runs the script. Raises UsageError.
    """
    module, bare = scanned.on("--module"), scanned.on("--no-python")
    by_path = scanned.on("--run-path")
    if module and (bare or by_path):
        other = "--no-python" if bare else "--run-path"
        raise UsageError(f"--module with {other}: a module is run by Python's -m; give one of them")
    script, arguments = scanned.words[0], scanned.words[1:]
    if module:
        script = script.strip()
        if not script or "/" in script or script.endswith(".py"):
            _refuse("module", script or scanned.words[0], machine)
    elif bare and not by_path:
        script = _meant(script, machine.find_program) or _refuse("program", script, machine)
        return (script, *arguments)
    else:
        script = check_script(script, machine, arguments)
    python = (interpreter(environ, machine), "-u")
    if module:
        return (*python, "-m", script, *arguments)
    if by_path:
        from rallypoint.process.prepared.command_line import RUN_PATH

        return (*python, "-c", RUN_PATH, script, *arguments)
    return (*python, script, *arguments)


def check_script(script: str, machine: ThisHost, after: Sequence[str] = ()) -> str:
    """Return the path of a script, or of a directory with a __main__.py, that Python can run.

    Raises UsageError. `after` has the words after the script.
    """
    path = _meant(script, machine.script_exists) or _refuse("script", script, machine, after)
    if not path.endswith(".py"):  # Python itself says best what is wrong with such a file.
        _refuse("file", path, machine, after)
    return path


def interpreter(environ: Mapping[str, str], machine: ThisHost) -> str:
    """Return the interpreter of the workers: PYTHON_EXEC, or else the agent's own.

    Raises UsageError.
    """
    given = environ.get("PYTHON_EXEC", "")
    origin = f"PYTHON_EXEC={shown(given)}"
    chosen = _meant(given, machine.find_program, origin)
    if given.strip() and not chosen:
        raise UsageError(f"{origin}: no such program")
    return chosen or machine.interpreter


def _meant(name: str, find: Callable[[str], object], origin: str = "") -> str:
    """Return the name, with or without blanks around it, or the local path, that `find` finds.

    Empty: it finds none. Raises UsageError for an address in the place of a path.
    """
    if name.strip() and find(name):
        return name
    try:
        other = local_path(name.strip(), "needs a file of this machine")
    except ValueError as error:
        raise UsageError(f"{origin or shown(name)}: {error}") from None
    return other if other and find(other) else ""


def _refuse(what: str, name: str, machine: ThisHost, after: Sequence[str] = ()) -> str:
    """Raise UsageError for something that can't be run as a `what`; else return an empty text."""
    from rallypoint.cli.run_options import wrong_script

    if why := wrong_script.REASONS[what](name, after, machine):
        raise UsageError(f"{shown(name) or ascii(name)}: {why}")
    return ""
