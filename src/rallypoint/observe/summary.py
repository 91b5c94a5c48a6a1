"""The file of `--json-summary`: a summary of a job as one agent saw it (`cli/verdict_json.py`)."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

import msgspec

from rallypoint.errors import UsageError
from rallypoint.files import safe_open


def _is_own_output(path: str) -> bool:
    for fd in (1, 2):
        try:
            if os.path.samestat(os.stat(path), os.fstat(fd)):
                return True
        except OSError:
            pass  # It is not there yet, or this stream is closed.
    return False


class SummaryFile:
    """A file that gets a summary at once and whole, or stays as it was."""

    def __init__(self, path: str) -> None:
        """Tries whether it can be written, and leaves no trace. Raises UsageError."""
        self._target = os.path.realpath(path)
        try:
            mode = os.stat(self._target).st_mode if os.path.lexists(self._target) else stat.S_IFREG
            if not stat.S_ISREG(mode):
                raise UsageError(f"--json-summary {path}: exists and is not a regular file")
            if _is_own_output(self._target):
                raise UsageError(
                    f"--json-summary {path}: this command's own output goes there, and would be "
                    "lost: name another file"
                )
            draft, fd = self._open_draft()
            os.close(fd)
            os.unlink(draft)
        except OSError as error:
            text = f"--json-summary {path}: can't be written: {error.strerror}"
            raise UsageError(text) from error

    def write(self, summary: Mapping[str, object]) -> None:
        """Raises OSError when there is no room any more; then nothing is left behind."""
        import json  # only now: a start has no use for it

        # ASCII: no text is read as anything else, also with bytes in it that are no UTF-8.
        text = json.dumps(msgspec.to_builtins(summary), indent=2).replace("\x7f", "\\u007f")
        draft, fd = self._open_draft()
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(f"{text}\n".encode())
                file.flush()
                os.fsync(fd)
            os.replace(draft, self._target)
        except OSError:
            try:
                os.unlink(draft)
            except OSError:
                pass
            raise

    def _open_draft(self) -> tuple[str, int]:
        folder, name = os.path.split(self._target)
        draft = os.path.join(folder, f".{name[:200]}.{os.urandom(8).hex()}")
        # It becomes what the person named, so its mode is as their umask says.
        return draft, safe_open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
