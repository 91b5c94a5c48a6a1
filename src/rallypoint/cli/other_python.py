"""A hint for who has installed Rallypoint apart from what their script imports (pipx, uv tool).

Workers are run by the interpreter that runs Rallypoint, unless PYTHON_EXEC names another.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from shutil import which

_MISSING = re.compile(r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'")


def other_python_hint(
    message: str,
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    own_python: str = sys.executable,
    find_program: Callable[[str], str | None] = which,
) -> tuple[str, ...]:
    """One line when a worker of this command line failed of a missing module, was run by our own
    Python, and the person has another one at hand; else none. `message` is the first cause's."""
    missing, environ = _MISSING.match(message), os.environ if environ is None else environ
    if missing is None or list(argv[:1]) != [own_python]:
        return ()
    roots = (environ.get("VIRTUAL_ENV", ""), environ.get("CONDA_PREFIX", ""))
    places = [os.path.join(root, "bin", "python") for root in roots if root]
    found = filter(None, map(find_program, (*places, "python", "python3")))
    other = next((path for path in found if _folder(path) != _folder(own_python)), None)
    if other is None:
        return ()
    by = f"the workers were run by {own_python}, as rallypoint is"
    fix = f"if {missing['module']} is installed for {other}, set PYTHON_EXEC={other}"
    return (f"    what to do: {by}; {fix}",)


def _folder(python: str) -> str:
    """Its links are not followed: a virtual environment's Python is one."""
    return os.path.realpath(os.path.dirname(os.path.abspath(python)))
