"""Decides how the nodes of a job find each other, from the command line.

    given                                       means
    --standalone, or one node and nothing       this node alone, on a port the system chooses
    --rdzv-endpoint, --rdzv-backend tcp|c10d    elastic: ranks are given by the coordinator
    --node-rank, --master-addr                  static: ranks are given by the person, also with
                                                --rdzv-endpoint, but not with tcp or c10d
    --master-port, for one node                 static, without --rdzv-endpoint
    --rdzv-backend static                       static, even when --rdzv-endpoint says where
    --rdzv-backend of an engine of records      any node leads, by a register in that place
    --rdzv-backend of another package           by that handler, to which the endpoint belongs

As under torchrun, one node with neither endpoint nor --master-port is alone even if --node-rank,
--master-addr or the backend tcp, c10d or static is given, so that two such jobs on one machine
don't disturb each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.cli.machine import ThisHost
from rallypoint.cli.parser import Scanned
from rallypoint.cli.run_options.empty_values import was_empty
from rallypoint.cli.run_options.fixed_ranks import is_static, without_fixed_ranks
from rallypoint.cli.values import (
    Given,
    endpoint,
    hang_timeout,
    host,
    integer,
    is_by_register,
    nearest,
    port,
    seconds,
    truth,
)
from rallypoint.config import (
    DEFAULT_STATIC_PORT,
    Endpoint,
    HandlerConfig,
    RendezvousConfig,
)
from rallypoint.core.liveness import RESET_SHARE
from rallypoint.core.settings import (
    BY_ENDPOINT,
    CONF,
    ENGINE_NAMES,
    FLAGS,
    SETTINGS,
    UNNAMED_RUN_ID,
    parameters,
)
from rallypoint.core.text import by_register, named, shown, spelled
from rallypoint.errors import UsageError
from rallypoint.wire.address import ANY_PORT, Address

_BACKENDS = (*BY_ENDPOINT, *ENGINE_NAMES)
_INTERVAL_S, _ATTEMPTS = 5.0, 3
"""The defaults of torchrun for the two keys (keep_alive_interval in seconds,
keep_alive_max_attempt) whose product is the lease, if only one of them is given."""
HEARTBEAT_S, BEATS = 1.0, 5
"""The longest interval of heartbeats in seconds, and the least number of heartbeats in a lease."""
_ROWS = {row.flag: row for row in SETTINGS}
_TWO_WAYS = """\
--nnodes {nnodes}: several nodes need an endpoint; start each one with
  rallypoint run --nnodes {nnodes} --rdzv-endpoint HOST:29400 ...
