"""The stores that the conformance suite is run against, all with one vocabulary.

A subject is two objects, `a` and `b`, of one store; who wrote each side is part of its name.
Torch's objects are wrapped: seconds become `timedelta`, and their errors ours. Nothing else is
changed, so what torch does differently shows, and has to be listed in `known_wrong.py`.

Over TCP a write has no reply, and two connections are served in any order. So each write here is
followed by a question on the same connection: once it is answered, the write has been done.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar
from uuid import uuid4

import pytest
from tests.etcd.servers import program
from tests.harness.limits import patience

from rallypoint.elastic.rendezvous.etcd_server import EtcdServer
from rallypoint.elastic.rendezvous.etcd_store import EtcdStore
from rallypoint.elastic.stores.file_store import FileStore
from rallypoint.elastic.stores.hash_store import HashStore
from rallypoint.elastic.stores.prefix_store import PrefixStore
from rallypoint.elastic.stores.store import Store, StoreValue, Timeout
from rallypoint.elastic.stores.tcp_store import TCPStore
from rallypoint.errors import (
    StoreConnectionError,
    StoreError,
    StoreQueueEmptyError,
    StoreTimeoutError,
)

# Torch's types don't know all that it exports.
dist: Any = pytest.importorskip("torch.distributed", reason="needs the package torch")

LIMIT_S = patience(30.0)
"""Longer than anything that must happen takes on a busy machine."""
SHORT_S = 0.05
"""How long a wait lasts that must end with a timeout."""
FAILURE = (StoreError, ValueError, IndexError)
"""What a refused operation raises; torch's stores within the process say so in C++'s terms."""


class Subject(NamedTuple):
    """Who wrote which part: "ours" or "torch"."""

    kind: str
    server: str
    a: str
    b: str
    prefix: str = ""
    """Empty without one; `OWN` if each side uses the class of its own kind, else `OURS`."""

    def __str__(self) -> str:
        sides = self.a if self.a == self.b else f"{self.a}+{self.b}"
        where = f"{self.server}-server-" if self.kind == "tcp" else ""
        prefixed = {"": "", OWN: "-prefixed", OURS: "-prefixed-by-ours"}[self.prefix]
        return f"{self.kind}-{where}{sides}{prefixed}"

    def traits(self) -> set[str]:
        """What `known_wrong.py` refers to: who is at work here, and on which side."""
        found = {f"{self.kind}-server-{self.server}", *([] if self.prefix else ["plain"])}
        for side, who in (("a", self.a), ("b", self.b)):
            found |= {f"{self.kind}-{who}", f"{self.kind}-{side}-{who}", f"{side}-{who}"}
            if self.prefix:
                prefix = who if self.prefix == OWN else OURS
                found |= {f"prefix-{prefix}", f"prefix-{side}-{prefix}"}
        return found


OURS, TORCH, OWN = "ours", "torch", "own"
PLAIN = (
    Subject("hash", "", OURS, OURS),
    Subject("hash", "", TORCH, TORCH),
    Subject("tcp", OURS, OURS, OURS),
    Subject("tcp", OURS, TORCH, TORCH),
    Subject("tcp", OURS, OURS, TORCH),
    Subject("tcp", TORCH, OURS, OURS),
    Subject("tcp", TORCH, TORCH, OURS),
    Subject("file", "", OURS, OURS),
    Subject("file", "", OURS, TORCH),
    Subject("file", "", TORCH, OURS),
)
ETCD = Subject("etcd", "", OURS, OURS)
SUBJECTS = (
    *PLAIN,
    ETCD,
    *(subject._replace(prefix=OWN) for subject in PLAIN),
    *(
        subject._replace(prefix=OURS)
        for subject in PLAIN
        # Torch's FileStore waits for whole seconds: once is enough.
        if subject.a == TORCH or (subject.b == TORCH and subject.kind == "tcp")
    ),
)


class Pair(NamedTuple):
    """Two objects of one store, which is empty."""

    a: Store
    b: Store


HOST = """
from rallypoint.elastic.stores.tcp_store import TCPStore

