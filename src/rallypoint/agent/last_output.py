"""Read the last lines of a node's workers, to keep them for people who ask after the end."""

from __future__ import annotations

from rallypoint.agent.node_workers import RunningRound
from rallypoint.coordinator.clocks import wall_time
from rallypoint.coordinator.threads import run_in_thread
from rallypoint.process.logs.newest import OutputLines, OutputReader, Start
from rallypoint.process.logs.worker_output import WorkerOutputs


async def newest_lines(
    outputs: WorkerOutputs, running: RunningRound, newest: int
) -> list[tuple[int, OutputLines]]:
    """Read the newest lines, at most `newest` of each stream of these workers. Returns them in the
    order in which they came, each with the worker's global rank."""
    place, ranks = running.assignment, list(range(len(running.workers.shm.pids)))
    reader = OutputReader(outputs, place.round, ranks, Start(newest), unfinished=True)
    lines = []
    if reader.reads_files:
        lines = await run_in_thread(reader.read_files, "rallypoint-output")
    for _ in range(reader.most_reads):
        lines += await reader.read_relay(wall_time(0.0))
        if not reader.has_more:
            break
    lines.sort(key=lambda line: line.wall_time)
    return [(place.base_rank + line.local_rank, line) for line in lines]
