"""Reads single values of the command line: numbers, endpoints, choices.

Every reader takes a `Given` and raises `UsageError` with that value as it was written and what
would be right. `read` picks the reader by the kind of the setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rallypoint.config import DEFAULT_COORDINATOR_PORT, Endpoint
from rallypoint.core.given import Given as Given
from rallypoint.core.limits import MAX_NAME_BYTES, MAX_PORT, is_name
from rallypoint.core.outcomes import CODES, FINER
from rallypoint.core.settings import (
    BY_ENDPOINT,
    ENGINE_NAMES,
    MAX_NODES,
    Setting,
    out_of_range,
)
from rallypoint.core.text import by_register, named, shown
from rallypoint.errors import UsageError
from rallypoint.files import local_path
from rallypoint.store.access import parse_network
from rallypoint.wire.address import checked_host, is_port, read_port, split_endpoint

_MAX_DIGITS = 18
"""The most digits of a whole number; Python refuses to parse very long ones."""
_LOOPBACK = "127.0.0.1"
EVENT_HANDLERS = ("console", "jsonl", "null")
"""The names of the built-in event handlers."""
_TRUE = frozenset({"true", "t", "yes", "y", "on"})
_FALSE = frozenset({"false", "f", "no", "n", "off"})
_BLANKS_COUNT = frozenset({"template", "texts", "pattern"})
"""The kinds of settings whose values keep blanks at their beginning and end."""
_PATHS = {"file": "a file", "path": "a file", "directory": "a directory"}
_BEFORE_PATHS = {"--event-log-handler": "jsonl:", "--topology": "file:", "--preempt-notice": ""}
_PATH_BEGINS = ("/", "./", "../", "~", "file:")
T = TypeVar("T")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def given(row: Setting, text: str, *, by_variable: bool = False, elsewhere: bool = False) -> Given:
    """Make the value of a setting from the text that a user wrote.

    It removes line ends around the text, and blanks unless the kind keeps them, and expands paths
    (`files.local_path`). `by_variable`: the text is from the variable of the setting. `elsewhere`:
    a path is one of other machines, so its `~` stays (except for the kind `path`). Raises
    UsageError for an address in the place of a path.
    """
    origin = f"{row.env_name}={shown(text)}" if by_variable else f"{row.flag} {shown(text)}".strip()
    bare = text.strip("\r\n" if row.kind in _BLANKS_COUNT else None).removeprefix("\ufeff")
    head, needs = _path_in(row, bare)
    if needs:
        expand = row.kind == "path" or not elsewhere
        bare = head + place(Given(bare[len(head) :].strip(), origin), needs, expand=expand)
    return Given(bare, origin)


def word(text: str) -> Given:
    """Return a word that is not an option, without blanks around it, as a value for the readers."""
    return Given(text.strip(), shown(text))


def place(value: Given, needs: str, *, expand: bool = True) -> str:
    """Return the value as a path. `needs` says in errors what kind of file. Raises UsageError.

    `expand`: `~` is replaced by the user's home. The path may stay relative.
    """
    try:
        return local_path(value.text, f"needs {needs}", expand=expand)
    except ValueError as error:
        raise value.wrong(str(error)) from None


def _path_in(row: Setting, text: str) -> tuple[str, str]:
    """Return the prefix of a path in a value, such as `file:`, and what file is meant, for errors.

    Both are empty if the value has no path.
    """
    if (needs := _PATHS.get(row.kind)) is not None:
        return "", needs
    head = _BEFORE_PATHS.get(row.flag)
    if head is None or not text.startswith(head) or text.startswith("cmd:"):
        return "", ""
    return head, "a file"


def name(value: Given) -> str:
    """Return a valid name of a job, a node or a role of workers. Raises UsageError.

    An empty value is returned as it is.
    """
    if value.text and not is_name(value.text):
        raise value.wrong(f"needs 1 to {MAX_NAME_BYTES} bytes of printable characters")
    return value.text


def truth(value: Given) -> bool:
    """Return whether a value means yes: true, t, yes, y, on, or a number other than 0.

    Raises UsageError.
    """
    word = value.text.strip().lower()
    if word in _TRUE or (word.isdecimal() and int(word) != 0):
        return True
    if word in _FALSE or word.isdecimal():
        return False
    raise value.wrong("needs 1 or 0, true or false")


def integer(value: Given) -> int:
    """Return a whole number in plain digits, perhaps negative. Raises UsageError."""
    digits = value.text.strip()
    plain = digits.removeprefix("-")
    if not plain.isascii() or not plain.isdigit() or len(plain) > _MAX_DIGITS:
        raise value.wrong("needs a whole number")
    return int(digits)


def networks(value: Given) -> tuple[str, ...]:
    """Return CIDRs, or single addresses, separated by commas, in their plain form.

    Raises UsageError.
    """
    found = []
    for text in value.text.split(","):
        try:
            found.append(parse_network(text))
        except ValueError as error:
            raise value.wrong(
                f"needs networks like 10.0.0.0/8 or fd00::/8, or addresses ({error})"
            ) from None
    return tuple(found)


def integer_within(value: Given, least: int, most: int) -> int:
    """Return a whole number from `least` to `most`. Raises UsageError for any other value."""
    number = integer(value)
    if not least <= number <= most:
        raise value.wrong(f"needs {least} to {most}")
    return number


def seconds(value: Given, *, positive: bool = False) -> float:
    """Return a number of seconds, not negative; more than zero if `positive`. Raises UsageError."""
    try:
        number = float(value.text)
    except ValueError:
        raise value.wrong("needs a number of seconds") from None
    if not 0 <= number < float("inf") or (positive and number == 0):
        raise value.wrong(
            f"needs a number of seconds, {'more than 0' if positive else '0 or more'}"
        )
    return number


def hang_timeout(row: Setting, value: Given) -> tuple[Given, tuple[tuple[str, float], ...]]:
    """Split `SECONDS,PHASE=SECONDS,...`: return the part before the first comma, and the limits.

    The limits are pairs of a phase's name and its value, read as the setting `row`. Raises
    UsageError.
    """
    from rallypoint.worker.shm import is_phase_name

    usual, _, rest = value.text.partition(",")
    if "=" in usual:
        raise value.wrong("needs SECONDS first, for all other phases: 300,start=1800")
    limits: dict[str, float] = {}
    for phase, text in conf_words(Given(rest, value.origin)):
        if not is_phase_name(phase):
            raise value.wrong(f"{shown(phase)} is no phase: 1 to 24 letters, digits, _ or -")
        limits[phase] = read(row, Given(text, value.origin))
    return Given(usual, value.origin), tuple(sorted(limits.items()))


def port(value: Given) -> int:
    """Return a port number; 0: the system chooses. Raises UsageError."""
    return _of_address(value, lambda text: read_port(text.strip(), 0))


def ports(value: Given) -> tuple[int, int]:
    """Return the first and the last port of `FIRST-LAST`, or of one port. Raises UsageError."""
    first, dash, last = (part.strip() for part in value.text.partition("-"))
    last = last if dash else first
    if not is_port(first) or not is_port(last) or not 0 < int(first) <= int(last):
        raise value.wrong(f"needs FIRST-LAST, from 1 to {MAX_PORT}, for example 29400-29409")
    return int(first), int(last)


def choice(value: Given, known: Sequence[str]) -> str:
    """Return the value, which must be one of `known`, not abbreviated. Raises UsageError."""
    if value.text not in known:
        raise value.wrong(f"needs one of {', '.join(known)}{nearest(value.text, known)}")
    return value.text


def is_by_register(backend: str) -> bool:
    """Return whether a job with this backend has a register, so that any node may lead.

    Reads packages' entry points only for an unknown name. Raises RendezvousPlugInError for an
    unusable offer of a package.
    """
    if backend in ENGINE_NAMES or backend in BY_ENDPOINT:
        return backend in ENGINE_NAMES
    from rallypoint.register.engines import find

    return find(backend) is not None


def engine(value: Given, known: Sequence[str]) -> str:
    """Return the value: one of `known`, or the name of an engine that a package offers for records.

    Reads packages' entry points only for an unknown name. Raises UsageError, and
    RendezvousPlugInError for an unusable offer.
    """
    if value.text in known or is_by_register(value.text):
        return value.text
    from rallypoint.register.engines import known_engines

    return choice(value, (*known, *(name for name in known_engines() if name not in known)))


def nodes(value: Given) -> tuple[int, int]:
    """Return least and most of `N` or `MIN:MAX`, with 1 <= MIN <= MAX. Raises UsageError."""
    low, colon, high = value.text.partition(":")
    try:
        least = integer(Given(low, value.origin))
        most = integer(Given(high, value.origin)) if colon else least
    except UsageError:
        raise value.wrong("needs N or MIN:MAX, for example 4 or 2:4") from None
    if not 0 < least <= most <= MAX_NODES:
        raise value.wrong(f"needs 1 <= MIN <= MAX <= {MAX_NODES}")
    return least, most


def host(value: Given) -> str:
    """Return a host name, or an address without brackets; it has no port. Raises UsageError."""
    return _of_address(value, checked_host)


def endpoint(
    value: Given, default_port: int = DEFAULT_COORDINATOR_PORT, least_port: int = 0
) -> Endpoint:
    """Read `HOST`, `HOST:PORT`, `[V6]:PORT`, or a bare IPv6 address without a port.

    `default_port` counts where the value has no port. Raises UsageError, also for a port below
    `least_port`.
    """
    if "," in value.text:
        raise value.wrong(
            "needs one HOST:PORT: nodes find the one of several coordinators that leads by "
            f"{by_register()}"
        )
    if value.text.startswith(_PATH_BEGINS):
        raise value.wrong(
            f"needs HOST:PORT; for a directory that all nodes share: {named.rdzv_backend} file"
        )
    where = Endpoint(*_of_address(value, lambda text: split_endpoint(text, default_port)))
    if 0 <= where.port < least_port:
        raise value.wrong(f"{where.port} is not a valid port ({least_port}..{MAX_PORT})")
    return where


def listen_at(value: Given) -> Endpoint:
    """Read `PORT` on loopback, or `HOST:PORT`; port 0: the system chooses. Raises UsageError."""
    text = value.text.strip()
    name, colon, digits = text.rpartition(":")
    if ":" in name and not name.startswith("["):
        raise value.wrong(f"an IPv6 address with a port needs brackets: [{name}]:{digits}")
    if not is_port(digits) or (colon and not name):
        raise value.wrong("needs PORT or HOST:PORT, for example 9400 or 0.0.0.0:9400")
    return endpoint(value, 0) if colon else Endpoint(_LOOPBACK, int(digits))


def _of_address(value: Given, read_text: Callable[[str], T]) -> T:
    try:
        return read_text(value.text)
    except ValueError as error:
        raise value.wrong(str(error)) from None


def conf_words(value: Given) -> Iterator[tuple[str, str]]:
    """Yield the key and value of each part of `KEY=VALUE,...`. Raises UsageError."""
    for part in value.text.split(","):
        if not part.strip():
            continue
        key, equals, text = (word.strip() for word in part.partition("="))
        if not equals or not key or not text:
            raise value.wrong(f"{part.strip()!r} is not KEY=VALUE")
        if re.search(r"[;\s]\s*\w+=", text):
            raise value.wrong("needs commas between its keys: KEY=VALUE,KEY=VALUE")
        yield key, text


def output_map(value: Given) -> str:
    """Check `0` to `3` for all workers, or `LOCAL_RANK:0-3,...`, and return it as it was written.

    `g` before a rank makes it a global one. Raises UsageError.
    """
    for part in value.text.split(","):
        rank, colon, streams = part.strip().rpartition(":")
        digits = rank.removeprefix("g")
        if streams not in ("0", "1", "2", "3") or (colon and not digits.isdigit()):
            raise value.wrong("needs 0 to 3, or LOCAL_RANK:0-3 with commas, for example 0:1,1:3")
        if not colon and "," in value.text:
            raise value.wrong("needs LOCAL_RANK:0-3 in each part, for example 0:1,1:3")
    return value.text


def module_names(value: Given) -> tuple[str, ...]:
    """Return names of Python modules, separated by commas, each once. Raises UsageError."""
    names = dict.fromkeys(name.strip() for name in value.text.split(",") if name.strip())
    for name in names:
        if not all(word.isidentifier() for word in name.split(".")):
            raise value.wrong(
                f"{shown(name)} is not the name of a module; for example: --preload torch,numpy"
            )
    return tuple(names)


def variable_names(value: Given) -> tuple[str, ...]:
    """Return names of variables, or patterns of names, separated by commas. Raises UsageError."""
    names = tuple(name.strip() for name in value.text.split(",") if name.strip())
    if not names or not all(is_name(name) and "=" not in name for name in names):
        raise value.wrong("needs names of variables, for example SLURM_PROCID or 'SLURM_*'")
    return names


def env_styles(value: Given, known: Sequence[str]) -> tuple[str, ...]:
    """Return styles of variables, separated by commas, but not torch's, which always applies.

    Raises UsageError for one that is not in `known`.
    """
    return tuple(word for word in _choices(value, known) if word != "torch")


def _choices(value: Given, known: Sequence[str]) -> list[str]:
    words = [word.strip() for word in value.text.split(",")]
    return [choice(Given(word, value.origin), known) for word in words]


def signal_names(value: Given) -> tuple[str, ...]:
    """Return names of signals that a process may handle, separated by commas. Raises UsageError."""
    import signal

    known = [s.name for s in signal.Signals if s not in (signal.SIGKILL, signal.SIGSTOP)]
    names = tuple(name.strip() for name in value.text.split(",") if name.strip())
    for name in names:
        if name not in known:
            close = nearest(name, known)
            raise value.wrong(f"{shown(name)} is not a signal that can be handled{close}")
    return names


def one_signal(value: Given) -> str:
    """Return the name of a signal that a process may handle; SIG may be left out.

    Raises UsageError.
    """
    name = value.text.strip().upper()
    if not name or "," in name:
        raise value.wrong("needs one signal, for example SIGUSR1")
    return signal_names(Given(name if name.startswith("SIG") else f"SIG{name}", value.origin))[0]


def preempt_notice(value: Given) -> str:
    """Return the value: a file, or `cmd:` and a shell command.

    Raises UsageError for an empty one.
    """
    kind, colon, command = value.text.partition(":")
    if not value.text.strip() or (kind == "cmd" and colon and not command.strip()):
        raise value.wrong("needs a file, or cmd:COMMAND")
    return value.text


def event_handler(value: Given, known: Callable[[], Sequence[str]]) -> str:
    """Return `NAME` or `NAME:ARGUMENT`, whose name is that of an event handler. Raises UsageError.

    `known` returns the handlers, also those of packages; it is called only for a name that is not
    built in.
    """
    name = value.text.partition(":")[0]
    if value.text in ("jsonl", "jsonl:"):
        raise value.wrong("needs a file: jsonl:FILE")
    if name in EVENT_HANDLERS:
        if name != "jsonl" and value.text != name:
            raise value.wrong(f"{name} takes no argument")
        return value.text
    offered = known()
    if name not in offered:
        listed = ", ".join("jsonl:FILE" if one == "jsonl" else one for one in offered)
        raise value.wrong(f"there is no such handler; there are: {listed}{nearest(name, offered)}")
    return value.text


def summary_file(value: Given) -> str:
    """Return a file to write, or a directory, with a slash at its end, for a file of each node.

    Raises UsageError.
    """
    path = value.text.rstrip("/")
    return f"{path}/" if path and value.text.endswith("/") else file_to_write(value)


def file_to_write(value: Given) -> str:
    """Return a path; UsageError for `-`, and for one that ends like a directory's."""
    if value.text in ("", "-", ".", "..") or value.text.endswith("/") or "\0" in value.text:
        raise value.wrong("needs the name of a file")
    return value.text


