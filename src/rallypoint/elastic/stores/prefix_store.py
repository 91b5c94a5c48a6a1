"""A part of a store: everything that is done through it gets a prefix before its keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from rallypoint.elastic.stores.store import (
    Store,
    StoreValue,
    Timeout,
    check_store,
    to_bytes,
    to_key,
    to_keys,
    to_seconds,
)


class PrefixStore(Store):
    """A view of another store, whose keys `<prefix>/<key>` it has as `<key>`.

    Prefixes nest: that of the innermost `PrefixStore` stands first in the other store's keys.

    The timeout is that of the underlying store: setting it here sets it there. Errors name the
    whole keys. `num_keys` counts those of the whole store, as torch's does. The store may be one of
    torch's, or a program's, which gets values as bytes; its errors stay its own, and `append`,
    `barrier`, `multi_get` and `multi_set` are made of its other methods where it lacks them. Raises
    ParameterError for what is no store.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        to_key(prefix)
        check_store(store)
        self._prefix = f"{prefix}/"
        self._store = store

    @property
    def underlying_store(self) -> Store:
        """The store that holds the prefixed keys."""
        return self._store

    @property
    def timeout(self) -> timedelta:
        return self._store.timeout

    def set_timeout(self, timeout: Timeout) -> None:
        self._store.set_timeout(_span(timeout))

    def set(self, key: str, value: StoreValue) -> None:
        self._store.set(self._whole(key), to_bytes(value))

    def get(self, key: str) -> bytes:
        return self._store.get(self._whole(key))

    def add(self, key: str, amount: int) -> int:
        return self._store.add(self._whole(key), amount)

    def compare_set(self, key: str, expected_value: StoreValue, desired_value: StoreValue) -> bytes:
        expected, desired = to_bytes(expected_value), to_bytes(desired_value)
        return to_bytes(self._store.compare_set(self._whole(key), expected, desired))

    def check(self, keys: Sequence[str]) -> bool:
        return self._store.check(self._all_whole(keys))

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        if timeout is None:
            self._store.wait(self._all_whole(keys))
        else:
            self._store.wait(self._all_whole(keys), _span(timeout))

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(self._whole(key))

    def num_keys(self) -> int:
        return self._store.num_keys()

    def list_keys(self) -> list[str]:
        skipped = len(self._prefix)
        return [key[skipped:] for key in self._store.list_keys() if key.startswith(self._prefix)]

    def append(self, key: str, value: StoreValue) -> None:
        if self._has("append"):
            self._store.append(self._whole(key), to_bytes(value))
        else:
            super().append(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        if self._has("multi_get"):
            return self._store.multi_get(self._all_whole(keys))
        return super().multi_get(keys)

    def multi_set(self, keys: Sequence[str], values: Sequence[StoreValue]) -> None:
        if self._has("multi_set"):
            self._store.multi_set(self._all_whole(keys), [to_bytes(value) for value in values])
        else:
            super().multi_set(keys, values)

    def queue_push(self, key: str, value: StoreValue) -> None:
        self._store.queue_push(self._whole(key), to_bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._store.queue_pop(self._whole(key), block)

    def queue_len(self, key: str) -> int:
        return self._store.queue_len(self._whole(key))

    def barrier(self, key: str, world_size: int, timeout: Timeout | None = None) -> None:
        wait_s = None if timeout is None else _span(timeout)
        if self._has("barrier"):
            self._store.barrier(self._whole(key), world_size, wait_s)
        else:
            super().barrier(key, world_size, wait_s)

    def clone(self) -> PrefixStore:
        return PrefixStore(self._prefix[:-1], self._store.clone())

    def has_extended_api(self) -> bool:
        return self._store.has_extended_api()

    def _has(self, method: str) -> bool:
        """Return whether the store has this method.

        A program's store need not derive from `Store`.
        """
        return callable(getattr(self._store, method, None))

    def _whole(self, key: str) -> str:
        to_key(key)
        return self._prefix + key

    def _all_whole(self, keys: Sequence[str]) -> list[str]:
        to_keys(keys)
        return [self._prefix + key for key in keys]


def _span(timeout: Timeout) -> timedelta:
    """Return the timeout as a timedelta, which torch's stores take, too."""
    return timedelta(seconds=to_seconds(timeout))
