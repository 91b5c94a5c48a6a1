"""Run as a program: runs a command that sees a directory whose file system answers nothing.

    hanging_directory.py [--stale] DIRECTORY COMMAND...

As on a server that is gone, what looks at DIRECTORY waits, and not even SIGKILL ends it. With
--stale it gets ESTALE, as on a server that has lost track of the directory. That is so until the
end of stdin; then this waits for the command. Needs a mount namespace of its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

_MOUNT = ("unshare", "--mount")
_HEADER = struct.Struct("=IIQ")
"""The length, what is asked for, and the number of the question."""
_INIT = 26
_STARTED = struct.Struct("=4I2H2I2H8I")
_VERSION = 7, 31


def prefix(directory: Path) -> list[str]:
    """What to put before a command; skips where no directory can be mounted."""
    running = [*_MOUNT, sys.executable, __file__, str(directory)]
    directory.mkdir()
    tried = subprocess.run([*running, "true"], stdin=subprocess.DEVNULL, capture_output=True)
    if tried.returncode:
        pytest.skip("no file system can be mounted here")
    return running


def was_asked(directory: Path) -> bool:
    """Somebody waits for an answer, and has to wait on though it is killed."""
    return _mark(directory).exists()


def _mark(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.asked")


def _mount(directory: str) -> int:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"hanging", os.fsencode(directory), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    return device


def _take_question(device: int, directory: Path, *, is_stale: bool) -> None:
    """Answers the first one, without which no other is asked; others if `is_stale`."""
    _, code, number = _HEADER.unpack_from(os.read(device, 1 << 20))
    if code == _INIT:
        answer = _STARTED.pack(*_VERSION, 0, 0, 0, 0, 4096, 1, 0, 0, *[0] * 8)
        os.write(device, struct.pack("=IiQ", 16 + len(answer), 0, number) + answer)
    elif is_stale:
        with suppress(FileNotFoundError):  # Some want no answer.
            os.write(device, struct.pack("=IiQ", 16, -errno.ESTALE, number))
    else:
        _mark(directory).touch()


def _main() -> None:
    is_stale = sys.argv[1] == "--stale"
    directory, *command_line = sys.argv[1 + is_stale :]
    device = _mount(directory)
    command = subprocess.Popen(command_line, stdin=subprocess.DEVNULL)
    while True:
        ready = select.select([device, 0], [], [])[0]
        if 0 in ready:
            break
        _take_question(device, Path(directory), is_stale=is_stale)
    os.close(device)
    sys.exit(command.wait())


if __name__ == "__main__":
    _main()
