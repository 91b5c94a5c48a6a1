"""Faults of the links between the leader, the other nodes and the hosts where a register lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fault.leader_runs import Job


def cut(job: Job) -> None:
    """The leader reaches the register, and no other node."""
    network, kept = job.cluster.network, (*job.cluster.register_hosts, job.leader.name)
    others = [host for host in network.hosts if host not in kept]
    network.cut(job.leader.name, *others)
    job.wait_other()
    network.heal(job.leader.name, *others)


def cut_and_hide(job: Job) -> None:
    """The leader reaches neither."""
    job.cut()


def hide(job: Job) -> None:
    """The leader reaches all but the register."""
    hidden = job.cluster.register_hosts
    job.cluster.network.cut(job.leader.name, *hidden)
    job.sleep(2, 14)
    job.cluster.network.heal(job.leader.name, *hidden)


FAULTS: dict[str, Callable[[Job], None]] = {"cut": cut, "cut_and_hide": cut_and_hide, "hide": hide}
