"""One node's agent, as a library with torch's vocabulary.

Importing this package imports nothing else; a name is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.agent.elastic_agent import ElasticAgent, SimpleElasticAgent
    from rallypoint.agent.local_agent import LocalElasticAgent
    from rallypoint.agent.worker_group import (
        RunResult,
        Worker,
        WorkerGroup,
        WorkerSpec,
        WorkerState,
    )

__all__ = [
    "ElasticAgent",
    "SimpleElasticAgent",
    "LocalElasticAgent",
    "RunResult",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]

_MODULES = {
    "LocalElasticAgent": "local_agent",
    **dict.fromkeys(("ElasticAgent", "SimpleElasticAgent"), "elastic_agent"),
    **dict.fromkeys(
        ("RunResult", "Worker", "WorkerGroup", "WorkerSpec", "WorkerState"), "worker_group"
    ),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
