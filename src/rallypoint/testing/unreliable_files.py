"""A file system in memory that several clients share, with the faults of real ones.

`FileServer` holds the stored files, and a clock that only moves when a test advances it. Every
`UnreliableFiles` is one client, with its own caches. Before each operation a client asks its
`faults` what is to happen: so a test decides, and may also have the operation wait there.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar

from rallypoint.errors import AccessError

T = TypeVar("T")
STALE_S = 60.0
LATEST_S = 120.0


class Fault(Enum):
    """The fault of one operation of one client."""

    LOST_REPLY = auto()
    """The operation is executed, and raises EIO."""
    SENT_TWICE = auto()
    """The operation is executed twice, as if the client had sent it again. It returns or raises
    what the second execution does."""
    REFUSED = auto()
    """The operation is not executed, and raises EIO."""
    FULL = auto()
    """The operation is not executed, and raises ENOSPC."""
    STALE_HANDLE = auto()
    """The operation is not executed, and raises ESTALE."""
    LATE = auto()
    """The operation raises EIO, and is executed up to two minutes later."""
    CACHED = auto()
    """The operation is answered, or finds its directory, from what the client saw in the last
    minute."""
    CRASH_BEFORE = auto()
    CRASH_AFTER = auto()


class Crash(BaseException):
    """The exception of a client whose process has crashed: later operations only raise it."""


@dataclass(eq=False)
class FileNode:
    """A file or a directory. `durable`: its names at its last `sync` or the last loss of power."""

    name: str
    data: bytes | None = None
    changed_at: float = 0.0
    names: dict[str, FileNode] = field(default_factory=dict)
    durable: dict[str, FileNode] = field(default_factory=dict)

    @property
    def is_directory(self) -> bool:
        return self.data is None


class FileServer:
    """The stored files of all clients, and their clock, which a test advances.

    `linked` is told of each link that is executed: directory, name, file. `seed` is for what
    happens at random.
    """

    def __init__(
        self, seed: int, linked: Callable[[FileNode, str, FileNode], None] | None = None
    ) -> None:
        self.now = 1_000_000.0
        self.random = random.Random(seed)
        self.root = FileNode("")
        self.linked = linked
        self._late: list[tuple[float, Callable[[], object]]] = []
        self._clients: list[UnreliableFiles] = []

    def attach(self, client: UnreliableFiles) -> None:
        """Add a client, which a loss of power crashes, too."""
        self._clients.append(client)

    def execute_later(self, request: Callable[[], object]) -> None:
        """Keep a delayed request, which `advance` executes at a random time within two minutes."""
        self._late.append((self.now + self.random.uniform(0.0, LATEST_S), request))

    def advance(self, seconds: float) -> None:
        """Advance the clock by some seconds, and execute the delayed requests that are due.

        Their OSErrors are dropped.
        """
        ends_at = self.now + seconds
        while due := sorted((late for late in self._late if late[0] <= ends_at), key=_when):
            self._late.remove(due[0])
            self.now = max(self.now, due[0][0])
            try:
                due[0][1]()
            except OSError:
                pass
        self.now = ends_at

    def lose_power(self) -> None:
        """Crash the server and all clients, and forget delayed requests.

        Each change of a name since the last `sync` of its directory is kept or undone at random.
        """
        for client in self._clients:
            client.has_crashed = True
        self._clients, self._late = [], []
        directories = [self.root]
        while directories:
            node = directories.pop()
            for name in sorted(node.names.keys() | node.durable.keys()):
                now, then = node.names.get(name), node.durable.get(name)
                if now is not then and self.random.random() < 0.5:
                    _set_name(node.names, name, then)
            node.durable = dict(node.names)
            for name, child in node.names.items():
                child.name = name if child.is_directory else child.name
            directories += [child for child in node.names.values() if child.is_directory]

    def find(self, path: str) -> FileNode:
        """Return the node at a path. Raises OSError."""
        node = self.root
        for name in path.strip("/").split("/") if path.strip("/") else ():
            node = self.child(node, name)
        return node

    def child(self, directory: FileNode, name: str) -> FileNode:
        """Return the node with this name in a directory. Raises OSError."""
        if not directory.is_directory:
            raise _error(errno.ENOTDIR)
        if name not in directory.names:
            raise _error(errno.ENOENT)
        return directory.names[name]

    def put(self, directory: FileNode, name: str, node: FileNode) -> None:
        """Add a node to a directory under a free name. Raises OSError, also for a used name."""
        if not directory.is_directory:
            raise _error(errno.ENOTDIR)
        if name in directory.names:
            raise _error(errno.EEXIST)
        directory.names[name] = node
        directory.changed_at = self.now

    def drop(self, directory: FileNode, name: str, *, is_directory: bool) -> None:
        """Remove a name from a directory. Raises OSError, also if a directory is not empty."""
        node = self.child(directory, name)
        if node.is_directory != is_directory:
            raise _error(errno.ENOTDIR if is_directory else errno.EISDIR)
        if node.names:
            raise _error(errno.ENOTEMPTY)
        del directory.names[name]
        directory.changed_at = self.now


class UnreliableFiles:
    """One client of the server, with the methods of `rallypoint.register.directory.files.Files`.

    Its process can crash once.
    """

    def __init__(
        self, server: FileServer, faults: Callable[[str, str], Fault | None] | None = None
    ) -> None:
        """Add a client to the server.

        `faults` returns what happens to an operation, by its name and path; None: nothing does.
        """
        self.server, self._faults = server, faults
        self.has_crashed = False
        self._suspended_s = 0.0
        self._handles: dict[str, tuple[float, FileNode]] = {}
        self._answers: dict[tuple[str, str], tuple[float, list[str] | float | None]] = {}
        server.attach(self)

    def suspended(self, seconds: float) -> None:
        """Have this client's caches not age by some seconds, in which its machine is suspended.

        The clock is not advanced.
        """
        self._suspended_s += seconds

    def make_directory(self, path: str) -> None:
        """Make a directory; this method and the others do what those of `Files` do."""

        def bind(cached: bool) -> Callable[[], None]:
            directory, name = self._parent(path, cached)
            made = FileNode(name, changed_at=self.server.now)
            return lambda: self.server.put(directory, name, made)

        self._ask("make_directory", path, bind)

    def check_own(self, path: str) -> None:
        """Raise AccessError unless the path is a directory, and OSError if there is nothing.

        All directories belong to one user here.
        """

        def bind(cached: bool) -> Callable[[], None]:
            directory, name = self._parent(path, cached)
            return lambda: _check_directory(self.server.child(directory, name))

        self._ask("check_own", path, bind)

    def write(self, path: str, data: bytes) -> float:
        """Write a new file, and return the time of that on the server's clock."""

        def bind(cached: bool) -> Callable[[], float]:
            directory, name = self._parent(path, cached)

            def execute() -> float:
                node = FileNode(name, data, self.server.now)
                self.server.put(directory, name, node)
                return node.changed_at

            return execute

        return self._ask("write", path, bind)

    def read(self, path: str) -> bytes:
        """Return the content of a file.

        With `CACHED` its absence or its directory may come from the cache, but no content.
        """

        def bind(cached: bool) -> Callable[[], bytes]:
            if cached and self._answer("read", path) is not None:
                raise _error(errno.ENOENT)
            directory, name = self._parent(path, cached)

            def execute() -> bytes:
                try:
                    data = self.server.child(directory, name).data
                except FileNotFoundError:
                    self._answers["read", path] = (self._awake_s(), None)
                    raise
                if data is None:
                    raise _error(errno.EISDIR)
                return data

            return execute

        return self._ask("read", path, bind)

    def link(self, source: str, target: str) -> None:
        """Make a second name for a file.

        A request that is late still knows its file and its directory.
        """

        def bind(cached: bool) -> Callable[[], None]:
            node = self.server.child(*self._parent(source, cached))
            directory, name = self._parent(target, cached)

            def execute() -> None:
                self.server.put(directory, name, node)
                if self.server.linked is not None:
                    self.server.linked(directory, name, node)

            return execute

        self._ask("link", target, bind)
        self._answers.pop(("read", target), None)

    def rename(self, source: str, target: str) -> None:
        def bind(cached: bool) -> Callable[[], None]:
            (old, name), (new, new_name) = (
                self._parent(source, cached),
                self._parent(target, cached),
            )

            def execute() -> None:
                node = self.server.child(old, name)
                del old.names[name]
                new.names[new_name], node.name = node, new_name
                old.changed_at = new.changed_at = self.server.now

            return execute

        self._ask("rename", target, bind)

    def remove(self, path: str) -> None:
        self._drop("remove", path, is_directory=False)

    def remove_directory(self, path: str) -> None:
        self._drop("remove_directory", path, is_directory=True)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; with `CACHED` they may be a minute old."""

        def bind(cached: bool) -> Callable[[], list[str]]:
            answer = self._answer("names", path) if cached else None
            if isinstance(answer, list):
                return lambda: answer
            node = self._directory(path, cached)

            def execute() -> list[str]:
                listed = sorted(node.names)
                self._answers["names", path] = (self._awake_s(), listed)
                return listed

            return execute

        return list(self._ask("names", path, bind))

    def sync(self, path: str) -> None:
        def bind(cached: bool) -> Callable[[], None]:
            node = self._directory(path, cached)

            def execute() -> None:
                node.durable = dict(node.names)

            return execute

        self._ask("sync", path, bind)

    def changed_at(self, path: str) -> float:
        """Return the time of the last change of a file or directory, on the server's clock.

        With `CACHED` it may be a minute old.
        """

        def bind(cached: bool) -> Callable[[], float]:
            answer = self._answer("changed_at", path) if cached else None
            if isinstance(answer, float):
                return lambda: answer
            directory, name = self._parent(path, cached)

            def execute() -> float:
                changed_at = self.server.child(directory, name).changed_at
                self._answers["changed_at", path] = (self._awake_s(), changed_at)
                return changed_at

            return execute

        return self._ask("changed_at", path, bind)

    def file_system(self, path: str) -> int:
        """Return the id of the one file system that all clients have mounted."""
        return 1

    def now(self) -> float:
        return self.server.now

    def random_bytes(self, count: int) -> bytes:
        return self.server.random.randbytes(count)

    def _drop(self, operation: str, path: str, *, is_directory: bool) -> None:
        def bind(cached: bool) -> Callable[[], None]:
            directory, name = self._parent(path, cached)
            return lambda: self.server.drop(directory, name, is_directory=is_directory)

        self._ask(operation, path, bind)

    def _ask(self, operation: str, path: str, bind: Callable[[bool], Callable[[], T]]) -> T:
        """Send a request, which `bind` makes, and let its fault happen, if it has one.

        Its names are looked up when it is sent.
        """
        self._check_alive()
        fault = None if self._faults is None else self._faults(operation, path)
        self._check_alive()
        if fault is Fault.CRASH_BEFORE:
            self.has_crashed = True
            self._check_alive()
        if fault in _NOT_EXECUTED:
            raise _error(_NOT_EXECUTED[fault])
        execute = bind(fault is Fault.CACHED)
        if fault is Fault.LATE:
            self.server.execute_later(execute)
            raise _error(errno.EIO)
        answer = execute()
        if fault is Fault.CRASH_AFTER:
            self.has_crashed = True
            self._check_alive()
        if fault is Fault.LOST_REPLY:
            raise _error(errno.EIO)
        return execute() if fault is Fault.SENT_TWICE else answer

    def _awake_s(self) -> float:
        return self.server.now - self._suspended_s

    def _check_alive(self) -> None:
        if self.has_crashed:
            raise Crash

    def _answer(self, operation: str, path: str) -> list[str] | float | bool | None:
        """Return the answer that was cached in the last minute; None: there is none.

        True: the cached answer is that there is no such file.
        """
        at, answer = self._answers.get((operation, path), (-STALE_S, None))
        if (operation, path) not in self._answers or self._awake_s() - at >= STALE_S:
            return None
        return True if answer is None else answer

    def _parent(self, path: str, cached: bool) -> tuple[FileNode, str]:
        directory, name = posixpath.split(path.rstrip("/"))
        return self._directory(directory, cached), name

    def _directory(self, path: str, cached: bool) -> FileNode:
        path = path.rstrip("/")
        at, node = self._handles.get(path, (-STALE_S, self.server.root))
        if not cached or self._awake_s() - at >= STALE_S:
            node = self.server.find(path)
            self._handles[path] = (self._awake_s(), node)
        if not node.is_directory:
            raise _error(errno.ENOTDIR)
        return node


_NOT_EXECUTED: dict[Fault | None, int] = {
    Fault.REFUSED: errno.EIO,
    Fault.FULL: errno.ENOSPC,
    Fault.STALE_HANDLE: errno.ESTALE,
}


def _when(late: tuple[float, Callable[[], object]]) -> float:
    return late[0]


def _set_name(names: dict[str, FileNode], name: str, node: FileNode | None) -> None:
    if node is None:
        del names[name]
    else:
        names[name] = node


def _check_directory(node: FileNode) -> None:
    if not node.is_directory:
        raise AccessError(f"{node.name} is not a directory")


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
