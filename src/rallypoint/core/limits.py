"""The limits of the values that one node sends another.

A peer with the job's token may still be broken, or not be what it seems. So every message passes
`check` as it is decoded. The table goes by a field's name, and settings have the ranges that the
command line has (`core/settings.py`). A field that neither lists has the strict limit of its type,
so that no field of a message is without one. An infinite number, or none, is in no range.

A job's record passes `check` with a table of its own (`takeover/record_limits.py`).

What only a comparison can refuse (a node rank of another job's size), `claims.py` and the machines
refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.core import settings
from rallypoint.core.round_record import ROUNDS_REPORTED
from rallypoint.core.settings import (
    MAX_EXIT_CODES,
    MAX_GIVEN,
    MAX_NODES,
    MAX_NUMBER,
    MAX_SECONDS,
    MAX_TOLD_WORKERS,
    MAX_WAIT_S,
    MAX_WORKERS_PER_NODE,
)
from rallypoint.core.text import quoted
from rallypoint.core.watch.questions import PIECE_BYTES
from rallypoint.errors import MessageError

MAX_WORLD = MAX_NODES * MAX_WORKERS_PER_NODE
MAX_UNIX_TIME = 253_370_764_800.0
"""The last valid time, in seconds since 1970: the beginning of the year 9999."""
MAX_PORT = 65535
MAX_NAME_BYTES = 255
"""The longest run id, node id, role or other name, in bytes: some become parts of file names."""
MAX_HOST_NAME_BYTES = 240
"""The longest host name in bytes; with an ordinal it becomes a node's id."""
MAX_RELEASE_BYTES = 64
"""The longest version of Rallypoint, in bytes."""
MAX_HOST = 253
"""The longest host name or address, in characters; each label of a DNS name has at most 63."""
MAX_SAID = 2000
"""The longest sentence from a node, in characters."""
MAX_SENTENCE = 16_000
"""The longest sentence that the coordinator composes, in characters. Workers have it in their
environment, where the kernel takes 128 KiB at most."""
MAX_MESSAGE = 4096
"""The longest one-line message of a failed worker, in characters."""
MAX_DETAIL = 24_000
"""The longest traceback, last output or stacks of a failed worker, in characters."""
MAX_PATH = 4096
"""The longest path in characters, the same as the kernel's."""
MAX_STEP = 2**53
"""The largest number of steps or tokens, 2**53: above it, readers of JSON can't tell all integers
apart. A node reports this value for a worker that has reported a larger one."""
MAX_FAILURES = 128
"""The most failures in one report; those that are left out are probably consequences. Also the most
items of any collection that `ITEMS` does not list."""
MAX_SIGNAL = 127
"""The largest signal number in a wait status. An agent that a signal ends exits with 128 plus the
number: a larger one could look like a success."""
MAX_SECRET_BYTES = 64
BYTES = {"piece": PIECE_BYTES}
"""The most bytes in a field of type `bytes`, by its name; any other has at most
`MAX_SECRET_BYTES`."""
ITEMS = {
    "no_restart_exit_codes": MAX_EXIT_CODES,
    "read": 2 * MAX_WORKERS_PER_NODE,
    "rounds": ROUNDS_REPORTED,
    "ports": MAX_WORKERS_PER_NODE + 1,
    "worker_addresses": MAX_TOLD_WORKERS,
}
"""The most items in a collection, by the name of its field; any other has at most
`MAX_FAILURES`."""

