"""A job at the round machine, before its first round and in the midst of it."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.core.events import TimerKind
from rallypoint.core.model import SharedSettings
from rallypoint.core.round_timers import timers_wanted
from rallypoint.testing.virtual_time import RoundHost


def job(min_nodes: int, max_nodes: int, **others: object) -> RoundHost:
    settings = SharedSettings("job", min_nodes, max_nodes)
    return RoundHost(replace(settings, **others))


def running(min_nodes: int, max_nodes: int, nodes: str, **others: object) -> RoundHost:
    """A job whose first world consists of `nodes`."""
    host = job(min_nodes, max_nodes, **others)
    for node in nodes.split():
        host.join(node)
    host.pass_time(host.settings.last_call_s)
    assert host.world == nodes.split()
    return host


def kinds(host: RoundHost) -> set[TimerKind]:
    return {timer.kind for timer in timers_wanted(host.state)}
