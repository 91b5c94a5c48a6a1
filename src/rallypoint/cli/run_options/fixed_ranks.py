"""The options of fixed ranks, which elastic jobs ignore with a remark. Pure.

Operators and schedulers set `PET_NODE_RANK`, `PET_MASTER_ADDR` and `PET_MASTER_PORT` on every node,
whatever backend the job has. As with torchrun, an elastic job ignores them.
"""

from __future__ import annotations

from rallypoint.cli.parser import Scanned
from rallypoint.cli.values import is_by_register
from rallypoint.core.text import named

_OF_FIXED_RANKS = ("--node-rank", "--master-addr", "--master-port")


def without_fixed_ranks(scanned: Scanned, notices: list[str]) -> Scanned:
    """Return the command line of an elastic job without the options of fixed ranks.

    A remark is added to `notices` if there were any. A job that is not elastic keeps them. Raises
    UsageError, and RendezvousPlugInError for an unusable plug-in.
    """
    given = [value for flag in _OF_FIXED_RANKS if (value := scanned.get(flag)) is not None]
    elastic = _elastic_by(scanned)
    if not given or not elastic:
        return scanned
    *others, last = (value.origin for value in given)
    listed = f"{', '.join(others)} and {last} have" if others else f"{last} has"
    has_port = scanned.get("--master-port") is not None
    fix = "; --store-port is the port of the workers' store" if has_port else ""
    notices.append(
        f"{listed} no effect with {elastic}: only fixed ranks use "
        f"{'them' if others else 'it'} ({named.rdzv_backend} static){fix}"
    )
    return scanned.minus(_OF_FIXED_RANKS)


def _elastic_by(scanned: Scanned) -> str:
    """Return the option that makes a job elastic, as it was written.

    Empty: none does, as with fixed ranks, another package's handler, or neither a backend nor an
    endpoint.
    """
    if scanned.on("--standalone"):
        return "--standalone"
    backend, where = scanned.get("--rdzv-backend"), scanned.get("--rdzv-endpoint")
    if backend is not None:
        gives_ranks = backend.text in ("tcp", "c10d") or is_by_register(backend.text)
        return backend.origin if gives_ranks else ""
    return where.origin if where is not None and not is_static(scanned, None) else ""


def is_static(scanned: Scanned, backend: str | None) -> bool:
    """Return whether the ranks of nodes are fixed by the options, not given by a coordinator.

    `backend` is that of the command line, and decides alone; None: it has none. Raises UsageError.
    """
    if backend is not None:
        return backend == "static"
    if scanned.get("--node-rank") is not None or scanned.get("--master-addr") is not None:
        return True
    # A port alone means a static job only if no other node needs the host.
    single = scanned.get("--rdzv-endpoint") is None and scanned.nodes[1] == 1
    return single and scanned.get("--master-port") is not None