def exit_codes(value: Given) -> tuple[int, ...]:
    """Return exit codes, 1 to 255, separated by commas. Raises UsageError.

    Each is returned once, in ascending order: all nodes must have the same tuple.
    """
    codes = set()
    for part in value.text.split(","):
        digits = part.strip()
        if not digits.isascii() or not digits.isdigit() or not 0 < int(digits) < 256:
            raise value.wrong("needs exit codes from 1 to 255, for example 3 or 3,77")
        codes.add(int(digits))
    return tuple(sorted(codes))


def exit_override(value: Given) -> tuple[tuple[str, int]]:
    """Return the class and the exit code in `CLASS=N` of --exit-code, as one pair.

    Raises UsageError.
    """
    classes = (*CODES, *FINER)
    name, equals, digits = value.text.partition("=")
    right = digits.isascii() and digits.isdigit() and int(digits) < 256
    if name not in classes or not equals or not right:
        raise value.wrong(f"needs CLASS=N: one of {', '.join(classes)}, and 0 to 255")
    return ((name, int(digits)),)


def size(value: Given) -> int:
    """Return a number of bytes, as `500M` or `2G`, above 0. Raises UsageError.

    K, M, G and T are powers of 1024.
    """
    found = re.fullmatch(r"(\d{1,15})([KMGT]?)(?:I?B)?", value.text.strip().upper())
    if found is None or not int(found[1]):
        raise value.wrong("needs a number of bytes, with K, M or G if you like, for example 100M")
    return int(found[1]) << _UNITS[found[2]]


