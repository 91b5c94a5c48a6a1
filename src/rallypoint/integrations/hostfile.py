"""Lists of hosts, as DeepSpeed's and MPI's launchers read them. Pure.

    worker-1 slots=8                   DeepSpeed, Open MPI
    node-b slots=8 max_slots=16        Open MPI
    node-c:8                           MPICH, Intel MPI; eight slots, not a port
    alice@node-d port=2222             a user and a port for ssh
    node-[05-07]                       three hosts, as Slurm writes them

A `#` begins a comment. A host that stands there several times has the slots of all of its lines,
one where none are named, as in a node file of PBS. `--hosts` has the same entries, with commas.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from msgspec import Struct

from rallypoint.core.limits import MAX_PORT
from rallypoint.core.settings import MAX_NODES, MAX_WORKERS_PER_NODE
from rallypoint.core.text import quoted, shown
from rallypoint.integrations.slurm_nodes import node_count, node_names

_ENTRY = re.compile(r"(?:(?P<user>[\w.-]+)@)?(?P<host>.+)", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,252}", re.ASCII)
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[\w.-]+)?", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
_SEVERAL = re.compile(r"\[[0-9,-]+\]", re.ASCII)
_COMMA_OR_BRACKET = re.compile(r"[\[\],]")
_KEYS = {
    **dict.fromkeys(("slots", "slot", "cpu", "cpus", "count"), "slots"),
    **dict.fromkeys(("max_slots", "max-slots"), "max_slots"),
    **dict.fromkeys(("user", "username", "user_name", "user-name"), "user"),
    "port": "port",
}


class Host(Struct, frozen=True):
    """One host of a job, and its ssh address."""

    host: str
    """The host name, an alias of ssh, or an address without brackets."""
    user: str = ""
    port: int | None = None
    """The port; None: the one in ssh's configuration."""
    slots: int | None = None
    """The number of workers that the host takes; None: not given."""
    max_slots: int | None = None
    name: str = ""
    """The name of the node in the job: `host`, unless another host of the job, with another user or
    port, has the same one. Then the user and the port are added, if they are given."""

    @property
    def target(self) -> str:
        """The destination for ssh: `USER@HOST` or `HOST`."""
        return f"{self.user}@{self.host}" if self.user else self.host


