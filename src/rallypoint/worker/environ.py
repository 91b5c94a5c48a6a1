"""The place of this process in its job, from its environment: the only reader of it here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The place of this worker in this round. Outside of any launcher: a job of one process.

    Ranks count from 0. A *node* is one agent; `node_rank` is torch's GROUP_RANK.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node_rank: int = 0
    node_count: int = 1
    role: str = "default"
    role_rank: int = 0
    role_world_size: int = 1
    run_id: str = ""
    node_id: str = ""
    """The name of the node; empty where the launcher gives none (torchrun)."""
    round: int = 0
    """The number of the round; never used twice in one life of a job. Under torchrun the number of
    restarts."""
    incarnation: int = 0
    """The number of the life of the job; later lives have higher ones, and begin at round 0 again.
    (incarnation, round) orders all rounds of a run id. Under torchrun 0."""
    restart_count: int = 0
    """Restarts that were charged to the budget so far."""
    max_restarts: int = 0
    restart_reason: str = ""
    """Why there is this round, in words; empty where the launcher does not say."""
    master_addr: str = ""
    """The host of this round's store; empty outside of a launcher."""
    master_port: int = 0
    launched: bool = False
    """Whether a launcher started this process: rallypoint or torchrun."""

    @property
    def group_rank(self) -> int:
        """The `node_rank`, by torch's name."""
        return self.node_rank

    @property
    def group_world_size(self) -> int:
        """The `node_count`, by torch's name."""
        return self.node_count


def context() -> Context:
    """Return the place of this worker, read from the environment at each call.

    Raises ValueError for a rank, a size or another number that is not one.
    """
    return read_context(os.environ)


def read_context(environ: Mapping[str, str]) -> Context:
    """Return the place of a worker with this environment. Raises ValueError as `context`."""
    number = _Numbers(environ)
    restarts = number("TORCHELASTIC_RESTART_COUNT", 0)
    world_size = number("WORLD_SIZE", 1)
    return Context(
        rank=number("RANK", 0),
        local_rank=number("LOCAL_RANK", 0),
        world_size=world_size,
        local_world_size=number("LOCAL_WORLD_SIZE", 1),
        node_rank=number("GROUP_RANK", 0),
        node_count=number("GROUP_WORLD_SIZE", 1),
        role=environ.get("ROLE_NAME", "default"),
        role_rank=number("ROLE_RANK", 0),
        role_world_size=number("ROLE_WORLD_SIZE", world_size),
        run_id=environ.get("TORCHELASTIC_RUN_ID", ""),
        node_id=environ.get("RALLYPOINT_NODE_ID", ""),
        round=number("RALLYPOINT_ROUND", restarts),
        incarnation=number("RALLYPOINT_INCARNATION", 0),
        restart_count=restarts,
        max_restarts=number("TORCHELASTIC_MAX_RESTARTS", 0),
        restart_reason=environ.get("RALLYPOINT_RESTART_REASON", ""),
        master_addr=environ.get("MASTER_ADDR", ""),
        master_port=number("MASTER_PORT", 0),
        launched="TORCHELASTIC_RUN_ID" in environ,
    )


def get_env_variable_or_raise(env_name: str) -> str:
    """Return the value of a variable, also an empty one. Raises ValueError if it is not set."""
    value = os.environ.get(env_name)
    if value is None:
        raise ValueError(f"{env_name} is not set in the environment; launchers set it for workers")
    return value


class _Numbers:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def __call__(self, name: str, default: int) -> int:
        text = self._environ.get(name, "")
        try:
            return int(text) if text else default
        except ValueError:
            raise ValueError(f"{name}={text!r} in the environment is not a number") from None
