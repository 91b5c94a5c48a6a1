"""`rallypoint serve --data-dir`, killed fifty times during one job."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from tests.harness.cluster import AgentProcess, Cluster, Worker, wait_until
from tests.harness.restarted_serve import STEPS, STOP, RestartedServe, steps_of

KILLS = 50
SEED = 13
LISTEN = "from rallypoint import worker; worker.drain_requested(); os.write(1, b'listens\\n')"


class Job:
    """Four agents with two workers each; the maximum of one restart is used."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster(
            folder,
            nnodes="3:4",
            rdzv_conf="last_call_timeout=5",
            lease=60,
            max_restarts=1,
            restart_backoff=2,
            drain_deadline=600,
        )
        self.cluster.make_token()
        self.serve = RestartedServe(self.cluster)
        self.agents: list[AgentProcess] = []

    def kill(self, times: int) -> None:
        """SIGKILL and start again so often, at moments of which most are too early for all agents
        to have come back."""
        for _ in range(times):
            time.sleep(self.random.choice((0.0, 0.05, 0.2, 0.6)) * self.random.random())
            self.serve.restart()

    def count(self, line: str) -> int:
        """How many workers have said this."""
        return sum(agent.stdout_lines.count(line) for agent in self.agents)

    def form(self) -> list[Worker]:
        for name in "abcd":
            self.agents.append(self.cluster.agent(name, 2, hosts=False))
            self.kill(2)
        return self.wait_round(8)

    def wait_round(self, workers: int, after: int = -1) -> list[Worker]:
        """So many workers make steps in the next round that has any."""
        workers_of = self.cluster.workers
        wait_until(lambda: any(w.round > after for w in workers_of()), f"a round after {after}")
        return self.cluster.wait_workers(workers)

    def fail(self, found: list[Worker]) -> list[Worker]:
        """A worker fails; the job is judged, waits and forms a round while `serve` is killed."""
        self.cluster.order("sys.exit(3)", round=found[0].round, rank=5)
        self.kill(10)
        return self.wait_round(8, found[0].round)

    def drain(self, found: list[Worker]) -> list[Worker]:
        """One node is told to go, and goes when all have saved."""
        last, round_ = self.agents[-1], found[0].round
        self.cluster.order(LISTEN, round=round_)
        wait_until(lambda: self.count("listens") == len(found), "all workers to listen")
        last.signal(signal.SIGTERM)
        self.kill(6)
        assert all(worker.is_alive for worker in found), "nobody has saved"
        self.cluster.order("worker.checkpoint_saved(step)", round=round_)
        self.kill(6)
        assert last.wait_exit() == 128 + signal.SIGTERM
        return self.wait_round(6, round_)

    def finish(self, found: list[Worker]) -> None:
        """Half of the workers succeed, and then the rest."""
        self.cluster.order(STOP, round=found[0].round)
        here = self.agents[:3]
        wait_until(lambda: all(len(steps_of(agent)) == 2 for agent in here), "workers to stop")
        for rank in range(3):
            self.cluster.order("sys.exit(0)", round=found[0].round, rank=rank)
        self.kill(8)
        assert [worker.is_alive for worker in found] == [False] * 3 + [True] * 3
        self.cluster.order("sys.exit(0)", round=found[0].round)
        self.kill(KILLS - self.serve.kills)
        assert [agent.wait_exit() for agent in here] == [0, 0, 0]


def test_R5_a_coordinator_that_is_killed_fifty_times_costs_its_job_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, SEED)
    with job.cluster as cluster:
        cluster.order(STEPS)
        first = job.form()
        job.kill(10)
        second = job.fail(first)
        third = job.drain(second)
        job.finish(third)
        assert job.serve.kills == KILLS
        assert cluster.workers() == [*first, *second, *third]
        assert first[0].round < second[0].round < third[0].round
        for agent in job.agents[:3]:
            assert agent.verdict["outcome"] == "succeeded"
            assert agent.verdict["restarts"] == 1
        assert list(cluster.temp.iterdir()) == []
        job.serve.server.signal(signal.SIGTERM)
        assert job.serve.server.wait_exit() == 128 + signal.SIGTERM
