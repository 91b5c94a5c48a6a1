"""`rallypoint serve --data-dir` that is killed and started again, and what runs meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tests.harness.cluster import AgentProcess, Cluster, is_listening, wait_until

STEPS = """\
tell()
from rallypoint.elastic.stores import TCPStore
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
ranks = [str(rank) for rank in range(int(os.environ["WORLD_SIZE"]))]
step, steps = 0, True
while True:
    if steps: store.set(f"{step}/{os.environ['RANK']}", str(step + int(os.environ["RANK"])))
    keys = [f"{step}/{rank}" for rank in ranks]
    while steps and not store.check(keys):
        obey()
        time.sleep(0.01)
    if steps:
        total = sum(map(int, store.multi_get(keys)))
        assert total == sum(step + int(rank) for rank in ranks), f"{total} in step {step}"
    step += steps
    obey()
    time.sleep(0.02)
"""
"""An order that workers of a `Cluster` never end: they make steps, in each of which they all-reduce
a number over the round's store, and obey meanwhile."""
STOP = "steps = False; os.write(1, f'made {step} steps\\n'.encode())"
"""An order: make no more of them."""


class RestartedServe:
    """The coordinator of a cluster, killed as often as asked."""

    def __init__(self, cluster: Cluster, prefix: Sequence[str] = ()) -> None:
        self._cluster, self._prefix = cluster, prefix
        self.data = cluster.folder / "data"
        self.data.mkdir()
        self.kills = 0
        self.server: AgentProcess = self._start()

    def restart(self, *resuming: AgentProcess) -> None:
        """SIGKILL, and another process in its place, which listens when this returns. These agents
        are attached to it then, and have been to the one before."""
        before = {agent.pid: _sessions(agent).count("session_suspended") for agent in resuming}
        self.kill()
        self.server = self._start()
        for agent in resuming:
            condition = partial(_is_back, agent, before[agent.pid])
            wait_until(condition, f"the coordinator to be back at {agent.name}")

    def kill(self) -> None:
        """SIGKILL. Of a container the first process dies, and takes the others with it."""
        self.server.kill()
        self.kills += 1
        wait_until(lambda: not is_listening(self._cluster.port), "the coordinator to be gone")

    def _start(self) -> AgentProcess:
        return self._cluster.serve("--data-dir", str(self.data), prefix=self._prefix)


def steps_of(agent: AgentProcess) -> list[int]:
    """How many each of its workers had made when they stopped."""
    lines = [line.split() for line in agent.stdout_lines if line.startswith("made ")]
    return [int(words[1]) for words in lines]


def _sessions(agent: AgentProcess) -> list[str]:
    return [event.name for event in agent.events if event.name.startswith("session_")]


def _is_back(agent: AgentProcess, suspended: int) -> bool:
    told = _sessions(agent)
    return told.count("session_suspended") > suspended and told[-1] == "session_resumed"
