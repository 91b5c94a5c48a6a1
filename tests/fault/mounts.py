"""A file system that fails, and what each node sees of it: mount namespaces of Linux.

    with Disk(tmp_path / "disk") as disk, disk.seen_at(tmp_path / "jobs") as view:
        subprocess.run([*view.prefix, "touch", tmp_path / "jobs" / "file"])
        view.take_away()

Each view has a mount and a time namespace, so that who looks from one at a process of another takes
it for a process of another machine. Needs root; skips where nothing can be mounted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.harness import hanging_directory

SIZE = "4m"
READY_S = 20.0


class _Space:
    """Namespaces, and a process that keeps them."""

    def __init__(self, before: Sequence[str], mounting: str) -> None:
        """`mounting`: what is done first in it, by a shell. `before`: a prefix of the command."""
        making = ["unshare", "--mount", "--time", "--fork", "--propagation", "private"]
        command = [*before, *making, "sh", "-c", f"{mounting} && echo $$ && exec cat"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        said = self._process.stdout.readline().strip()
        if not said:
            pytest.skip(f"no file system can be mounted here: {self._process.stderr.read()}")
        words = "--mount", "--time", "--net"
        self.prefix = ("nsenter", "--target", said, *words, "--")
        """What to put before a command, for it to run in them."""
        self.keepers = {self._process.pid, int(said)}
        """The processes that keep them."""

    def run(self, *command: object) -> None:
        subprocess.run([*self.prefix, *map(str, command)], check=True, capture_output=True)

    def close(self) -> None:
        self._process.communicate(timeout=READY_S)


class Disk:
    """A small file system, which only its views see."""

    def __init__(self, place: Path, *, is_real: bool = False) -> None:
        """`place`: a directory that is made. `is_real`: it is on the disk of this machine, not in
        memory, and as large."""
        self._place, self._is_real = place, is_real
        self._opened = ExitStack()

    def __enter__(self) -> Disk:
        self._place.mkdir(mode=0o700)
        of_memory = f"-t tmpfs -o size={SIZE},mode=700 rallypoint"
        mounting = f"mount {f'--bind {self._place}' if self._is_real else of_memory} {self._place}"
        self._space = _Space((), mounting)
        self._opened.callback(self._space.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def seen_at(self, directory: Path, inside: Sequence[str] = ()) -> View:
        """What one node sees at this directory, which is made if there is none. `inside`: as in
        `Network`."""
        directory.mkdir(exist_ok=True)
        return View((*self._space.prefix, *inside), self._place, directory)

    def fill(self) -> None:
        """No byte is free."""
        filler = Path(self.outside, "filler")
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        assert os.statvfs(filler).f_bfree == 0

    def free(self) -> None:
        Path(self.outside, "filler").unlink()

    @property
    def outside(self) -> str:
        """Where this process sees it."""
        return f"/proc/{self._space.prefix[2]}/root{self._place}"


class View:
    """What one node sees of a disk."""

    def __init__(self, before: Sequence[str], place: Path, directory: Path) -> None:
        self._place, self._directory = place, directory
        self._space = _Space(before, f"mount --bind {place} {directory}")
        self._hanging: subprocess.Popen[bytes] | None = None
        self.prefix, self.keepers = self._space.prefix, self._space.keepers

    def make_read_only(self) -> None:
        # On top, since the one below has a file that is open for writing: a lock of `serve`.
        self._space.run("mount", "--bind", self._directory, self._directory)
        self._space.run("mount", "-o", "remount,bind,ro", self._directory)

    def make_writable(self) -> None:
        self._space.run("umount", self._directory)

    def take_away(self) -> None:
        """An empty directory is there, as when nothing is mounted."""
        self._space.run("umount", "--lazy", self._directory)

    def bring_back(self) -> None:
        self._space.run("mount", "--bind", self._place, self._directory)

    def hang(self, *, is_stale: bool = False) -> None:
        """Who looks at it waits; or gets ESTALE, as from a file server that has lost track of it,
        if it `is_stale`."""
        how = ["--stale"] if is_stale else []
        command = [*self.prefix, sys.executable, hanging_directory.__file__, *how, self._directory]
        asking = [*map(str, command), "echo", "hangs"]
        pipe = subprocess.PIPE
        self._hanging = subprocess.Popen(asking, stdin=pipe, stdout=pipe)
        assert self._hanging.stdout is not None
        assert self._hanging.stdout.readline() == b"hangs\n"

    def answer(self) -> None:
        """It hangs no more, and is there again; who waited gets an error."""
        assert self._hanging is not None
        self._hanging.communicate(timeout=READY_S)
        self._hanging = None
        self.take_away()  # The mount that hung.

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._hanging is not None:
            self.answer()
        self._space.close()
