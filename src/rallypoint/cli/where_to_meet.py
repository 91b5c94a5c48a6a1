"""Decides where the nodes of a job meet, from the command line. Pure.

    asked for                                   is
    --standalone, or one node and nothing       this node alone, on a port the system chooses
    --rdzv-endpoint                             elastic: ranks are given by the coordinator
    --node-rank, --master-addr, --master-port   static: ranks are given by the person
    --rdzv-backend static                       static, even when --rdzv-endpoint says where
    --rdzv-backend file, or another package's   by that handler, to which the endpoint belongs

As under torchrun, one node with neither endpoint nor --master-port is alone whatever else it says,
so that two such jobs on one machine don't meet each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rallypoint.cli.rdzv_conf import RdzvConf, read_foreign_conf, read_rdzv_conf
from rallypoint.cli.scan import Scanned, Value
from rallypoint.cli.values import choice, endpoint, host, integer, nearest, nodes, port, seconds
from rallypoint.config import DEFAULT_STATIC_PORT, Endpoint, OnJoin, RendezvousConfig
from rallypoint.core.liveness import RESET_SHARE
from rallypoint.core.model import UNNAMED_RUN_ID
from rallypoint.errors import UsageError

_BACKENDS = ("tcp", "c10d", "static")
_NOT_YET = ("etcd", "etcd-v2")
_ONLY_WITH_A_COORDINATOR = (
    "--master-addr",
    "--join-settle",
    "--min-growth-interval",
    "--on-join",
    "--hang-timeout",
    "--drain-signal",
    "--max-node-losses",
    "--stop-patience",
    "--topology",
    "--reconnect-timeout",
    "--reconnect-grace",
    "--reset-grace",
    "--token-file",
    "--token-fd",
)

_FILE_IS_INSECURE = (
    "--rdzv-backend file: nodes prove no token, and everybody who reaches the port of a round's "
    "store can use it: add --insecure on every node to accept that, or leave --rdzv-backend out "
    "and give --rdzv-endpoint HOST:29400"
)
_TWO_WAYS = """\
--nnodes {nnodes}: the nodes need a place to meet; start each one with
  rallypoint run --nnodes {nnodes} --rdzv-endpoint HOST:29400 ...
or, with ranks of your own (K is 0 on the node ADDRESS, then 1, 2, ...),
  rallypoint run --nnodes {most} --node-rank K --master-addr ADDRESS ..."""


def read_rendezvous(
    scanned: Scanned,
    random_id: Callable[[], str],
    notices: list[str],
    handlers: Callable[[], Sequence[str]] = tuple,
) -> RendezvousConfig:
    """Builds the configuration; remarks for the person are added to `notices`.

    `handlers` names the backends whose handlers the nodes may meet by, those of other packages too.

    Raises UsageError.
    """
    nnodes = scanned.get("--nnodes")
    least, most = nodes(nnodes) if nnodes else (1, 1)
    backend = _backend(scanned.get("--rdzv-backend"), handlers)
    if backend is not None and backend not in _BACKENDS and not scanned.on("--standalone"):
        return _by_handler(scanned, backend, notices)
    alone = _is_alone(scanned, most, notices)
    static = not alone and _is_static(scanned, backend)
    if not alone and not static and scanned.get("--rdzv-endpoint") is None:
        raise UsageError(_TWO_WAYS.format(nnodes=nnodes.text if nnodes else most, most=most))
    conf = read_rdzv_conf(scanned.get("--rdzv-conf"))
    rank = _node_rank(scanned, static=static, notices=notices)
    where = Endpoint("localhost", 0) if alone else _endpoint(scanned)
    fixed_port = scanned.get("--master-port")
    run_id = scanned.get("--rdzv-id")
    local_addr = scanned.get("--local-addr")
    node_id, topology = scanned.get("--node-id"), scanned.get("--topology")
    fallback_id = random_id() if alone and run_id is None else UNNAMED_RUN_ID
    lease_s = _seconds(scanned, "--lease", conf.lease_s, 15.0)
    return RendezvousConfig(
        run_id=run_id.text if run_id else fallback_id,
        min_nodes=least,
        max_nodes=most,
        lease_s=lease_s,
        heartbeat_s=min(1.0, lease_s / 5),
        reconnect_grace_s=_seconds(scanned, "--reconnect-grace", None, 1.0),
        reset_grace_s=_seconds(scanned, "--reset-grace", None, lease_s * RESET_SHARE),
        join_timeout_s=conf.join_timeout_s or 600.0,
        last_call_s=conf.last_call_s or 30.0,
        host_timeout_s=conf.host_timeout_s or 30.0,
        join_settle_s=_seconds(scanned, "--join-settle", None, 10.0),
        min_growth_interval_s=_seconds(scanned, "--min-growth-interval", None, 60.0),
        on_join=_on_join(scanned.get("--on-join")),
        max_node_losses_per_hour=_losses(scanned.get("--max-node-losses")),
        stop_patience_s=_seconds(scanned, "--stop-patience", None, 60.0),
        endpoint=where,
        static=static,
        node_rank=rank if static else None,
        is_host=_is_host(conf, rank, alone=alone, static=static),
        reconnect_timeout_s=_optional_seconds(scanned.get("--reconnect-timeout")),
        node_id=node_id.text if node_id else None,
        topology=topology.text if topology else "",
        local_addr=host(local_addr) if local_addr else None,
        store_port=port(fixed_port) if fixed_port and not static else 0,
    )


def _by_handler(scanned: Scanned, backend: str, notices: list[str]) -> RendezvousConfig:
    """A handler gets what is for it as it was written; the coordinator's options have no effect."""
    nnodes, where = scanned.get("--nnodes"), scanned.get("--rdzv-endpoint")
    if where is None and backend == "file":
        raise UsageError(
            "--rdzv-backend file: needs --rdzv-endpoint PATH, a file or a directory that all share"
        )
    least, most = nodes(nnodes) if nnodes else (1, 1)
    conf = dict(read_foreign_conf(scanned.get("--rdzv-conf")))
    insecure = scanned.on("--insecure")
    if backend == "file":
        if not insecure:
            raise UsageError(_FILE_IS_INSECURE)
        conf["insecure"] = "true"
    elif insecure:
        notices.append(f"--insecure has no effect with --rdzv-backend {backend}")
    rank = scanned.get("--node-rank")
    if rank is not None:
        conf.setdefault("rank", str(integer(rank)))
    notices += [
        f"{given.origin} has no effect with --rdzv-backend {backend}"
        for name in _ONLY_WITH_A_COORDINATOR
        if (given := scanned.get(name)) is not None
    ]
    fixed_port, local_addr = scanned.get("--master-port"), scanned.get("--local-addr")
    run_id, node_id = scanned.get("--rdzv-id"), scanned.get("--node-id")
    lease_s = _seconds(scanned, "--lease", None, 15.0)
    return RendezvousConfig(
        run_id=run_id.text if run_id else UNNAMED_RUN_ID,
        min_nodes=least,
        max_nodes=most,
        lease_s=lease_s,
        heartbeat_s=min(1.0, lease_s / 5),
        node_id=node_id.text if node_id else None,
        local_addr=host(local_addr) if local_addr else None,
        store_port=port(fixed_port) if fixed_port else 0,
        handler=backend,
        handler_endpoint=where.text if where else "",
        handler_conf=tuple(conf.items()),
    )


