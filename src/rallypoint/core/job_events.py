"""What a job's machine takes and asks for beyond messages and the round's events."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.core.event_kinds import Record
from rallypoint.core.events import NodeJoined, RefuseNode, TimerEnded
from rallypoint.core.messages import FromNode, ToNode
from rallypoint.core.model import NodeRef


class SessionLost(Struct, frozen=True):
    """A node went away without a farewell; it was last heard at `last_heard_at`."""

    ref: NodeRef
    why: str
    last_heard_at: float
    wall_time: float = 0.0


JobEvent = NodeJoined | TimerEnded | SessionLost | FromNode


JobEffect = ToNode | RefuseNode | Record
