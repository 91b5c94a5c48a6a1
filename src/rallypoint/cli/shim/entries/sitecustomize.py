"""Lead torchrun to Rallypoint in each Python process below `rallypoint shim`.

Python imports this module when it starts, since PYTHONPATH names its directory. It may be any
Python, so this needs the standard library alone. In the end it imports the module of this name that
Python would have found without it.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))
_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_WITHIN = (*_MODULES, "torch.distributed.launcher", "torch.distributed.launcher.api")


def _program() -> tuple[str, int]:
    """Return the name of the running program or module, and the position of its arguments.

    The position is the number of words of the command line before the first argument.
    """
    line = getattr(sys, "orig_argv", [])
    first, *arguments = getattr(sys, "argv", None) or [""]  # A program may embed Python.
    before = line[: len(line) - len(arguments)]
    name = os.path.basename(first)
    if name == "-m" and before:  # What `sys.argv` documents while a module is looked for.
        name = before[-1]
        if name.startswith("-"):
            name = name.partition("m")[2]
    elif name == "torchrun" and not _is_torchs(first):
        name = ""
    return name, len(before)


def _is_torchs(path: str) -> bool:
    try:
        with open(path, "rb") as script:
            return b"torch.distributed.run" in script.read(4096)
    except OSError:
        return False


def _leave() -> None:
    """Remove the shim from the environment of this process, and so of what it starts."""
    for name in ("PATH", "PYTHONPATH"):
        paths = os.environ.get(name, "").split(os.pathsep)
        if _HERE in paths:
            os.environ[name] = os.pathsep.join(path for path in paths if path != _HERE)
    if not os.environ.get("PYTHONPATH"):
        os.environ.pop("PYTHONPATH", None)
    del os.environ["RALLYPOINT_SHIM"]


class _Finder:
    """The import hook that provides Rallypoint's modules under torch's names."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a replaced module; None: another module, or torch's own."""
        if name not in _WITHIN:
            return None
        try:
            from rallypoint.cli.shim.in_process import spec_of
        except ImportError as error:
            sys.meta_path.remove(self)
            sys.stderr.write(
                f"rallypoint shim: {name} is torch's own in this program: "
                f"{sys.executable} has no rallypoint ({error})\n"
            )
            return None
        return spec_of(name)


def _import_the_other_one() -> None:
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec  # Here: it takes a few milliseconds.

        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


_shim = os.environ.get("RALLYPOINT_SHIM")
if _shim:
    _name, _number = _program()
    # The workers of a launcher that keeps the shim in their environment are left alone.
    if _name.partition(".")[0] == "rallypoint" or "TORCHELASTIC_RUN_ID" in os.environ:
        _leave()
    elif _name in (*_MODULES, "torchrun"):
        _line = [_shim, "-P", "-m", "rallypoint", "shim", "--in-place-of", str(_number)]
        os.execv(_shim, [*_line, sys.executable, *sys.orig_argv[1:]])
    else:
        sys.meta_path.insert(0, _Finder())
_import_the_other_one()
