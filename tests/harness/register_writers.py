"""Writers of one register on an unreliable file system, stepped operation by operation, and what
they did as an observer sees it who misses nothing.

The content of a version is its own name and that of the version which it replaces: so the newest
version tells the whole history.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from rallypoint.errors import RendezvousConnectionError
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.directory.chain import REMOVED, Seen
from rallypoint.register.version_file import VersionFile, VersionFormat, register_name
from rallypoint.testing.unreliable_files import Crash, Fault, FileNode, FileServer, UnreliableFiles

RUN_ID, SHARED = "job", "/shared"
STALE_S = 60.0
LIMIT_S = 60.0


class ShortDirectories(DirectoryBackend):
    """So that there are many of them."""

    versions_in_a_directory = 2


class History:
    """What was linked, and what the writers were told."""

    def __init__(self, seed: int) -> None:
        self.server = FileServer(seed, self._linked)
        setup = UnreliableFiles(self.server)
        setup.make_directory(SHARED)
        setup.sync("/")
        self._layout = VersionFormat(RUN_ID, None)
        self._slots: dict[str, VersionFile] = {}
        self.parents: dict[str, str] = {}
        self.stored: set[str] = set()
        self.not_stored: set[str] = set()
        self._tips: list[tuple[float, str]] = []

    def tip(self) -> str:
        """The newest version, by walking from the first."""
        name, place = "", "first"
        while (version := self._slots.get(place)) is not None:
            name = version.content.decode()
            directory, _, number = place.rpartition("/")
            following = version.following or directory
            place = f"{following}/{1 if version.following else int(number) + 1:06}"
        return name

    def ancestors(self, name: str) -> list[str]:
        """A version and those before it."""
        found = []
        while name:
            found.append(name)
            name = self.parents[name]
        return found

    def look(self) -> None:
        """Note the newest version, and check it."""
        tip = self.tip()
        if not self._tips or self._tips[-1][1] != tip:
            self._tips.append((self.server.now, tip))
        history = self.ancestors(tip)
        lost = self.stored - set(history)
        assert not lost, f"stored and lost: {lost}; history: {history}"
        wrong = self.not_stored & set(history)
        assert not wrong, f"stored though it was denied: {wrong}"

    def tip_a_minute_ago(self) -> str:
        """What no cache may hide any more."""
        old = [tip for at, tip in self._tips if at <= self.server.now - STALE_S]
        return old[-1] if old else ""

    def lose_power(self) -> None:
        """What was not durable may be gone; what was removed before was there."""
        self.server.lose_power()
        job = self._job()
        for place in list(self._slots):
            directory, _, name = place.rpartition("/")
            at = job if not directory or job is None else job.names.get(directory)
            is_lost = job is None or (at is not None and name not in at.names)
            if is_lost:
                del self._slots[place]
        self._tips = [(self.server.now, self.tip())]

    def _job(self) -> FileNode | None:
        try:
            return self.server.find(f"{SHARED}/{register_name(RUN_ID)}")
        except FileNotFoundError:
            return None

    def _linked(self, directory: FileNode, name: str, node: FileNode) -> None:
        if directory.name.startswith(REMOVED):
            return
        is_first = directory.name == register_name(RUN_ID)
        place = name if is_first else f"{directory.name}/{name}"
        assert place not in self._slots, f"{place} is written again"
        assert node.data is not None
        self._slots[place] = self._layout.decode(place, node.data)


@dataclass
class Answer:
    """What the last get or set of a writer returned."""

    name: str
    token: Seen | None


class Writer:
    """One process. Its calls run in a thread that waits before each operation."""

    def __init__(self, history: History, number: int, backend: type[DirectoryBackend]) -> None:
        self.history = history
        self.number, self._sets, self._lives = number, 0, 0
        self._kind = backend
        self.boot()

    def boot(self) -> None:
        """A new process with nothing in memory."""
        self._lives += 1
        self._files = UnreliableFiles(self.history.server, self._wait_for_turn)
        self._backend = self._kind(SHARED, RUN_ID, files=self._files)
        self.seen = Answer("", None)
        self.is_busy = self._gets = self._has_slept = False
        self._turn, self._parked = _taken(), _taken()
        self._fault: Fault | None = None
        self._failure: BaseException | None = None

    @property
    def has_crashed(self) -> bool:
        return self._files.has_crashed

    def begin(self) -> None:
        """A get and a set take turns."""
        self._gets = not self._gets
        self.begin_get() if self._gets else self.begin_set()

    def begin_get(self) -> None:
        """Read what is there."""
        floor = self.history.ancestors(self.history.tip_a_minute_ago())
        self._begin(lambda: self._get(floor))

    def begin_set(self) -> None:
        """Replace what was seen last."""
        self._sets += 1
        name = f"{self.number}.{self._lives}.{self._sets}"
        self.history.parents[name] = self.seen.name
        self._begin(lambda: self._set(name, self.seen.token))

    def step(self, fault: Fault | None = None) -> None:
        """One operation of the call that is under way, and what follows until the next one."""
        self._fault = fault
        self._turn.release()
        assert self._parked.acquire(timeout=LIMIT_S)
        if self._failure is not None:
            raise self._failure

    def sleep_since(self, began_at: float) -> None:
        """Its machine was suspended; then what its caches hold may be older than a minute."""
        self._files.suspended(self.history.server.now - began_at)
        self._has_slept = True

    def finish(self) -> None:
        """The rest of the call, without faults."""
        while self.is_busy:
            self.step()

    def kill(self) -> None:
        """Also ends its thread."""
        self._files.has_crashed = True
        self.finish()

    def _begin(self, call: Callable[[], None]) -> None:
        self.is_busy = True
        threading.Thread(target=self._run, args=(call,), daemon=True).start()
        assert self._parked.acquire(timeout=LIMIT_S)
        if self._failure is not None:
            raise self._failure

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except (Crash, RendezvousConnectionError):
            pass
        except BaseException as error:
            self._failure = error
        finally:
            self.is_busy = False
            self._parked.release()

    def _wait_for_turn(self, operation: str, path: str) -> Fault | None:
        self._parked.release()
        self._turn.acquire()
        return self._fault

    def _get(self, floor: list[str]) -> None:
        found = self._backend.get_state()
        self._take("" if found is None else found[0].decode(), None if found is None else found[1])
        if self._has_slept:
            return
        missing = set(floor) - set(self.history.ancestors(self.seen.name))
        assert not missing, f"read {self.seen.name!r}, a minute after {missing} were there"

    def _set(self, name: str, token: Seen | None) -> None:
        after = self._backend.set_state(name.encode(), token)
        if after is None or not after[2]:
            self.history.not_stored.add(name)
        else:
            assert after[0] == name.encode()
            self.history.stored.add(name)
        if after is not None:
            self._take(after[0].decode(), after[1])

    def _take(self, name: str, token: Seen | None) -> None:
        self.seen = Answer(name, token)


def _taken() -> threading.Lock:
    """What one thread waits for, until another one releases it."""
    lock = threading.Lock()
    lock.acquire()
    return lock
