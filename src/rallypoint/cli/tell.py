"""What a command answers on stdout."""

from __future__ import annotations

import os
import sys

from rallypoint.errors import InfrastructureError


def tell(text: str) -> None:
    """Write the text at once. Who has stopped reading (`| head`), or has closed stdout, wants none.

    Raises InfrastructureError when it can't be written: the disk is full, say.
    """
    if sys.stdout is None:  # Descriptor 1 is closed.
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # What could not be written would be tried again at the end of the process.
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise InfrastructureError(f"stdout can't be written: {error.strerror}") from error