RANGES: dict[str, tuple[float, float]] = settings.RANGES | {
    "workers": (1, MAX_WORKERS_PER_NODE),
    "store_port": (1, MAX_PORT),
    "node_rank": (-1, MAX_NODES - 1),
    "stop_grace_s": (0, MAX_WAIT_S),
    "notice_s": (0, MAX_WAIT_S),
    "seq": (1, MAX_NUMBER),
    "signal": (0, MAX_SIGNAL),
    "code": (-MAX_GIVEN, MAX_GIVEN),
    "local_rank": (0, MAX_WORKERS_PER_NODE - 1),
    "rank": (0, MAX_WORLD - 1),
    "pid": (0, MAX_GIVEN),
    "age_s": (0, MAX_SECONDS),
    "wall_time": (0, MAX_UNIX_TIME),
    "step": (-1, MAX_STEP),
    "furthest": (-1, MAX_STEP),
    "known": (0, MAX_WORKERS_PER_NODE),
    "total": (-1, MAX_STEP),
    "tokens": (-1, MAX_STEP),
    "saved": (-1, MAX_STEP),
    "loss": (-1e300, 1e300),
    "furthest_step": (-1, MAX_STEP),
    "lost_steps": (0, MAX_STEP),
    "nodes": (0, MAX_NODES),
    "group_rank": (0, MAX_NODES - 1),
    "group_world_size": (1, MAX_NODES),
    "base_rank": (0, MAX_WORLD - 1),
    "base_role_rank": (0, MAX_WORLD - 1),
    "world_size": (1, MAX_WORLD),
    "role_world_size": (1, MAX_WORLD),
    "master_port": (1, MAX_PORT),
    "ports": (1, MAX_PORT),
    "coordinator_port": (0, MAX_PORT),
    "last_round": (-1, MAX_NUMBER),
    "port": (0, MAX_PORT),
    "stream": (0, 2),
    "next": (-1, MAX_NUMBER),
}
"""The least and the largest value of numbers, by the names of their fields."""
_COUNT, _SECONDS = (0, MAX_NUMBER), (0.0, MAX_SECONDS)
NAMES = {
    "run_id": MAX_NAME_BYTES,
    "node_id": MAX_NAME_BYTES,
    "former_id": MAX_NAME_BYTES,
    "incarnation": MAX_NAME_BYTES,
    "role": MAX_NAME_BYTES,
    "topology": MAX_NAME_BYTES,
    "machine": MAX_NAME_BYTES,
    "phase": MAX_NAME_BYTES,
    "host_name": MAX_HOST_NAME_BYTES,
    "release": MAX_RELEASE_BYTES,
}
"""The most bytes in a text that must be printable, by the name of its field."""
_MAY_BE_EMPTY = frozenset({"node_id", "former_id", "topology", "machine", "address", "release"})
_HOSTS = frozenset({"address", "master_addr"})
_WORDS = {"message": MAX_MESSAGE, "detail": MAX_DETAIL, "log_file": MAX_PATH}
"""The most characters in a text that comes from a worker, by the name of its field. These texts may
have characters that are not printable; whoever prints them escapes those."""
_SHOWN = 40

_S = TypeVar("_S", bound=Struct)


class Table(Struct, frozen=True):
    """The limits of one kind of data (messages, or a job's record), by the names of fields."""

    ranges: Mapping[str, tuple[float, float]]
    names: Mapping[str, int]
    may_be_empty: frozenset[str]
    """The names of fields that may be empty."""
    bytes: Mapping[str, int]
    items: Mapping[str, int]
    most_items: int
    """The most items in a collection that `items` does not list."""


MESSAGES = Table(RANGES, NAMES, _MAY_BE_EMPTY, BYTES, ITEMS, MAX_FAILURES)


def check(said: Struct, *, sentence: int = MAX_SAID) -> None:
    """Check every value of a message or a part of one. Raises MessageError.

    A text that no table lists has at most `sentence` characters. The error names the field, its
    value and the valid values.
    """
    if fault := fault_in(said, MESSAGES, sentence):
        raise MessageError(f"{type(said).__name__}{fault}")


def fit(said: _S, *, sentence: int = MAX_SAID) -> _S:
    """Return a node's report about its workers, with numbers, texts and tuples within their limits.

    Names, hosts and bytes are unchanged.
    """
    changed = {}
    for name in said.__struct_fields__:
        value = getattr(said, name)
        if (fitting := _fitting(value, name, sentence)) is not value:
            changed[name] = fitting
    return replace(said, **changed) if changed else said


