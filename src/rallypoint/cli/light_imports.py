"""A command imports msgspec without a library that msgspec only tries to import.

msgspec takes `get_type_hints`, `Required` and `NotRequired` from typing_extensions if that is
installed, else from `typing`, which has had the same since Python 3.11. Without typing_extensions a
command starts 2 ms earlier, and each agent has 0.4 MB more for as long as its job runs.

A program that imports this is left as it is, and so is a process that has imported msgspec before.
Later imports of typing_extensions find it.
"""

import sys

from rallypoint.cli import is_a_command

if is_a_command() and not sys.modules.keys() & {"msgspec", "typing_extensions"}:
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # Looks uninstalled.
    try:
        import msgspec as msgspec
    finally:
        del sys.modules["typing_extensions"]
