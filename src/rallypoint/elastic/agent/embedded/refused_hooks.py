"""Methods of torch's agents that a subclass may override, but that are never called here.

The override would be ignored silently, so the definition of such a class is refused. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.errors import UnusedHookError

CALLED_HOOKS = ("_start_workers", "_stop_workers", "_monitor_workers", "_shutdown")
"""The methods that a program's agent class may override, and that its agent then calls."""
_ROUNDS = "ranks and rounds come from the rendezvous: give the agent an rdzv_handler"
_EACH_ROUND = "override _start_workers, which is called in every round, or _stop_workers"
_EVENTS = "record events with record_duration and get_event_failed, or by an event_log_handler"
_HEALTH = "the agent answers where TORCHELASTIC_HEALTH_CHECK_PORT is set"
_TIMERS = "timers kill their worker by themselves, and it is reported"
_HELPER = "it is a helper of torch's: give yours another name"
REFUSED_HOOKS = {
    "_invoke_run": "override _monitor_workers, which may end a round, or run, around the whole job",
    "_rendezvous": _ROUNDS,
    "_assign_worker_ranks": _ROUNDS,
    "_initialize_workers": _EACH_ROUND,
    "_restart_workers": _EACH_ROUND,
    "_exit_barrier": "leave it out: a node that has succeeded waits for the others by itself",
    "_record_worker_events": _EVENTS,
    "_construct_event": _EVENTS,
    "_record_metrics": _EVENTS,
    "_record_metric_with_condition": _EVENTS,
    "_record_flakiness_metric": _EVENTS,
    "_get_worker_state": _EVENTS,
    "_setup_healthcheck": _HEALTH,
    "_get_alive_time": _HEALTH,
    "_get_current_time_secs": _HEALTH,
    "_setup_local_watchdog": _TIMERS,
    "_log_watchdog_event": _TIMERS,
    "_set_local_rank_env": "give the spec virtual_local_rank=True, or override _start_workers",
    "_check_uninterruptible_state_timeout": "override _monitor_workers",
    "_update_uninterruptible_dwell": "override _monitor_workers",
    "_get_fq_hostname": _HELPER,
}
"""The methods of torch's agents that a subclass must not override, because nothing calls them here.

Each has a text on what to do instead."""


def refuse_unused_hooks(cls: type) -> None:
    """Raise UnusedHookError if the class of an agent overrides a method that nothing calls."""
    for name, instead in _overridden(cls):
        raise UnusedHookError(f"{cls.__name__}.{name} is never called here: {instead}")


def overrides(cls: type, base: type, names: tuple[str, ...]) -> bool:
    """Return whether a subclass overrides one of these methods of the base."""
    return any(getattr(cls, name) is not getattr(base, name) for name in names)


def _overridden(cls: type) -> Iterator[tuple[str, str]]:
    for name, instead in REFUSED_HOOKS.items():
        if hasattr(cls, name):
            yield name, instead
