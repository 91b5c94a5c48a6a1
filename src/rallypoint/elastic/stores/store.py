"""The vocabulary of `torch.distributed.Store`: what every store of ours can do.

Keys are text, values bytes (text is encoded as UTF-8), counters 64-bit integers kept as decimal
text. A timeout is a `timedelta` or a number of seconds; zero means "do not wait", and infinity is
30 years. Every method may raise StoreConnectionError where the store is not in this process, and is
safe to call from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import index

from rallypoint.errors import ParameterError, StoreError

StoreValue = str | bytes
Timeout = timedelta | float
ToKey = Callable[[str], bytes]

DEFAULT_TIMEOUT = timedelta(seconds=300)
_MAX_PORT = 65535
_FOR_EVER_S = 1e9  # what every clock, lock and kernel takes, and so does a `timedelta`


def to_bytes(value: StoreValue) -> bytes:
    """Encode a value for storage. Raises TypeError for anything but text and bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a store's value is str or bytes, not {type(value).__name__}: {value!r}")


def to_key(key: str) -> bytes:
    """Encode a key for storage. Raises TypeError for anything but text."""
    if not isinstance(key, str):
        raise TypeError(f"a store's key is str, not {type(key).__name__}: {key!r}")
    return key.encode()


def to_keys(keys: Sequence[str], one: ToKey = to_key) -> tuple[bytes, ...]:
    """Encode several keys for storage, each by `one`.

    Raises TypeError for a single text, which would be a key per letter.
    """
    if isinstance(keys, str):
        raise TypeError(f"the keys must be a list of str, not one str: [{keys!r}]?")
    return tuple(map(one, keys))


def to_pairs(
    keys: Sequence[str], values: Sequence[StoreValue], one: ToKey = to_key
) -> tuple[tuple[bytes, bytes], ...]:
    """Encode keys and values for storage. Raises ValueError if the lengths differ."""
    names = to_keys(keys, one)
    if len(names) != len(values):
        raise ValueError(f"there are {len(names)} keys but {len(values)} values")
    return tuple(zip(names, map(to_bytes, values), strict=True))


def to_seconds(timeout: Timeout) -> float:
    """Return a timeout in seconds, from 0 to 30 years; a longer one is cut to that.

    Raises ValueError for less than 0, TypeError for no number at all.
    """
    if isinstance(timeout, timedelta):
        seconds = min(timeout.total_seconds(), _FOR_EVER_S)
    elif isinstance(timeout, int | float) and not isinstance(timeout, bool):
        seconds = float(min(timeout, _FOR_EVER_S))
    else:
        raise TypeError(f"a timeout is a timedelta or seconds, not {timeout!r}")
    if not seconds >= 0:
        raise ValueError(f"a timeout must be 0 or more, not {timeout!r}")
    return seconds


def check_store(store: object, *needed: str) -> None:
    """Check that an object has the `needed` methods of a store, by default `set` and `get`.

    Raises ParameterError.
    """
    methods = needed or ("set", "get")
    missing = [name for name in methods if not callable(getattr(store, name, None))]
    if missing or isinstance(store, type):
        lacks = f"it has no {', '.join(missing)}" if missing else "but a class"
        raise ParameterError(
            f"store={store!r:.80}: is not a store, {lacks}: give a rallypoint.elastic.stores or "
            "torch.distributed store"
        )


def to_port(port: int) -> int:
    """Return `port`. Raises ValueError for a number that is no port: the system would cut it."""
    if not 0 <= index(port) <= _MAX_PORT:
        raise ValueError(f"port {port}: must be 0 to {_MAX_PORT}")
    return port