def progress_pattern(value: Given) -> str:
    """Return the name of a profile, or a regular expression with a group `step`, as written.

    Raises UsageError.
    """
    from rallypoint.process.relay.pattern import ProgressPattern

    try:
        ProgressPattern(value.text)
    except ValueError as error:
        raise value.wrong(str(error)) from None
    return value.text


def trackers(value: Given) -> tuple[str, ...]:
    """Return names of trackers of experiments (wandb, mlflow), each once. Raises UsageError."""
    return tuple(dict.fromkeys(_choices(value, ("wandb", "mlflow"))))


def texts(value: Given) -> tuple[str, ...]:
    """Return texts separated by commas; two commas stand for one within a text.

    Raises UsageError.
    """
    if not value.text:
        return ()
    # No argument and no variable can hold a null.
    parts = value.text.replace(",,", "\0").split(",")
    found = tuple(part.replace("\0", ",") for part in parts)
    if not all(found):
        raise value.wrong("an empty text matches every line; ,, stands for a comma")
    return found


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` with the nearest known word, or nothing if none is near."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


_READERS: Mapping[str, Callable[[Given], object]] = {
    "switch": truth,
    **dict.fromkeys(("text", "template", "path"), lambda value: value.text),
    "name": name,
    "seconds": seconds,
    "integer": integer,
    "bytes": size,
    "nodes": nodes,
    "host": host,
    "port": port,
    "ports": ports,
    "listen": listen_at,
    "networks": networks,
    "exit_codes": exit_codes,
    "exit_code_of": exit_override,
    "signal": one_signal,
    "signals": signal_names,
    "notice": preempt_notice,
    "modules": module_names,
    "variables": variable_names,
    "file": summary_file,
    "directory": lambda value: value.text or None,
    "streams": output_map,
    "texts": texts,
    "trackers": trackers,
    "pattern": progress_pattern,
}
"""The readers by kind; options whose meaning depends on others or on the machine are read where
that is known."""
PLAIN = frozenset({*_READERS, "choice", "engine", "styles"})
"""The kinds of values that `read` parses."""


def read(row: Setting, value: Given) -> Any:
    """Parse the value of a setting by its kind; numbers must be in its range. Raises UsageError.

    An engine's name may also raise RendezvousPlugInError.
    """
    if row.kind == "choice":
        return choice(value, row.metavar.split("|"))
    if row.kind == "styles":
        return env_styles(value, row.metavar.split("|"))
    if row.kind == "engine":
        return engine(value, row.metavar.split("|"))
    if row.kind not in ("seconds", "integer"):
        return _READERS[row.kind](value)
    if row.kind == "seconds":
        number = seconds(value, positive=row.least > 0 or row.above_zero)
    elif (number := integer(value)) < row.least:
        raise value.wrong(f"needs {row.least:g} or more")
    if needs := out_of_range(row, number):
        raise value.wrong(needs)
    return number