def read_hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts of a list such as `a,b:2,carol@n[1-3]`. Raises ValueError with the fault."""
    return _whole(found for part in _few(_parts(text)) for found in _entry(part, {}))


def read_hostfile(text: str) -> tuple[Host, ...]:
    """Return the hosts of a hostfile's text, in its order.

    Raises ValueError with the fault, and with its line if it is in one.
    """
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if not words:
            continue
        try:
            (entry,) = _few((words[0],), before=len(hosts))
            hosts += _entry(entry, _given(words[1:]))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return _whole(hosts)


def without(hosts: Sequence[Host], excluded: str) -> tuple[Host, ...]:
    """Return the hosts without those in `excluded`, a list with commas.

    Raises ValueError for a name that is not one of the hosts, for a malformed list, and if no host
    is left.
    """
    named: dict[str, list[Host]] = {}
    for host in hosts:
        for name in {host.name, host.host, host.target}:
            named.setdefault(name, []).append(host)
    gone: set[Host] = set()
    for part in _few(_parts(excluded)):
        for name in _expanded(part):
            if name not in named:
                raise ValueError(f"{shown(name)} is none of the hosts")
            gone.update(named[name])
    left = tuple(host for host in hosts if host not in gone)
    if not left:
        raise ValueError("no host is left")
    return left


def _parts(text: str) -> Iterator[str]:
    begin, is_inside = 0, False
    ends = (found.span() for found in _COMMA_OR_BRACKET.finditer(text))
    for at, after in chain(ends, [(len(text), len(text))]):
        if text[at:after] in ("[", "]"):
            is_inside = text[at] == "["
        elif not is_inside or at == len(text):
            part = text[begin:at].strip()
            if not part:
                raise ValueError("a name is missing: hosts are given as a,b,c")
            yield part
            begin = after


def _few(entries: Iterable[str], before: int = 0) -> Sequence[str]:
    """Return the entries, unless they name more hosts than a job can have nodes.

    `before` is the number of hosts that were named already. Hosts are counted without building
    their names. Raises ValueError.
    """
    found = []
    for entry in entries:
        before += node_count(entry) if _SEVERAL.search(entry) else 1
        if before > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} hosts")
        found.append(entry)
    return found


def _expanded(text: str) -> Sequence[str]:
    return node_names(text) if _SEVERAL.search(text) else (text,)


def _entry(text: str, given: dict[str, str]) -> Iterator[Host]:
    for one in _expanded(text):
        yield _host(one, given)


def _host(text: str, given: dict[str, str]) -> Host:
    if "://" in text:
        raise ValueError(f"{shown(text)}: needs a host; a port is given as port=N in a hostfile")
    parts = _ENTRY.fullmatch(text)
    host, slots = _split(parts["host"] if parts else "")
    user = given.get("user") or (parts["user"] if parts else "") or ""
    if not (_NAME.fullmatch(host) or _IPV6.fullmatch(host)):
        if len(text.split()) > 1:
            raise ValueError(f"{quoted(text)}: hosts are given as a,b,c, or one a line in a file")
        raise ValueError(f"{shown(text)}: is not the name of a host")
    if user and not _USER.fullmatch(user):
        raise ValueError(f"{shown(user)}: is not the name of a user")
    if slots and "slots" in given:
        raise ValueError(f"{shown(text)} slots={shown(given['slots'])}: says the slots twice")
    number = _number("slots", given.get("slots", slots), MAX_WORKERS_PER_NODE)
    most = _number("max_slots", given.get("max_slots", ""), MAX_WORKERS_PER_NODE)
    if number is not None and most is not None and number > most:
        raise ValueError(f"slots={number}: more than max_slots={most}")
    return Host(host, user, _number("port", given.get("port", ""), MAX_PORT), number, most)


def _split(text: str) -> tuple[str, str]:
    """Split `name:N`, `[v6]:N`, `name`, or a bare IPv6 address into the host and the text of N."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return "", ""
        return host, rest[1:]
    if text.count(":") > 1:
        return text, ""
    host, _, slots = text.partition(":")
    return host, slots


def _given(words: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise ValueError(f"{shown(word)}: needs KEY=VALUE, for example slots=8")
        name = _KEYS.get(key.lower())
        if name is None:
            raise ValueError(f"{shown(word)}: needs one of slots, max_slots, user, port")
        if name in found:
            raise ValueError(f"{shown(word)}: is given twice")
        found[name] = value
    return found


def _number(key: str, text: str, most: int) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or not 0 < int(text) <= most:
        raise ValueError(f"{key}={shown(text)}: needs a number from 1 to {most}")
    return int(text)


def _whole(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Return each host once, with the slots of all of its entries, and with a unique name.

    Raises ValueError if a host has more slots than its limit, and if there is no host.
    """
    found: dict[tuple[str, str, int | None], Host] = {}
    for each in hosts:
        key = (each.host, each.user, each.port)
        if (before := found.get(key)) is not None:
            slots = (before.slots or 1) + (each.slots or 1)
            most = before.max_slots or each.max_slots
            if slots > min(most or slots, MAX_WORKERS_PER_NODE):
                raise ValueError(f"{each.host}: {slots} slots: more than its limit")
            each = Host(*key, slots, most)
        found[key] = each
    if not found:
        raise ValueError("it names no host")
    shared = Counter(each.host for each in found.values())
    return tuple(_named(each, unique=shared[each.host] == 1) for each in found.values())


def _named(host: Host, *, unique: bool) -> Host:
    name = host.host
    if not unique:
        name = host.target if host.port is None else f"{host.target}:{host.port}"
    return Host(host.host, host.user, host.port, host.slots, host.max_slots, name)
