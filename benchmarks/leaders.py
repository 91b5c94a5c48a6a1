"""How soon a job goes on that any of its nodes may lead, when its leader is lost.

benchmarks/leaders.py [--quick] [-n TIMES]

Prints Markdown. Four nodes with a worker each share a directory, or an etcd of three members; each
has a network of its own, so that a machine can vanish. Needs root and network namespaces, else it
says so. What becomes of a job of torchrun is in `takeover.py`: it ends with the node that hosts its
store.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

from measure import is_quick, prepare
from tables import interleaved, markdown, spread

sys.path.append(str(Path(__file__).resolve().parents[1]))

from tests.fault import network
from tests.fault.etcd_leaders import EtcdLeaderCluster
from tests.fault.leader_runs import Job
from tests.fault.leaders import LeaderCluster
from tests.harness.cluster import AgentProcess, wait_until

from rallypoint.core.settings import HOLD_S

LEASE_S = 15.0
KILLED_S = 1.5
TWO_KILLED_S = 3.0
AGAIN_S = LEASE_S + 5
VANISHED_S = max(1.1 * HOLD_S + 3, LEASE_S + 2)


def main() -> int:
    """Measure everything and print a table."""
    times = prepare("The loss of a leading node", default=3)
    if why := network.why_impossible():
        print(f"not measured: {why}")
        return 0
    wanted = ROWS[:1] if is_quick() else ROWS
    found = interleaved(times, {name: measure for name, measure, _ in wanted})
    rows = []
    for name, _, target_s in wanted:
        values = found[name]
        is_met = "met" if max(values) <= target_s else "missed"
        rows.append([name, spread(values), f"{is_met} ({target_s:g})", str(times)])
    title = f"A leading node is lost (lease {LEASE_S:g} s; seconds from SIGKILL)"
    print(markdown(title, ("what, and until when", "rallypoint", "target", "n"), rows), flush=True)
    return 0


def of_job(
    state: Callable[[Job], None],
    fault: Callable[[Job], None],
    last: str,
    nnodes: str,
    made: type[LeaderCluster] = LeaderCluster,
) -> float:
    """Until the last of the other nodes has told of this event. Seconds."""
    with (
        tempfile.TemporaryDirectory(prefix="rallypoint-bench-") as folder,
        contextlib.redirect_stdout(io.StringIO()),
        made(Path(folder), *"abcd", nnodes=nnodes, lease=LEASE_S) as cluster,
    ):
        job = Job(cluster, random.Random(0), is_ddp=False)
        state(job)
        began_at = time.time()
        fault(job)
        others = job.live()
        told = [wait_until(partial(moment, agent, last, began_at), last) for agent in others]
        job.order_end()
        for agent in others:
            agent.wait_exit()
        return max(told) - began_at


def moment(agent: AgentProcess, name: str, after: float) -> float:
    """When it told of an event of this name since that time, of the wall clock; 0: it did not."""
    for event in agent.events:
        if event.name == name:
            at = datetime.fromisoformat(event.fields["time"]).timestamp()
            if at >= after:
                return at
    return 0.0


def killed() -> float:
    return of_job(Job.run, Job.kill, "workers_started", "2:4")


def vanished() -> float:
    return of_job(Job.run, Job.vanish, "workers_started", "2:4")


def killed_spare() -> float:
    return of_job(Job.spare, Job.kill, "session_resumed", "3:3")


def vanished_spare() -> float:
    return of_job(Job.spare, Job.vanish, "session_resumed", "3:3")


def kill_two(job: Job) -> None:
    """The leading agent and another one, at once."""
    other = next(agent for agent in job.live() if agent is not job.leader)
    for agent in (job.leader, other):
        agent.kill()
        job.gone.add(agent.name)


def kill_all_agents(job: Job) -> None:
    """The agents, which are started again."""
    for agent in job.live():
        agent.kill()
    job.begin()


def kill_all_machines(job: Job) -> None:
    """Everything that runs on all machines, guards too; the agents are started again."""
    for agent in job.live():
        job.cluster.kill_all(agent.name)
    job.begin()


def two_killed() -> float:
    return of_job(Job.run, kill_two, "workers_started", "2:4")


def two_killed_by_etcd() -> float:
    return of_job(Job.run, kill_two, "workers_started", "2:4", EtcdLeaderCluster)


def all_again() -> float:
    return of_job(Job.run, kill_all_agents, "workers_started", "4:4")


def machines_again() -> float:
    return of_job(Job.run, kill_all_machines, "workers_started", "4:4")


def killed_by_etcd() -> float:
    return of_job(Job.run, Job.kill, "workers_started", "2:4", EtcdLeaderCluster)


def vanished_by_etcd() -> float:
    return of_job(Job.run, Job.vanish, "workers_started", "2:4", EtcdLeaderCluster)


ROWS = [
    ("its agent is killed: the workers of the next round have begun", killed, KILLED_S),
    ("its machine vanishes: the workers of the next round have begun", vanished, VANISHED_S),
    ("it stands by, and is killed: all are attached again", killed_spare, KILLED_S),
    ("it stands by, and vanishes: all are attached again", vanished_spare, VANISHED_S),
    ("with etcd, its agent is killed: the workers have begun", killed_by_etcd, KILLED_S),
    ("with etcd, its machine vanishes: the workers have begun", vanished_by_etcd, VANISHED_S),
    ("two agents are killed, it among them: the workers have begun", two_killed, TWO_KILLED_S),
    ("with etcd, the same: the workers have begun", two_killed_by_etcd, TWO_KILLED_S),
    ("all agents are killed and started again: the workers have begun", all_again, AGAIN_S),
    ("all that runs is killed, guards too, and started again", machines_again, AGAIN_S),
]


if __name__ == "__main__":
    sys.exit(main())
