"""Where the register of a job is kept that any node may lead: in a directory, in etcd or
in Kubernetes."""

from __future__ import annotations

import os.path
from typing import Protocol

from rallypoint.config import RegisterConfig, RendezvousConfig
from rallypoint.errors import RendezvousConnectionError, UsageError
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.directory.file_systems import (
    lies_here,
    lies_on,
    local_file_system,
    why_not_there,
)
from rallypoint.register.directory.files import LocalFiles
from rallypoint.register.directory.upkeep import prepare, sweep
from rallypoint.register.leader_process import LifeLocks
from rallypoint.register.record import Register

FLAG = "--rdzv-endpoint"


class Place(Protocol):
    """For one job. All but `open` block."""

    @property
    def name(self) -> str:
        """What is waited for."""

    def prepare(self) -> list[str]:
        """See that the register can be kept there; returns remarks for a person. Raises UsageError
        or InfrastructureError, and RendezvousConnectionError for what may end by itself."""

    def unanswered(self, seconds: float, why: str) -> str:
        """What a person reads who has waited so long. `why`: the last error, if there was one."""

    def is_the_same(self) -> str:
        """What must be so for all nodes of the job."""

    def open(self, token: bytes | None) -> Register:
        """The register, without I/O. `token`: the job's; None: it needs none."""

    def sweep(self) -> None:
        """Remove what other jobs have left long ago, as far as that is possible."""


class Registers(Protocol):
    """Those of all jobs in one place, for a process that is no node of any (`rallypoint serve`).
    All but `open` block, and one thread calls them and the registers."""

    @property
    def name(self) -> str:
        """Where jobs are kept."""

    def prepare(self) -> list[str]:
        """As `Place.prepare`."""

    def open(self, run_id: str, token: bytes | None) -> Register:
        """As `Place.open`, of the job with this run id."""

    def changed(self) -> list[str]:
        """The run ids of the jobs whose registers have changed since the last call. What can't be
        read is left out."""

    def sweep(self) -> None:
        """As `Place.sweep`."""

    def life_locks(self) -> LifeLocks | None:
        """Locks there, of which this process holds one until it ends; None: there are none."""


def registers_of(register: RegisterConfig, flag: str = FLAG) -> Registers:
    """All that lie where this one would. `flag`: how a person gave the place."""
    # For `serve` alone.
    if register.etcd is not None:
        from rallypoint.register.etcd.registers import EtcdRegisters

        return EtcdRegisters(register.etcd, register.hold_s)
    if register.kubernetes is not None:
        from rallypoint.register.kubernetes.registers import KubernetesRegisters

        return KubernetesRegisters(register.kubernetes, register.hold_s)
    from rallypoint.register.directory.store import RegistersIn

    return RegistersIn(register.directory, flag)


def place_of(rendezvous: RendezvousConfig) -> Place:
    """That of this node's job."""
    register = rendezvous.register
    assert register is not None
    # Most jobs need neither of these modules.
    if register.etcd is not None:
        from rallypoint.register.etcd.place import EtcdPlace

        return EtcdPlace(register.etcd, rendezvous.run_id, register.hold_s)
    if register.kubernetes is not None:
        from rallypoint.register.kubernetes.place import KubernetesPlace

        return KubernetesPlace(register.kubernetes, rendezvous.run_id, register.hold_s)
    return DirectoryPlace(register.directory, rendezvous)


class DirectoryPlace:
    """A directory, which is made if there is none."""

    def __init__(self, path: str, rendezvous: RendezvousConfig) -> None:
        self._path, self._run_id = path, rendezvous.run_id
        self._is_shared = rendezvous.max_nodes > 1
        self._may_part = rendezvous.min_nodes < rendezvous.max_nodes

    @property
    def name(self) -> str:
        """See `Place`, also for the other methods."""
        return f"the directory {self._path}"

    def prepare(self) -> list[str]:
        path = self._path
        if self._is_shared and (why := why_not_there(path, may_part=self._may_part)):
            raise RendezvousConnectionError(why)
        if os.path.isfile(path):
            raise UsageError(
                f"{FLAG} {path}: it is a file, as earlier versions used for --rdzv-backend file: "
                "name a directory that all nodes share (a file between peers is for a program's "
                "DynamicRendezvousHandler)"
            )
        missing = _missing(path)
        remarks = prepare(path, LocalFiles(), FLAG)
        if self._is_shared and (local := local_file_system(path)):
            remarks.append(lies_here(path, local))
        if missing:
            made = f"{path}, which was missing"
            if len(missing) > 1:
                made = f"{path}, and {missing[-1]} above it, which were missing"
            shared = ": all nodes must see this directory" if self._is_shared else ""
            remarks.append(f"made {made}{shared}")
        return remarks

    def unanswered(self, seconds: float, why: str) -> str:
        waited = f"waited {seconds:g} s"
        if why:
            return f"{FLAG} {self._path}: {why} ({waited})"
        return (
            f"{FLAG} {self._path} does not answer: {waited}; see that its file server is up, or "
            "name another directory"
        )

    def is_the_same(self) -> str:
        return f"{self._path}{lies_on(self._path)} is the same directory on all of them"

    def open(self, token: bytes | None) -> DirectoryBackend:
        return DirectoryBackend(self._path, self._run_id, token)

    def sweep(self) -> None:
        sweep(LocalFiles(), self._path)


def _missing(path: str) -> list[str]:
    """Return the absolute path and the directories above it that do not exist, the highest last."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing
