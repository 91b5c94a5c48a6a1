"""A rendezvous state in a store with torch's vocabulary: ours or torch's, over TCP or in a file.

The state is a value under a name that is never used twice; the key that all nodes compare and swap
holds only that name. So a comparison costs a few bytes however many nodes there
are, and a node that has read a state need not read it again. To wait for the next
state, a node waits for a key that the node which stores it sets, on a separate connection.

`create_backend` makes the store too. `store_type=tcp`: the node that can bind the endpoint hosts
the server, all others are its clients; `is_host` decides otherwise. `store_type=file`: the endpoint
is a path that all nodes share, of a file, or of a directory in which the file of this job is made.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from rallypoint.config import DEFAULT_COORDINATOR_PORT
from rallypoint.core.settings import CONF
from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    create_handler,
)
from rallypoint.elastic.rendezvous.led.parameters import coordinator_endpoint
from rallypoint.elastic.rendezvous.led.recorded import Steps
from rallypoint.elastic.stores.file_store import FileStore
from rallypoint.elastic.stores.store import Store, check_store
from rallypoint.elastic.stores.tcp_store import TCPStore
from rallypoint.errors import (
    AccessError,
    ParameterError,
    RendezvousConnectionError,
    RendezvousStateError,
    StoreConnectionError,
    StoreError,
    StoreTimeoutError,
)
from rallypoint.register.contract import RendezvousBackend, Token
from rallypoint.store.backoff import uniform

T = TypeVar("T")

DEFAULT_PORT = DEFAULT_COORDINATOR_PORT
READ_TIMEOUT_S = 60
MAX_JOIN_REQUESTS = 1024
KEPT_STATES = 4
"""The number of states replaced by this node that it leaves in the store for a while.

They are for nodes that have read only the state's name yet."""
KEPT_ANNOUNCEMENTS = 32
"""The number of keys, each of which announced that this node replaced a state, that it leaves in
the store for a while: for nodes that have read the older state and will wait for a newer one."""
FIRST_POLL_S = 0.005
LONGEST_POLL_S = 0.1
POLL_SLICE_S = 0.25
"""The longest time, in seconds, that one `wait_for_change` polls a store of torch's."""
_ABSENT = b"\x00rallypoint: no such key\x00"
_NAME_BYTES = 40


