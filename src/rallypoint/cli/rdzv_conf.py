"""Reads --rdzv-conf: torchrun's keys for its c10d and static backends. Pure.

| key | here |
| --- | --- |
| join_timeout | how long a forming round may lack nodes (600 s) |
| timeout | the same, as the static backend spells it; join_timeout wins |
| last_call_timeout | how long the first round waits for more than the minimum (30 s) |
| host_timeout | how long nobody hosting is tolerated (30 s); not of torchrun |
| is_host | true: this node hosts the coordinator; false: it never does; else whoever can |
| keep_alive_interval x keep_alive_max_attempt | the lease, unless --lease is given |
| close_timeout, heartbeat_timeout, read_timeout | checked, then unused: nothing waits for them |
| store_type | tcp; for a file there is --rdzv-backend file |

A key that is none of these is an error: a setting that looks obeyed and is not is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from rallypoint.cli.scan import Value, truth
from rallypoint.cli.values import integer, nearest, seconds

_INTERVAL_S = 5.0
_ATTEMPTS = 3
_KEYS = (
    "join_timeout",
    "last_call_timeout",
    "host_timeout",
    "is_host",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "close_timeout",
    "heartbeat_timeout",
    "read_timeout",
    "timeout",
    "store_type",
)


class RdzvConf(Struct, frozen=True):
    """What was asked for; None: nothing was."""

    join_timeout_s: float | None = None
    last_call_s: float | None = None
    host_timeout_s: float | None = None
    is_host: bool | None = None
    lease_s: float | None = None


def read_rdzv_conf(given: Value | None) -> RdzvConf:
    """Reads `k=v,k=v`; blanks around keys and values don't matter. Raises UsageError."""
    pairs = _pairs(given) if given is not None else {}
    times = {
        key: seconds(value, positive=True)
        for key, value in pairs.items()
        if key not in ("is_host", "store_type", "keep_alive_max_attempt")
    }
    store = pairs.get("store_type")
    if store is not None and store.text == "file":
        raise store.wrong("leave it out to meet over TCP, or give --rdzv-backend file")
    if store is not None and store.text != "tcp":
        raise store.wrong("needs tcp")
    host = pairs.get("is_host")
    return RdzvConf(
        join_timeout_s=times.get("join_timeout", times.get("timeout")),
        last_call_s=times.get("last_call_timeout"),
        host_timeout_s=times.get("host_timeout"),
        is_host=None if host is None else truth(host),
        lease_s=_lease(times.get("keep_alive_interval"), pairs.get("keep_alive_max_attempt")),
    )


def read_foreign_conf(given: Value | None) -> tuple[tuple[str, str], ...]:
    """The keys of a handler's own, as they are: the handler says what it does not know.

    Raises UsageError.
    """
    return () if given is None else tuple(_words(given))


def _lease(interval_s: float | None, attempts: Value | None) -> float | None:
    if interval_s is None and attempts is None:
        return None
    count = _ATTEMPTS if attempts is None else integer(attempts)
    if attempts is not None and count < 1:
        raise attempts.wrong("needs 1 or more")
    return (_INTERVAL_S if interval_s is None else interval_s) * count


def _pairs(given: Value) -> dict[str, Value]:
    pairs: dict[str, Value] = {}
    for key, text in _words(given):
        if key == "rank":
            raise given.wrong("rank is given by --node-rank")
        if key not in _KEYS:
            raise given.wrong(f"unknown key {key}{nearest(key, _KEYS)}")
        pairs[key] = Value(text, f"--rdzv-conf {key}={text}")
    return pairs


def _words(given: Value) -> Iterator[tuple[str, str]]:
    for part in given.text.split(","):
        if not part.strip():
            continue
        key, equals, text = (word.strip() for word in part.partition("="))
        if not equals or not key or not text:
            raise given.wrong(f"{part.strip()!r} is not KEY=VALUE")
        yield key, text