def sentence_of(text: str, most: int = MAX_SAID) -> str:
    """Return the text on one line, cut to `most` characters. What is not printable is escaped."""
    text = text if text.isprintable() else quoted(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def is_host(text: str) -> bool:
    """Return whether the text has the form of a DNS name or an IP address. No name is looked up."""
    if ":" in text:
        address, _, zone = text.partition("%")
        digits = all(letter in "0123456789abcdefABCDEF:." for letter in address)
        return digits and len(text) <= MAX_HOST and zone.isprintable()
    labels = text.removesuffix(".").split(".")
    fit = len(text) <= MAX_HOST and all(0 < len(label) <= 63 for label in labels)
    return fit and all(letter.isalnum() or letter in "-_" for label in labels for letter in label)


def is_name(text: str, most: int = MAX_NAME_BYTES) -> bool:
    """Return whether the text is printable and has at most `most` bytes in UTF-8.

    Bytes that are not UTF-8 were decoded to surrogates, which are not printable.
    """
    return text.isprintable() and len(text.encode()) <= most


def fault_in(said: Struct, table: Table, sentence: int) -> str:
    """Return the first field with an invalid value, as `.name = VALUE (needs ...)`; empty: none."""
    ranges = table.ranges
    for name in said.__struct_fields__:
        value = getattr(said, name)
        kind = type(value)
        # Most values are numbers within their limits, or nothing: to pass over them costs no call.
        if kind is int or kind is float:
            least, most = ranges.get(name) or (_COUNT if kind is int else _SECONDS)
            if least <= value <= most:
                continue
        elif value is None or kind is bool or value == ():
            continue
        if fault := _value_fault(value, name, table, sentence):
            return f".{name}{fault}"
    return ""


def _value_fault(value: object, name: str, table: Table, sentence: int) -> str:
    kind, length = type(value), ""
    if kind is int or kind is float:
        number = cast("float", value)
        least, most = table.ranges.get(name) or (_COUNT if kind is int else _SECONDS)
        if least <= number <= most:
            return ""
        needs, shown = f"{least:.12g} to {most:.12g}", str(value)
    elif kind is bool or isinstance(value, Enum):
        return ""
    elif isinstance(value, str):
        if not (needs := _text_needs(value, name, table, sentence)):
            return ""
        shown, length = ascii(value[:_SHOWN]), f" ({len(value)} characters)"
    elif isinstance(value, bytes):
        if len(value) <= (longest := table.bytes.get(name, MAX_SECRET_BYTES)):
            return ""
        needs, shown = f"at most {longest} bytes", f"{len(value)} bytes"
    elif isinstance(value, tuple | frozenset | dict):
        longest = table.items.get(name, table.most_items)
        if len(value) <= longest:
            # The keys of a table first.
            for item in [*value, *value.values()] if isinstance(value, dict) else value:
                if item is not None and (fault := _value_fault(item, name, table, sentence)):
                    return fault
            return ""
        needs, shown = f"at most {longest} items", f"{len(value)} items"
    else:
        assert isinstance(value, Struct), f"{name} has no limit"
        if isinstance(value, settings.SharedSettings):
            return _settings_fault(value, sentence)
        return fault_in(value, table, sentence)
    return f" = {shown}{length} (needs {needs})"


@lru_cache(maxsize=16)
def _settings_fault(said: settings.SharedSettings, sentence: int) -> str:
    """Return the fault in settings; cached, because thousands of nodes send the same ones."""
    return fault_in(said, MESSAGES, sentence)


def _fitting(value: object, name: str, sentence: int) -> object:
    kind = type(value)
    if kind is int or kind is float:
        assert isinstance(value, int | float)
        least, most = RANGES.get(name) or (_COUNT if kind is int else _SECONDS)
        return value if least <= value <= most else kind(min(max(least, value), most))
    if isinstance(value, str) and name not in NAMES and name not in _HOSTS:
        longest = _WORDS.get(name)
        return sentence_of(value, sentence) if longest is None else value[:longest]
    if isinstance(value, tuple):
        longest = ITEMS.get(name, MAX_FAILURES)
        return tuple(_fitting(item, name, sentence) for item in value[:longest])
    return fit(value, sentence=sentence) if isinstance(value, Struct) else value


def _text_needs(text: str, name: str, table: Table, sentence: int) -> str:
    """Return what a text in this field must be, if this one is not; empty: it is valid."""
    if (most := table.names.get(name)) is not None:
        may_be_empty = name in table.may_be_empty
        fits = is_name(text, most) and (text or may_be_empty)
        return "" if fits else f"{0 if may_be_empty else 1} to {most} bytes, printable"
    if name in _HOSTS:
        fits = is_host(text) or (not text and name in _MAY_BE_EMPTY)
        return "" if fits else "a host name or an address"
    if (most := _WORDS.get(name)) is not None:
        return "" if len(text) <= most else f"at most {most} characters"
    fits = len(text) <= sentence and (sentence > MAX_SAID or text.isprintable())
    return "" if fits else f"at most {sentence} characters, printable"