class C10dRendezvousBackend(RendezvousBackend):
    """A rendezvous backend: keeps the state of one run id in `store`, among other keys.

    Its methods block, and raise RendezvousConnectionError when the store fails; those that read the
    state raise RendezvousStateError when the store's key names none.
    """

    def __init__(self, store: Any, run_id: str) -> None:
        if not run_id:
            raise ParameterError("run_id='': a rendezvous needs the name of its job")
        check_store(store)
        self._store, self._base = store, f"rallypoint.elastic.rendezvous.{run_id}"
        self._waiting: Store | None = None
        self._cached: tuple[bytes, bytes] | None = None
        self._old_states: deque[str] = deque()
        self._old_announcements: deque[str] = deque()

    @property
    def name(self) -> str:
        return "c10d"

    def get_state(self) -> tuple[bytes, Token] | None:
        return self._ask(self._read)

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        if token is not None and not (token and isinstance(token, bytes)):
            found = self.get_state()
            return None if found is None else (*found, False)
        return self._ask(lambda: self._swap(state, token))

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        """Wait until a state that replaced that of `token` is announced; return whether one was.

        Waits for at most `timeout` seconds; 0.25 s at most for a store that is not of this package.
        Raises RendezvousConnectionError.
        """
        return self._ask(lambda: self._wait(self._next_key(token or b""), timeout))

    def stop_waiting(self) -> None:
        """End the running calls of `wait_for_change`, in a TCPStore or a FileStore.

        Later calls may wait again.
        """
        waiting, self._waiting = self._waiting, None
        if isinstance(waiting, TCPStore | FileStore):
            waiting.close()

    def _wait(self, key: str, timeout_s: float) -> bool:
        if not isinstance(self._store, Store):
            return self._poll(key, timeout_s)
        waiting = self._waiting
        if waiting is None:  # another connection: the first one is used meanwhile
            waiting = self._waiting = self._store.clone()
        try:
            waiting.wait([key], timeout_s)
        except StoreTimeoutError:
            return False
        return True

    def _poll(self, key: str, timeout_s: float) -> bool:
        """Poll until the key exists, for at most 0.25 s; return whether it does.

        It is not awaited, because torch's clients print a warning at each failed wait.
        """
        ends_at, pause_s = time.monotonic() + min(timeout_s, POLL_SLICE_S), FIRST_POLL_S
        while not self._store.check([key]):
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(pause_s * uniform(0.7, 1.0), left_s))
            pause_s = min(pause_s * 1.5, LONGEST_POLL_S)
        return True

    def set_beat(self, node: str, beat: int) -> None:
        """Set the heartbeat counter of a node, which has its own key."""
        self._ask(lambda: self._store.set(self._beat_key(node), str(beat)))

    def get_beats(self, nodes: Sequence[str]) -> list[int]:
        """Return the heartbeat counters of the nodes; -1 for a node without one.

        The counters are read one by one if a node has none.
        """
        keys = [self._beat_key(node) for node in nodes]

        def read() -> list[int]:
            if keys and self._store.check(keys):
                return [_number(value) for value in self._store.multi_get(keys)]
            return [_number(self._peek(key)) for key in keys]

        return self._ask(read)

    def post_join_request(self, request: bytes) -> int:
        """Store a join request under the next number, and return the number."""

        def post() -> int:
            number = int(self._store.add(self._request_key(), 1))
            self._store.set(self._request_key(number), request)
            return number

        return self._ask(post)

    def join_requests_after(self, number: int) -> list[bytes | None]:
        """Return the join requests after this number, at most MAX_JOIN_REQUESTS of them.

        None stands for one that is missing.
        """

        def read() -> list[bytes | None]:
            last = int(self._store.add(self._request_key(), 0))
            last = min(last, number + MAX_JOIN_REQUESTS)
            keys = [self._request_key(n) for n in range(number + 1, last + 1)]
            if keys and self._store.check(keys):
                return [bytes(request) for request in self._store.multi_get(keys)]
            return [self._peek(key) for key in keys]

        return self._ask(read)

    def delete_join_requests(self, numbers: Sequence[int]) -> None:
        """Delete join requests, each by one request to the store."""

        def delete() -> None:
            for number in numbers:
                self._store.delete_key(self._request_key(number))

        self._ask(delete)

    def delete_beat(self, node: str) -> None:
        """Delete the heartbeat counter of the node."""
        self._ask(lambda: self._store.delete_key(self._beat_key(node)))

    def _read(self) -> tuple[bytes, Token] | None:
        while True:
            name = self._peek(self._base)
            if name is None:
                return None
            if self._cached is not None and self._cached[0] == name:
                return self._cached[1], name
            state = self._peek(self._state_key(name))
            if state is not None:
                self._cached = (name, state)
                return state, name
            if self._peek(self._base) == name:
                raise RendezvousStateError(
                    f"the key {self._base!r} holds {name[:_NAME_BYTES]!r}, which names no "
                    "rendezvous state; it was left as it is: use another run id, or delete it"
                )

    def _swap(self, state: bytes, token: bytes | None) -> tuple[bytes, Token, bool] | None:
        known = token or b""
        name = secrets.token_hex(8).encode()
        key = self._state_key(name)
        self._store.set(key, state)
        now = bytes(self._store.compare_set(self._base, known.decode("latin-1"), name.decode()))
        if now == name:
            self._store.set(self._next_key(known), "")
            self._cached = (name, state)
            self._forget(known)
            return state, name, True
        self._store.delete_key(key)
        found = self._read()
        return None if found is None else (*found, False)

    def _forget(self, older: bytes) -> None:
        self._old_announcements.append(self._next_key(older))
        if older:
            self._old_states.append(self._state_key(older))
        if len(self._old_states) > KEPT_STATES:
            self._store.delete_key(self._old_states.popleft())
        if len(self._old_announcements) > KEPT_ANNOUNCEMENTS:
            self._store.delete_key(self._old_announcements.popleft())

    def _peek(self, key: str) -> bytes | None:
        """Return the value of a key without waiting for it; None if it is missing.

        A `compare_set` that expects a value which no key has reads without a change.
        """
        absent = _ABSENT.decode()
        value = bytes(self._store.compare_set(key, absent, absent))
        return None if value == _ABSENT else value

    def _state_key(self, name: bytes) -> str:
        return f"{self._base}.state.{name.decode('latin-1')}"

    def _next_key(self, name: bytes) -> str:
        return f"{self._base}.after.{name.decode('latin-1')}"

    def _beat_key(self, node: str) -> str:
        return f"{self._base}.beat.{node}"

    def _request_key(self, number: int | None = None) -> str:
        key = f"{self._base}.join_request"
        return f"{key}s" if number is None else f"{key}.{number}"

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except (StoreError, AccessError, OSError, RuntimeError, TimeoutError) as error:
            if isinstance(error, RendezvousStateError | RendezvousConnectionError):
                raise
            raise RendezvousConnectionError(
                f"the rendezvous store failed: {str(error) or type(error).__name__}"
            ) from error