def _backend(given: Value | None, handlers: Callable[[], Sequence[str]]) -> str | None:
    if given is None or given.text in _BACKENDS:
        return given.text if given else None
    if given.text in _NOT_YET:
        raise given.wrong("not yet; tcp needs no server, and is the default")
    known = (*_BACKENDS, *(name for name in handlers() if name not in _BACKENDS))
    if given.text in known:
        return given.text
    raise given.wrong(f"known are {', '.join(known)}{nearest(given.text, known)}")


def _is_alone(scanned: Scanned, most: int, notices: list[str]) -> bool:
    where, address = scanned.get("--rdzv-endpoint"), scanned.get("--master-addr")
    if scanned.on("--standalone"):
        if most > 1:
            nnodes = scanned.get("--nnodes")
            raise UsageError(f"{nnodes.origin if nnodes else ''}: --standalone is one node only")
        notices += [
            f"{given.origin} has no effect with --standalone"
            for given in (where, address)
            if given is not None
        ]
        return True
    if most > 1 or where is not None or scanned.get("--master-port") is not None:
        return False
    if address is not None:
        notices.append(f"{address.origin} has no effect on a job of one node without --master-port")
    return True


def _is_static(scanned: Scanned, backend: str | None) -> bool:
    if backend is not None:
        return backend == "static"
    if scanned.get("--node-rank") is not None or scanned.get("--master-addr") is not None:
        return True
    # A port alone says where node 0 listens only when there is no other node to tell the host to.
    single = scanned.get("--rdzv-endpoint") is None and _most(scanned) == 1
    return single and scanned.get("--master-port") is not None


def _most(scanned: Scanned) -> int:
    nnodes = scanned.get("--nnodes")
    return nodes(nnodes)[1] if nnodes else 1


def _node_rank(scanned: Scanned, *, static: bool, notices: list[str]) -> int | None:
    given = scanned.get("--node-rank")
    if given is None:
        return 0 if static else None
    rank, most = integer(given), _most(scanned)
    if not 0 <= rank < most:
        raise given.wrong(f"must be 0..{most - 1}, as --nnodes is {most}")
    if not static and rank > 0:
        why = "the coordinator gives the ranks"
        notices.append(f"{given.origin} only says that another node hosts: {why}")
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


def _is_host(conf: RdzvConf, rank: int | None, *, alone: bool, static: bool) -> bool | None:
    """Node 0 hosts, also where its number gives no rank: whoever else could bind must not race."""
    if alone:
        return True
    if not static and conf.is_host is not None:
        return conf.is_host
    return None if rank is None else rank == 0


def _on_join(given: Value | None) -> OnJoin:
    if given is None:
        return OnJoin.RESTART
    return OnJoin(choice(given, [mode.value for mode in OnJoin]))


def _losses(given: Value | None) -> int:
    if given is None:
        return 10
    count = integer(given)
    if count < 0:
        raise given.wrong("needs 0 or more")
    return count


def _seconds(scanned: Scanned, name: str, fallback: float | None, default: float) -> float:
    given = scanned.get(name)
    if given is not None:
        return seconds(given, positive=name == "--lease")
    return default if fallback is None else fallback


def _optional_seconds(given: Value | None) -> float | None:
    return None if given is None else seconds(given)