or, with fixed ranks (K is 0 on the node ADDRESS, then 1, 2, ...),
  rallypoint run --nnodes {most} --node-rank K --master-addr ADDRESS ..."""

Fields = dict[str, Any]
"""Values by the name of the field of a configuration that they fill."""


class Reading(Struct, frozen=True):
    """The result of reading the options: the rendezvous, and the values for other settings."""

    rendezvous: RendezvousConfig
    fields: dict[str, Fields]
    """The values of the given settings, by part of `AgentConfig` (such as `stop`) and field."""
    scanned: Scanned
    """The command line, with the keys of `--rdzv-conf` among the options; a package's handler keeps
    its keys as they were."""


def read_rendezvous(scanned: Scanned, machine: ThisHost, notices: list[str]) -> Reading:
    """Read all options, and decide how the nodes find each other.

    Remarks for the user are added to `notices`. Raises UsageError, and RendezvousPlugInError for an
    unusable plug-in.
    """
    if (often := scanned.get("--max-no-progress")) is not None and integer(often) == 1:
        raise often.wrong(
            f"needs 2 or more: to end the job at its first failure: {named.max_restarts} 0"
        )
    scanned = without_fixed_ranks(scanned, notices)
    scanned, hang_phases = _hang_phases(scanned)
    least, most = scanned.nodes
    backend = _backend(scanned.get("--rdzv-backend"), machine.handlers)
    decide = _by_endpoint
    has_keys = scanned.get("--rdzv-conf") is not None or scanned.get("store_type") is not None
    if has_keys and backend in (None, *BY_ENDPOINT[:2]) and not scanned.on("--standalone"):
        from rallypoint.cli.run_options.register import with_shared_path

        scanned, backend = with_shared_path(scanned, backend)
    if backend is not None and backend not in BY_ENDPOINT and not scanned.on("--standalone"):
        decide = _by_register if is_by_register(backend) else _by_handler
    scanned, decided = decide(scanned, backend or "", machine, notices)
    fields = scanned.fields(_ROWS)
    if (register := decided.get("register")) is not None:
        decided["register"] = replace(register, **fields["register"])
    else:
        notices += [
            f"{given.origin} has no effect without {by_register()}"
            for name in ("--port-range", "hold")
            if (given := scanned.get(name)) is not None and "handler" not in decided
        ]
    lease_s = _lease(scanned)
    chosen = {
        "run_id": UNNAMED_RUN_ID,
        "reset_grace_s": lease_s * RESET_SHARE,
        **fields["rendezvous"],
        "min_nodes": least,
        "max_nodes": most,
        "lease_s": lease_s,
        "heartbeat_s": min(HEARTBEAT_S, lease_s / BEATS),
        "env_styles": tuple(sorted(set(fields["rendezvous"].get("env_styles", ())))),
        "node_rank": None,
        "hang_phases": hang_phases,
        **decided,
    }
    return Reading(RendezvousConfig(**chosen), fields, scanned)


def _hang_phases(scanned: Scanned) -> tuple[Scanned, tuple[tuple[str, float], ...]]:
    """Return the options with the usual limit of --hang-timeout alone, and the limits of phases."""
    given, flag = scanned.get("--hang-timeout"), "--hang-timeout"
    if given is None or not {",", "="} & {*given.text}:
        return scanned, ()
    usual, phases = hang_timeout(FLAGS[flag], given)
    return scanned.plus({flag: usual}), phases


def _by_endpoint(
    scanned: Scanned, backend: str, machine: ThisHost, notices: list[str]
) -> tuple[Scanned, Fields]:
    """Return the settings of a job whose coordinator is at the endpoint, or of a single node."""
    most = scanned.nodes[1]
    alone = _is_alone(scanned, most, notices)
    static = not alone and is_static(scanned, backend or None)
    is_empty = was_empty(scanned, "--rdzv-endpoint")
    # Fixed ranks may do without an endpoint, but not with one that got lost.
    is_lost = most > 1 and is_empty and scanned.get("--master-addr") is None
    if not alone and (is_lost or not static) and scanned.get("--rdzv-endpoint") is None:
        nnodes = scanned.get("--nnodes")
        two_ways = _TWO_WAYS.format(nnodes=nnodes.text if nnodes else most, most=most)
        raise UsageError(f"{is_empty}{two_ways}")
    scanned = with_conf(scanned, notices)
    rank = _node_rank(scanned, static=static)
    where = Endpoint("localhost", 0) if alone else _endpoint(scanned)
    if where.port == 0 and most > 1:
        given = scanned.get("--rdzv-endpoint") or scanned.get("--master-port")
        assert given is not None, "the defaults are ports"
        raise given.wrong(ANY_PORT)
    static = static and where.port > 0
    if static:
        notices += _remarks_on_static(scanned, where, most)
    decided = {
        "static": static,
        "endpoint": where,
        "node_rank": rank if static else None,
        "is_host": _is_host(scanned, rank, alone=alone or where.port == 0, static=static),
        "store": Endpoint("", 0 if static else _store_port(scanned, where.port)),
    }
    if alone and scanned.get("--rdzv-id") is None:
        decided["run_id"] = machine.random_id()
    return scanned, decided


def _store_port(scanned: Scanned, taken: int = 0) -> int:
    """Return the port of the workers' store; 0: the system chooses.

    `taken` is the coordinator's port, which the store can't have. Raises UsageError.
    """
    given = scanned.get("--store-port")
    if given is None:
        return 0
    if (number := port(given)) and number == taken:
        raise given.wrong("the coordinator has that port: give the workers' store another")
    return number


def _remarks_on_static(scanned: Scanned, where: Endpoint, most: int) -> list[str]:
    """Return remarks on options that contradict the endpoint, or that fixed ranks ignore.

    The endpoint takes precedence. There is also a remark on an endpoint that other machines can't
    reach.
    """
    found, endpoint_ = [], scanned.get("--rdzv-endpoint")
    if most > 1 and (where.host == "localhost" or Address(where.host, 0).is_loopback):
        given = endpoint_ or scanned.get("--master-addr")
        said = given.origin if given else "without --master-addr"
        fix = "--master-addr HOST"
        if endpoint_ is not None:
            fix = f"{named.rdzv_endpoint} HOST:PORT"
        found.append(
            f"{said}: each node looks for node rank 0 on its own machine ({where.host}). If they "
            f"run on several machines, give all of them {fix}, the host of node rank 0"
        )
    if endpoint_ is not None:
        address, number = scanned.get("--master-addr"), scanned.get("--master-port")
        other = [address] if address is not None and host(address) != where.host else []
        other += [number] if number is not None and port(number) != where.port else []
        found += [f"{each.origin} has no effect with {endpoint_.origin}" for each in other]
    if (store := scanned.get("--store-port")) is not None:
        found.append(f"{store.origin} has no effect with fixed ranks: the store is at {where}")
    return found


def with_conf(scanned: Scanned, notices: list[str]) -> Scanned:
    """Return the command line with each key of --rdzv-conf as an option of that name.

    If a key is repeated, the last one counts, as under torchrun. A key that neither any torch nor
    Rallypoint knows raises UsageError, because an ignored setting is worse than a refused one. A
    key without effect here is mentioned in `notices`.
    """
    conf: dict[str, Given] = {}
    known = _known_keys(scanned)
    for key, value in scanned.conf():
        if has_no_effect("key", key, value.origin, notices) and key not in known:
            continue
        if key not in known:
            raise (scanned.get("--rdzv-conf") or value).wrong(_no_key(scanned, key, value.text))
        conf[key] = value
    if "timeout" in conf:
        conf.setdefault("join_timeout", conf["timeout"])
    return scanned.plus(conf)


def _known_keys(scanned: Scanned) -> Collection[str]:
    """Return the known keys of --rdzv-conf; if it was not given, also the library's parameters.

    A program that calls this from Python gives keys in another way. Some of them are options of
    the command line.
    """
    return CONF if scanned.get("--rdzv-conf") is not None else CONF | parameters()


def _no_key(scanned: Scanned, key: str, text: str) -> str:
    """Return the error text for an unknown key of --rdzv-conf, perhaps an option's name."""
    known = _known_keys(scanned)
    name = key.lstrip("-").replace("-", "_").lower()
    row = next((row for row in FLAGS.values() if row.name in (name, f"rdzv_{name}")), None)
    if row is not None:
        value = f" {shown(text)}" if row.metavar else ""
        return f"{shown(key)} is no key but an option: give {spelled(row.flag)}{value}"
    bare = name.removeprefix("rdzv_")
    close = f"; did you mean {bare}?" if bare in known else nearest(key, known)
    close = close or f"; known are {', '.join(sorted(known))}"
    return f"unknown key {shown(key)}{close}"


