"""What a person is told while nothing seems to happen."""

from __future__ import annotations

import pytest

from rallypoint.agent.progress import waiting_for
from rallypoint.core.group import GroupSettings, GroupState, Phase


@pytest.mark.parametrize(
    ("phase", "imports", "what"),
    [
        (Phase.RUNNING, False, ""),
        (Phase.RUNNING, True, "the preloaded modules"),
        (Phase.STOPPING, True, "the workers to stop"),
        (Phase.FINISHED, False, "the workers of the other nodes to finish"),
        (Phase.IDLE, False, "the coordinator"),
    ],
)
def test_what_an_agent_waits_for(phase: Phase, imports: bool, what: str) -> None:
    state = GroupState(GroupSettings(1, 5.0, 5.0, ()), phase)
    assert waiting_for(state, None, 1, imports=imports) == what
