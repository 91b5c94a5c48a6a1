"""What nodes keep of a job that has ended."""

from __future__ import annotations

from msgspec.structs import replace
from tests.harness.broken_jobs import NODES

from rallypoint.core.watch.kept_jobs import NodeNote

ENDPOINT = "node-0:29400"
BEGAN_MS = 1_795_801_423_459


def note(number: int, **fields: object) -> NodeNote:
    """The note of this node, which has failed with the others; with these fields instead."""
    known = NodeNote(
        job="train-7",
        node=f"node-{number}",
        machine=f"m{number}",
        pid=7000 + number,
        incarnation=BEGAN_MS,
        endpoints=(ENDPOINT,),
        host="node-0",
        is_host=number == 0,
        began=1.0,
        round=0,
        nodes=NODES,
        first_rank=8 * number,
        workers=8,
        ended=2.0,
        outcome="failed",
        text="rank 171 (node node-21, local rank 3) exited with code 1",
        exit_code=1,
    )
    return replace(known, **fields)