while input():
    server = TCPStore("127.0.0.1", 0, is_master=True)
    print(server.port, flush=True)
"""


class OurServers:
    """A process that hosts our servers, one at a time.

    Torch's `list_keys` keeps Python's lock while it waits: in its own process a server in Python
    could not answer.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._etcd: EtcdServer | None = None

    def next_port(self) -> int:
        """A new, empty store."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("next\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    @property
    def etcd(self) -> EtcdServer:
        """One for all; the test is skipped where there is none."""
        program()
        if self._etcd is None:
            self._etcd = EtcdServer()
            self._etcd.start()
        return self._etcd

    def close(self) -> None:
        self._process.communicate("\n", timeout=LIMIT_S)
        if self._etcd is not None:
            self._etcd.stop()


@contextmanager
def opened(subject: Subject, servers: OurServers, folder: Path) -> Iterator[Pair]:
    """A new store of this kind; gone at the end."""
    with ExitStack() as closing:
        if subject.kind == "hash":
            pair = hash_pair(subject)
        elif subject.kind == "tcp":
            pair = tcp_pair(subject, servers, closing)
        elif subject.kind == "etcd":
            pair = etcd_pair(servers.etcd)
        else:
            pair = file_pair(subject, folder / "store")
        if subject.prefix:
            pair = Pair(*(prefixed(store, subject.prefix) for store in pair))
        for store in pair:
            store.set_timeout(LIMIT_S)
        yield pair


def hash_pair(subject: Subject) -> Pair:
    if subject.a == TORCH:
        store = dist.HashStore()
        return Pair(TorchStore(store), TorchStore(store))
    first = HashStore()
    return Pair(first, first.clone())


def tcp_pair(subject: Subject, servers: OurServers, closing: ExitStack) -> Pair:
    limit = timedelta(seconds=LIMIT_S)
    if subject.server == OURS:
        port = servers.next_port()
    else:
        torchs = dist.TCPStore("127.0.0.1", 0, None, True, limit)
        closing.callback(id, torchs)  # keeps it alive until then
        port = torchs.port

    def client(side: str) -> Store:
        if side == OURS:
            return closing.enter_context(AnsweredTCPStore("127.0.0.1", port, timeout=limit))
        return TorchTCPStore(dist.TCPStore("127.0.0.1", port, None, False, limit))

    return Pair(client(subject.a), client(subject.b))


def etcd_pair(server: EtcdServer) -> Pair:
    prefix = f"/{uuid4()}"
    a, b = (EtcdStore(server.get_client(), prefix) for _ in range(2))
    return Pair(a, b)


def file_pair(subject: Subject, path: Path) -> Pair:
    def client(side: str) -> Store:
        return FileStore(path) if side == OURS else TorchStore(dist.FileStore(str(path), -1))

    return Pair(client(subject.a), client(subject.b))


def prefixed(store: Store, by: str = OWN, prefix: str = "part") -> Store:
    """A part of a store, by its own side's class or by ours.

    Ours takes torch's objects; torch's takes only those, and not a part of them that is ours.
    """
    if not isinstance(store, TorchStore):
        return PrefixStore(prefix, store)
    is_ours = by == OURS or isinstance(store.inner, PrefixStore)
    return type(store)((PrefixStore if is_ours else dist.PrefixStore)(prefix, store.inner))


def span(timeout: Timeout) -> timedelta:
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)


@contextmanager
def our_errors(doing: str, keys: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except dist.QueueEmptyError as error:
        raise StoreQueueEmptyError(keys[0]) from error
    except dist.DistNetworkError as error:
        raise StoreConnectionError("torch's server", doing, str(error)) from error
    except dist.DistStoreError as error:
        raise StoreTimeoutError(doing, keys, 0.0) from error
    except RuntimeError as error:
        # The stores without a server have no class for it.
        if (
            not str(error)
            .lower()
            .startswith(("wait timeout", "timeout waiting", "barrier timeout"))
        ):
            raise
        raise StoreTimeoutError(doing, keys, 0.0) from error


class TorchStore(Store):
    """One of torch's stores, spelt as ours are."""

    unanswered: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def timeout(self) -> timedelta:
        found: timedelta = self.inner.timeout
        return found

    def set_timeout(self, timeout: Timeout) -> None:
        self.inner.set_timeout(span(timeout))

    def call(self, name: str, keys: Sequence[str], *arguments: object) -> Any:
        with our_errors(name, keys):
            answer = getattr(self.inner, name)(*arguments)
            if name in self.unanswered:
                self.inner.num_keys()
            return answer

    def set(self, key: str, value: StoreValue) -> None:
        self.call("set", [key], key, value)

    def get(self, key: str) -> bytes:
        return bytes(self.call("get", [key], key))

    def add(self, key: str, amount: int) -> int:
        return int(self.call("add", [key], key, amount))

    def compare_set(self, key: str, expected_value: StoreValue, desired_value: StoreValue) -> bytes:
        return bytes(self.call("compare_set", [key], key, expected_value, desired_value))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self.call("check", keys, keys))

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        self.call("wait", keys, keys, *([] if timeout is None else [span(timeout)]))

    def delete_key(self, key: str) -> bool:
        return bool(self.call("delete_key", [key], key))

    def num_keys(self) -> int:
        return int(self.call("num_keys", []))

    def list_keys(self) -> list[str]:
        return list(self.call("list_keys", []))

    def append(self, key: str, value: StoreValue) -> None:
        self.call("append", [key], key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return list(self.call("multi_get", keys, keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[StoreValue]) -> None:
        self.call("multi_set", keys, keys, values)

    def queue_push(self, key: str, value: StoreValue) -> None:
        self.call("queue_push", [key], key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return bytes(self.call("queue_pop", [key], key, block))

    def queue_len(self, key: str) -> int:
        return int(self.call("queue_len", [key], key))

    def barrier(self, key: str, world_size: int, timeout: Timeout | None = None) -> None:
        self.call("barrier", [key], key, world_size, None if timeout is None else span(timeout))

    def clone(self) -> Self:
        return type(self)(self.inner.clone())

    def has_extended_api(self) -> bool:
        return bool(self.inner.has_extended_api())


class TorchTCPStore(TorchStore):
    """Torch's, with an answer to each write."""

    unanswered = frozenset({"set", "append", "multi_set", "queue_push"})


class AnsweredTCPStore(TCPStore):
    """Ours, with an answer to each write."""

    def clone(self) -> AnsweredTCPStore:
        return AnsweredTCPStore("127.0.0.1", self.port, timeout=self.timeout)


def answered(write: Callable[..., None]) -> Callable[..., None]:
    def write_and_ask(store: TCPStore, *arguments: object) -> None:
        write(store, *arguments)
        store.num_keys()

    return write_and_ask


for unanswered in TorchTCPStore.unanswered:
    setattr(AnsweredTCPStore, unanswered, answered(getattr(TCPStore, unanswered)))


T = TypeVar("T")


class Call(Generic[T]):
    """A call on a thread of its own.

    Torch's `FileStore` keeps Python's lock while it waits for the file's, when it is cloned and at
    its end. So a test clones before it calls, and what a call is given lives as long as the call.
    """

    def __init__(self, function: Callable[..., T], *arguments: object) -> None:
        self._used = function, arguments
        self._result: T
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[..., T], arguments: tuple[object, ...]) -> None:
        try:
            self._result = function(*arguments)
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        """What it returned or raised; it must come to an end."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the call never returned"
        if self._error is not None:
            raise self._error
        return self._result


def tell_and(store: Store, flag: str, call: Callable[..., T], *arguments: object) -> Call[T]:
    """A call that sets a key just before, so that others can know that it is about to wait."""

    def run() -> T:
        store.set(flag, "about to")
        return call(*arguments)

    return Call(run)


def await_blocked(store: Store, flag: str) -> None:
    """Returns when such a call is very likely to wait; whether it does must not matter."""
    store.wait([flag])
    for _ in range(10):
        store.check([flag])