class Store:
    """A key-value store that the processes of a job share.

    A subclass need not define every method. `append`, `barrier`, `multi_get` and `multi_set` are
    then made of others, as several requests; the rest raise StoreError, which names the method.
    """

    _timeout_s = DEFAULT_TIMEOUT.total_seconds()

    def __init__(self, timeout: Timeout = DEFAULT_TIMEOUT) -> None:
        self._timeout_s = to_seconds(timeout)

    @property
    def timeout(self) -> timedelta:
        """The default time limit of `get`, `multi_get`, `wait`, `queue_pop` and `barrier`."""
        return timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: Timeout) -> None:
        """Change `timeout` for this object, but not for existing clones."""
        self._timeout_s = to_seconds(timeout)

    def set(self, key: str, value: StoreValue) -> None:
        """Store a value, and replace an earlier one. May be retried."""
        raise self._lacks("set")

    def get(self, key: str) -> bytes:
        """Wait for the key and return its value. Raises StoreTimeoutError. May be retried."""
        raise self._lacks("get")

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, 0 if missing, and return the sum. Not to be retried blindly."""
        raise self._lacks("add")

    def compare_set(self, key: str, expected_value: StoreValue, desired_value: StoreValue) -> bytes:
        """Store `desired_value` if the key has `expected_value`; return what is there then.

        A missing key matches an empty `expected_value`; with another one nothing is stored, and
        `expected_value` is returned.
        """
        raise self._lacks("compare_set")

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all of the keys exist, as values or as queues that are not empty."""
        raise self._lacks("check")

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        """Return when all of the keys have been written, as values or as items of queues.

        Blocks. Raises StoreTimeoutError.
        """
        raise self._lacks("wait")

    def delete_key(self, key: str) -> bool:
        """Delete a value, not a queue; return whether there was one."""
        raise self._lacks("delete_key")

    def num_keys(self) -> int:
        """Return the number of values in the whole store, including those of other prefixes."""
        raise self._lacks("num_keys")

    def list_keys(self) -> list[str]:
        """Return the keys of the values, in no order; through a prefix, its own keys only."""
        raise self._lacks("list_keys")

    def append(self, key: str, value: StoreValue) -> None:
        """Append to a value; a missing one counts as empty. Not to be retried blindly."""
        added = to_bytes(value)
        before = to_bytes(self.get(key)) if self.check([key]) else b""
        while (now := to_bytes(self.compare_set(key, before, before + added))) != before + added:
            before = now

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values, in order, once all are there. Raises StoreTimeoutError. Blocks."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[StoreValue]) -> None:
        """Store all values: in one operation, or by several requests, see the class.

        Raises ValueError if the lengths differ.
        """
        pairs = to_pairs(keys, values)  # Checked before the first is stored.
        for key, (_, value) in zip(keys, pairs, strict=True):
            self.set(key, value)

    def queue_push(self, key: str, value: StoreValue) -> None:
        """Put an item at the end of a queue. Not to be retried blindly."""
        raise self._lacks("queue_push")

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Wait for the first item of the queue, remove it and return it.

        Raises StoreQueueEmptyError at once if not `block`, else StoreTimeoutError.
        """
        raise self._lacks("queue_pop")

    def queue_len(self, key: str) -> int:
        """Return how many items wait in a queue."""
        raise self._lacks("queue_len")

    def barrier(self, key: str, world_size: int, timeout: Timeout | None = None) -> None:
        """Return when `world_size` callers have come. Raises StoreTimeoutError. Blocks.

        A caller that timed out stays counted, and the key serves for one barrier only.
        """
        if self.add(f"{key}/num_members", 1) >= world_size:
            self.set(f"{key}/last_member", b"1")
        self.wait([f"{key}/last_member"], timedelta(seconds=self._wait_s(timeout)))

    def clone(self) -> Store:
        """Return another object for the same store, with the same timeout.

        That of a TCPStore has its own connection.

        The clone of a program's subclass has the class of this package that it derives from, as
        with torch.
        """
        raise self._lacks("clone")

    def has_extended_api(self) -> bool:
        """Return whether `append`, `multi_get` and `multi_set` are not made of other methods."""
        names = ("append", "multi_get", "multi_set")
        return all(getattr(type(self), name) is not getattr(Store, name) for name in names)

    def _lacks(self, method: str) -> StoreError:
        return StoreError(f"the store {type(self).__name__} has no {method}: define it there")

    def _wait_s(self, timeout: Timeout | None) -> float:
        return self._timeout_s if timeout is None else to_seconds(timeout)