def has_no_effect(kind: str, name: str, origin: str, notices: list[str]) -> bool:
    """Return whether some version of torch knows the option or key, and it has no effect here.

    Then a remark is added to `notices`. `origin` is how the user gave it.
    """
    from rallypoint.torch_versions import without_effect

    known = without_effect(kind, name)
    if known is not None:
        notices.append(f"{origin} has no effect: {known.why}")
    return known is not None


def _lease(scanned: Scanned) -> float:
    given = scanned.get("--lease")
    if given is not None:
        return seconds(given, positive=True)
    interval, attempts = scanned.get("keep_alive_interval"), scanned.get("keep_alive_max_attempt")
    if interval is None and attempts is None:
        return RendezvousConfig(UNNAMED_RUN_ID).lease_s
    interval_s = _INTERVAL_S if interval is None else float(interval.text)
    return interval_s * (_ATTEMPTS if attempts is None else integer(attempts))


def _by_register(
    scanned: Scanned, backend: str, machine: ThisHost, notices: list[str]
) -> tuple[Scanned, Fields]:
    """Return the settings of a job that any of its nodes may lead, by a record in a register."""
    from rallypoint.cli.run_options.register import (
        OF_A_FIXED_HOST,
        read_register,
        remarks_on,
    )

    register, scanned = read_register(scanned, backend, machine)
    scanned = with_conf(scanned, notices)
    notices += remarks_on(scanned, backend)
    scanned = scanned.minus(OF_A_FIXED_HOST)
    return scanned, {"register": register, "store": Endpoint("", _store_port(scanned))}


