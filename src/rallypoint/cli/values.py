"""Reads single values of the command line: numbers, endpoints, choices. Pure.

Every reader takes a `Value` and raises `UsageError` with that value as it was written and what
would be right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rallypoint.cli.scan import Value
from rallypoint.config import DEFAULT_COORDINATOR_PORT, Endpoint
from rallypoint.core.limits import MAX_NODES, MAX_PORT, is_host
from rallypoint.core.wording import shown
from rallypoint.errors import UsageError
from rallypoint.store.access import parse_network

_MAX_DIGITS = 18
"""Longer numbers mean nothing here, and Python refuses to read very long ones."""
_LOOPBACK = "127.0.0.1"
EVENT_HANDLERS = ("console", "jsonl", "null")
"""Those that are built in."""


def integer(value: Value) -> int:
    """A whole number in plain digits, perhaps negative."""
    digits = value.text.strip()
    plain = digits.removeprefix("-")
    if not plain.isascii() or not plain.isdigit() or len(plain) > _MAX_DIGITS:
        raise value.wrong("needs a whole number")
    return int(digits)


def networks(value: Value) -> tuple[str, ...]:
    """CIDRs or single addresses with commas between them, in their plain form."""
    found = []
    for text in value.text.split(","):
        try:
            found.append(parse_network(text))
        except ValueError as error:
            raise value.wrong(
                f"needs networks like 10.0.0.0/8 or fd00::/8, or addresses ({error})"
            ) from None
    return tuple(found)


def seconds(value: Value, *, positive: bool = False) -> float:
    """A number of seconds, not negative; more than zero if `positive`."""
    try:
        number = float(value.text)
    except ValueError:
        raise value.wrong("needs a number of seconds") from None
    if not 0 <= number < float("inf") or (positive and number == 0):
        raise value.wrong(
            f"needs a number of seconds, {'more than 0' if positive else '0 or more'}"
        )
    return number


def port(value: Value, text: str | None = None) -> int:
    """A port number, 1 to 65535; of the whole value, or of `text` in it."""
    digits = value.text.strip() if text is None else text
    plain = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS
    if not plain or not 0 < int(digits) <= MAX_PORT:
        raise value.wrong(f"{shown(digits) or 'nothing'} is no port, 1 to 65535")
    return int(digits)


def choice(value: Value, known: Sequence[str]) -> str:
    """One of `known`, exactly."""
    if value.text not in known:
        raise value.wrong(f"needs one of {', '.join(known)}{nearest(value.text, known)}")
    return value.text


def nodes(value: Value) -> tuple[int, int]:
    """`N` or `MIN:MAX`, with 1 <= MIN <= MAX."""
    low, colon, high = value.text.partition(":")
    try:
        least = integer(Value(low, value.origin))
        most = integer(Value(high, value.origin)) if colon else least
    except UsageError:
        raise value.wrong("needs N or MIN:MAX, for example 4 or 2:4") from None
    if not 0 < least <= most <= MAX_NODES:
        raise value.wrong(f"needs 1 <= MIN <= MAX <= {MAX_NODES}")
    return least, most


def host(value: Value, text: str | None = None) -> str:
    """A name or an address without a port; brackets around IPv6 are taken off."""
    name = value.text if text is None else text
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    if ":" in name and not _is_ipv6(name):
        raise value.wrong("needs a host name or an address, without a port")
    if not is_host(name):
        raise value.wrong("needs a host name or an address")
    return name


def _is_ipv6(name: str) -> bool:
    from ipaddress import IPv6Address

    try:
        IPv6Address(name)
    except ValueError:
        return False
    return True


def endpoint(value: Value) -> Endpoint:
    """`HOST`, `HOST:PORT`, `[V6]:PORT`, or a bare IPv6 address without a port."""
    text = value.text.strip()
    if "://" in text or "," in text:
        raise value.wrong("needs one HOST:PORT, without a scheme")
    if text.startswith("["):
        name, bracket, rest = text.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise value.wrong("needs [ADDRESS]:PORT")
        return Endpoint(host(value, name[1:]), _port_or_default(value, rest))
    if text.count(":") > 1:
        return _bare_ipv6(value, text)
    name, colon, rest = text.partition(":")
    return Endpoint(host(value, name), _port_or_default(value, colon + rest))


def listen_at(value: Value) -> Endpoint:
    """`PORT` on loopback, or `HOST:PORT`; port 0 lets the system choose."""
    name, colon, digits = value.text.strip().rpartition(":")
    plain = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS
    if not plain or int(digits) > MAX_PORT or (colon and not name):
        raise value.wrong("needs PORT or HOST:PORT, for example 9400 or 0.0.0.0:9400")
    if ":" in name and not (name.startswith("[") and name.endswith("]")):
        raise value.wrong(f"an IPv6 address with a port needs brackets: [{name}]:{digits}")
    return Endpoint(host(value, name) if colon else _LOOPBACK, int(digits))


def _bare_ipv6(value: Value, text: str) -> Endpoint:
    head, _, tail = text.rpartition(":")
    if tail.isdigit() and len(tail) == 5:  # no part of an address has five digits
        raise value.wrong(f"an IPv6 address with a port needs brackets: [{head}]:{tail}")
    return Endpoint(host(value, text), DEFAULT_COORDINATOR_PORT)


def _port_or_default(value: Value, rest: str) -> int:
    return port(value, rest[1:]) if rest else DEFAULT_COORDINATOR_PORT


def output_map(value: Value) -> str:
    """`0` to `3` for all workers, or `RANK:0-3,...`; returned as it was written."""
    for part in value.text.split(","):
        rank, colon, streams = part.strip().rpartition(":")
        digits = rank.removeprefix("g")
        if streams not in ("0", "1", "2", "3") or (colon and not digits.isdigit()):
            raise value.wrong("needs 0 to 3, or LOCAL_RANK:0-3 with commas, for example 0:1,1:3")
        if not colon and "," in value.text:
            raise value.wrong("needs LOCAL_RANK:0-3 in each part, for example 0:1,1:3")
    return value.text


def module_names(value: Value) -> tuple[str, ...]:
    """Comma-separated names of Python modules, each once."""
    names = dict.fromkeys(name.strip() for name in value.text.split(",") if name.strip())
    for name in names:
        if not all(word.isidentifier() for word in name.split(".")):
            raise value.wrong(
                f"{shown(name)} is no name of a module; for example: --preload torch,numpy"
            )
    return tuple(names)


def signal_names(value: Value) -> tuple[str, ...]:
    """Comma-separated names of signals that a process may handle."""
    import signal

    known = [s.name for s in signal.Signals if s not in (signal.SIGKILL, signal.SIGSTOP)]
    names = tuple(name.strip() for name in value.text.split(",") if name.strip())
    for name in names:
        if name not in known:
            close = nearest(name, known)
            raise value.wrong(f"{shown(name)} is no signal that can be handled{close}")
    return names


def one_signal(value: Value) -> str:
    """The name of a signal that a process may handle, in full or without SIG."""
    name = value.text.strip().upper()
    if not name or "," in name:
        raise value.wrong("needs one signal, for example SIGUSR1")
    return signal_names(Value(name if name.startswith("SIG") else f"SIG{name}", value.origin))[0]


def preempt_notice(value: Value) -> str:
    """A file, or `cmd:` and a command of the shell."""
    kind, colon, command = value.text.partition(":")
    if not value.text.strip() or (kind == "cmd" and colon and not command.strip()):
        raise value.wrong("needs a file, or cmd:COMMAND")
    return value.text


def event_handler(value: Value, known: Callable[[], Sequence[str]]) -> str:
    """`NAME` or `NAME:ARGUMENT`; what other packages offer is only asked for if need be."""
    name = value.text.partition(":")[0]
    if value.text in ("jsonl", "jsonl:"):
        raise value.wrong("needs a file: jsonl:FILE")
    if name in EVENT_HANDLERS:
        if name != "jsonl" and value.text != name:
            raise value.wrong(f"{name} takes nothing after its name")
        return value.text
    offered = known()
    if name not in offered:
        listed = ", ".join("jsonl:FILE" if one == "jsonl" else one for one in offered)
        raise value.wrong(f"there is no such handler; there are: {listed}{nearest(name, offered)}")
    return value.text


def file_to_write(value: Value) -> str:
    """A path; not `-`, and none that ends like a directory's."""
    if value.text in ("", "-", ".", "..") or value.text.endswith("/") or "\0" in value.text:
        raise value.wrong("needs the name of a file")
    return value.text


def exit_codes(value: Value) -> tuple[int, ...]:
    """Comma-separated exit codes, 1 to 255. Each once, in order: all nodes must have the same."""
    codes = set()
    for part in value.text.split(","):
        digits = part.strip()
        if not digits.isascii() or not digits.isdigit() or not 0 < int(digits) < 256:
            raise value.wrong("needs exit codes from 1 to 255, for example 3 or 3,77")
        codes.add(int(digits))
    return tuple(sorted(codes))


def exit_override(value: Value, classes: Sequence[str]) -> tuple[str, int]:
    """`CLASS=N` of --exit-code."""
    name, equals, digits = value.text.partition("=")
    right = digits.isascii() and digits.isdigit() and int(digits) < 256
    if name not in classes or not equals or not right:
        raise value.wrong(f"needs CLASS=N: one of {', '.join(classes)}, and 0 to 255")
    return name, int(digits)


def nearest(word: str, known: Sequence[str]) -> str:
    """`; did you mean X?`, or nothing when no known word is near."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