def _number(value: bytes | None) -> int:
    try:
        return -1 if value is None else int(value)
    except ValueError:
        return -1


def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Store]:
    """Return the backend that `params` describe, and the store in which it keeps the state.

    Blocks. Raises ParameterError, RendezvousConnectionError when nothing answers at the endpoint
    for `read_timeout` seconds (60), and AccessError for a file that is not this user's alone.
    """
    store_type = str(params.get("store_type", "tcp")).strip().lower()
    given = params.read([CONF["read_timeout"]])
    timeout = timedelta(seconds=given.get("read_timeout", READ_TIMEOUT_S))
    makers = {"tcp": _tcp_store, "file": _file_store}
    if store_type not in makers:
        raise ParameterError(
            f"the rendezvous parameter store_type={store_type!r}: known are {', '.join(makers)}"
        )
    steps = Steps("c10d_rendezvous_backend.py:create_backend", params.run_id)
    with steps.failing(""):
        try:
            store = makers[store_type](params, timeout)
        except StoreError as error:
            raise RendezvousConnectionError(f"the rendezvous store: {error}") from error
    if isinstance(store, TCPStore) and store.is_host:
        hosts = f"Process {os.getpid()} hosts the TCP store for the C10d rendezvous backend."
        steps.record("", "INIT", hosts)
    return C10dRendezvousBackend(store, params.run_id), store


def create_handler_from(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """Return the handler of the backend `c10d`, or of `file`, whose state is in a shared file.

    Blocks. Raises what `create_backend` does, and ParameterError for `file` without `insecure`.
    """
    if params.backend == "file":
        if not params.get_as_bool("insecure", False):
            raise ParameterError(
                "rendezvous backend 'file': nodes are not authenticated, and everyone who reaches "
                "the port of a round's store can use it. To accept that, give insecure=True on "
                "every node; otherwise use the backend 'tcp'"
            )
        params.config.setdefault("store_type", "file")
    backend, store = create_backend(params)
    return create_handler(store, backend, params)


def _tcp_store(params: RendezvousParameters, timeout: timedelta) -> TCPStore:
    where = coordinator_endpoint(params)
    host, port = where.host, where.port
    is_host = params.get_as_bool("is_host")
    if is_host is not False:
        try:
            return TCPStore(host, port, None, True, timeout, wait_for_workers=False)
        except StoreConnectionError:
            if is_host:
                raise
    return TCPStore(host, port, None, False, timeout, wait_for_workers=False)


def _file_store(params: RendezvousParameters, timeout: timedelta) -> FileStore:
    path = Path(params.endpoint.strip() or tempfile.gettempdir())
    if path.is_dir():
        path /= f"rallypoint-rendezvous-{params.run_id.replace('/', '_')}"
    return FileStore(path, timeout=timeout, private=True)
