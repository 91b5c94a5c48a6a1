"""Imports msgspec for a command without what msgspec only tries to import.

msgspec takes `get_type_hints`, `Required` and `NotRequired` from typing_extensions where that is
installed, else from `typing`, which has the same since Python 3.11. typing_extensions imports
`inspect`, `ast` and `tokenize`: six milliseconds of a command's start, and 1.5 MB in each agent for
as long as its job runs.

A process that is not a command, and one that has imported either of them before, is left as it is.
"""

import sys

from rallypoint.cli import is_a_command

if is_a_command() and not sys.modules.keys() & {"msgspec", "typing_extensions"}:
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # "is not to be found"
    try:
        import msgspec as msgspec
    finally:
        del sys.modules["typing_extensions"]
