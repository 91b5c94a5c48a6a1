"""The agent and the launcher beside torch's own: what a subclass and a launch see. What they take
is compared in test_signatures.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.compat.recordings import Recordings
from tests.harness.cluster import free_port, wait_until
from tests.harness.programs import said_by

AGENT = "torch.distributed.elastic.agent.server.api"
LAUNCHER = "torch.distributed.launcher.api"

SUBCLASS = """
import importlib, os, subprocess, sys
server = importlib.import_module(sys.argv[1])
calls = []

class Agent(server.SimpleElasticAgent):
    def _start_workers(self, worker_group):
        calls.append("start")
        fails = calls.count("start") == 1
        self.ps = {}
        for worker in worker_group.workers:
            code = 3 if fails and worker.global_rank == 1 else 0
            self.ps[worker.local_rank] = subprocess.Popen([sys.executable, "-c", f"exit({code})"])
        return {rank: p.pid for rank, p in self.ps.items()}

    def _stop_workers(self, worker_group, *rest):
        calls.append("stop")
        for p in self.ps.values():
            p.kill()
            p.wait()

    def _monitor_workers(self, worker_group):
        workers = worker_group.workers
        codes = {worker.global_rank: self.ps[worker.local_rank].poll() for worker in workers}
        if any(codes.values()):
            return server.RunResult(server.WorkerState.FAILED)
        if None in codes.values():
            return server.RunResult(server.WorkerState.HEALTHY)
        return server.RunResult(server.WorkerState.SUCCEEDED, {rank: rank * 10 for rank in codes})

    def _shutdown(self, death_sig=None, timeout=30):
        calls.append("shutdown")

if sys.argv[1].startswith("torch"):
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
    params = RendezvousParameters("c10d", "localhost:0", "job", 1, 1, "localhost")
    handler = get_rendezvous_handler(params)
else:
    handler = None
spec = server.WorkerSpec("trainer", 2, handler, entrypoint="train", max_restarts=1)
result = Agent(spec).run()
print(result.state.value, sorted(result.return_values.items()), result.is_failed())
print([c for i, c in enumerate(calls) if c == "start" or i == len(calls) - 1])
"""


def printed(python: str, folder: Path, program: str, *words: str) -> list[str]:
    """The lines of a program that ends well."""
    script = folder / "program.py"
    script.write_text(program)
    return said_by([python, script, *words], timeout=300).splitlines()


def test_a_subclass_that_was_written_for_torch_does_the_same_here(
    tmp_path: Path, torch_said: Recordings, torch_python: str
) -> None:
    theirs = torch_said(
        "agents", "subclass", lambda: printed(torch_python, tmp_path, SUBCLASS, AGENT)
    )
    ours = printed(sys.executable, tmp_path, SUBCLASS, "rallypoint.elastic.agent.server")
    assert ours == theirs
    assert ours[0].startswith("SUCCEEDED [(0, 0), (1, 10)] False")


LAUNCH = """
import importlib, os, sys
module = importlib.import_module(sys.argv[1])

def work(word):
    if word == "fail" and os.environ["RANK"] == "1":
        raise ValueError("bad luck")
    return int(os.environ["RANK"]), os.environ["ROLE_NAME"], word

if __name__ == "__main__":
    import tempfile
    given = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "max_restarts": 0}
    if sys.argv[1].startswith("torch"):
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        given["logs_specs"] = DefaultLogsSpecs(log_dir=tempfile.mkdtemp(dir=sys.argv[2]))
    config = module.LaunchConfig(1, 1, 2, run_id="job", start_method="spawn", **given)
    print(sorted(module.elastic_launch(config, work)("fine").items()))
    print(sorted(module.elastic_launch(config, "true")().items()))
    try:
        module.launch_agent(config, work, ["fail"])
    except Exception as error:
        rank, failure = error.get_first_failure()
        print(type(error).__name__, error.name, rank, failure.local_rank, failure.exitcode)
        print(failure.message["message"] if isinstance(failure.message, dict) else failure.message)
"""


def test_a_launch_returns_and_raises_what_torchs_does(
    tmp_path: Path, torch_said: Recordings, torch_python: str
) -> None:
    def ask() -> object:
        *same, _last = printed(torch_python, tmp_path, LAUNCH, LAUNCHER, str(tmp_path))
        return same[:3]

    theirs = torch_said("agents", "launch", ask)
    ours = printed(sys.executable, tmp_path, LAUNCH, "rallypoint.elastic.launcher", str(tmp_path))
    assert ours[:3] == theirs
    assert ours[3] == "ValueError: bad luck"


OVER_TORCHS_HANDLER = """
import os, sys, threading
from rallypoint.elastic.agent.server import LocalElasticAgent, WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

results = {}
COMMAND = ("sh", "-c", 'echo told $RANK $WORLD_SIZE $RALLYPOINT_ROUND; : > "$0/told$RANK";'
           '[ "$RANK$RALLYPOINT_ROUND" != 10 ] || {'
           ' until [ -e "$0/told0" ]; do sleep 0.05; done; exit 3; }', sys.argv[2])

def node(number):
    params = RendezvousParameters("c10d", "localhost:" + sys.argv[1], "job", 2, 2, "localhost")
    spec = WorkerSpec("trainer", 1, get_rendezvous_handler(params), entrypoint=COMMAND)
    results[number] = LocalElasticAgent(spec).run().state.value

threads = [threading.Thread(target=node, args=(number,)) for number in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("results", results[0], results[1])
"""


def test_agents_meet_by_live_handlers_of_torchs(tmp_path: Path, torch_python: str) -> None:
    """And restart together, when one of them has failed."""
    lines = printed(torch_python, tmp_path, OVER_TORCHS_HANDLER, str(free_port()), str(tmp_path))
    assert lines[-1] == "results SUCCEEDED SUCCEEDED"
    assert sorted(lines[:-1]) == [f"told {rank} 2 {round_}" for rank in (0, 1) for round_ in (0, 1)]


ONE_AGENT = """
import sys
from rallypoint.elastic.agent.server import LocalElasticAgent, WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

where, number = sys.argv[1:]
params = RendezvousParameters("c10d", "localhost:" + where, "job", 1, 2, "localhost",
                              is_host=str(number == "0"), last_call_timeout="5")
command = ("sh", "-c", 'echo told $RANK $WORLD_SIZE; exec sleep 600')
print("pid", __import__("os").getpid(), flush=True)
LocalElasticAgent(WorkerSpec("trainer", 1, get_rendezvous_handler(params), entrypoint=command,
                             max_restarts=0)).run()
"""


@pytest.mark.frameworks
def test_F2_a_killed_agent_is_noticed_at_once_by_one_that_meets_by_torchs_handler(
    tmp_path: Path, torch_python: str
) -> None:
    """torch's handler tells no node that another one is gone."""
    script, port = tmp_path / "agent.py", str(free_port())
    script.write_text(ONE_AGENT)
    logs = [tmp_path / f"log{number}" for number in (0, 1)]
    agents = []
    for number, log in enumerate(logs):
        with log.open("w") as file:
            words = [torch_python, str(script), port, str(number)]
            agents.append(subprocess.Popen(words, stdout=file, stderr=file))
    try:
        wait_until(lambda: all("told" in log.read_text() for log in logs), "the first round")
        agents[1].kill()
        wait_until(lambda: "was lost: it" in logs[0].read_text(), "the survivor to say so")
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            agent.wait()
