"""What a command answers on stdout."""

from __future__ import annotations

import os
import sys

from rallypoint.errors import InfrastructureError
from rallypoint.observe.printing import answer


def tell(*lines: str) -> None:
    """Write lines at once. Who has stopped reading (`| head`), or has closed stdout, wants none.

    Raises InfrastructureError when they can't be written: the disk is full, say.
    """
    try:
        answer(*lines)
    except OSError as error:
        # What could not be written would be tried again at the end of the process.
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise InfrastructureError(f"stdout can't be written: {error.strerror}") from error