def _by_handler(
    scanned: Scanned, backend: str, machine: ThisHost, notices: list[str]
) -> tuple[Scanned, Fields]:
    """Return the settings for another package's handler, with the keys unchanged.

    `--node-rank` becomes the key `rank`. Options of the coordinator have no effect, which is
    mentioned in `notices`.
    """
    where, rank = scanned.get("--rdzv-endpoint"), scanned.get("--node-rank")
    given = scanned.get("--rdzv-backend")
    by = f"--rdzv-backend {backend}" if given is None else given.origin
    conf = {key: value.text for key, value in scanned.conf()}
    if scanned.on("--insecure"):
        notices.append(f"--insecure has no effect with {by}")
    if rank is not None:
        conf.setdefault("rank", str(integer(rank)))
    notices += [
        f"{without.origin} has no effect with {by}"
        for flag, row in FLAGS.items()
        if row.not_with_handler and (without := scanned.get(flag)) is not None
    ]
    handler = HandlerConfig(backend, where.text if where else "", tuple(conf.items()))
    store = Endpoint("", _store_port(scanned))
    return scanned, {"handler": handler, "store": store}


def _backend(given: Given | None, handlers: Callable[[], Sequence[str]]) -> str | None:
    if given is None or given.text in _BACKENDS or is_by_register(given.text):
        return given.text if given else None
    from rallypoint.register.engines import RENAMED, known_engines, renamed_to

    if given.text in RENAMED:
        raise given.wrong(renamed_to(given.text))
    known = list(dict.fromkeys((*_BACKENDS, *known_engines(), *handlers())))
    if given.text in known:
        return given.text
    raise given.wrong(f"known are {', '.join(known)}{nearest(given.text, known)}")


def _is_alone(scanned: Scanned, most: int, notices: list[str]) -> bool:
    where, address = scanned.get("--rdzv-endpoint"), scanned.get("--master-addr")
    fixed_port = scanned.get("--master-port")
    if scanned.on("--standalone"):
        if most > 1:
            nnodes = scanned.get("--nnodes")
            raise UsageError(f"{nnodes.origin if nnodes else ''}: --standalone runs one node only")
        if where is not None:
            notices.append(f"{where.origin} has no effect with --standalone")
        return True
    if most > 1 or where is not None or (fixed_port is not None and port(fixed_port) > 0):
        return False
    if address is not None:
        notices.append(f"{address.origin} has no effect on a job of one node without --master-port")
    return True


def _node_rank(scanned: Scanned, *, static: bool) -> int | None:
    given = scanned.get("--node-rank")
    if given is None:
        return 0 if static else None
    rank, most = integer(given), scanned.nodes[1]
    if not 0 <= rank < most:
        raise given.wrong(f"must be 0..{most - 1}, as {named.nnodes} is {most}")
    return rank


def _endpoint(scanned: Scanned) -> Endpoint:
    given = scanned.get("--rdzv-endpoint")
    if given is not None:
        return endpoint(given)
    address, number = scanned.get("--master-addr"), scanned.get("--master-port")
    return Endpoint(
        host(address) if address else "127.0.0.1",
        port(number) if number else DEFAULT_STATIC_PORT,
    )


def _is_host(scanned: Scanned, rank: int | None, *, alone: bool, static: bool) -> bool | None:
    if alone:
        return True
    asked = scanned.get("is_host")
    if not static and asked is not None:
        return truth(asked)
    return None if rank is None else rank == 0
