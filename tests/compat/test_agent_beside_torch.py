"""The agent and the launcher beside torch's own: names, defaults, and what a subclass sees."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.compat.recordings import Recordings
from tests.harness.cluster import free_port, wait_until
from tests.harness.programs import said_by

import rallypoint.elastic.agent.server as our_agent
import rallypoint.elastic.launcher as our_launcher

AGENT = "torch.distributed.elastic.agent.server.api"
LOCAL = "torch.distributed.elastic.agent.server.local_elastic_agent"
LAUNCHER = "torch.distributed.launcher.api"
HOOKS = ("_start_workers", "_stop_workers", "_monitor_workers", "_shutdown")
PAIRS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "WorkerSpec": (AGENT, "WorkerSpec", our_agent.WorkerSpec),
    "Worker": (AGENT, "Worker", our_agent.Worker),
    "WorkerGroup": (AGENT, "WorkerGroup", our_agent.WorkerGroup),
    "RunResult": (AGENT, "RunResult", our_agent.RunResult),
    "SimpleElasticAgent": (AGENT, "SimpleElasticAgent", our_agent.SimpleElasticAgent),
    "LocalElasticAgent": (LOCAL, "LocalElasticAgent", our_agent.LocalElasticAgent),
    "LaunchConfig": (LAUNCHER, "LaunchConfig", our_launcher.LaunchConfig),
    "elastic_launch": (LAUNCHER, "elastic_launch", our_launcher.elastic_launch),
    "launch_agent": (LAUNCHER, "launch_agent", our_launcher.launch_agent),
    "run": (AGENT, "ElasticAgent.run", our_agent.ElasticAgent.run),
    "get_worker_group": (
        AGENT,
        "ElasticAgent.get_worker_group",
        our_agent.ElasticAgent.get_worker_group,
    ),
    **{
        hook: (AGENT, f"SimpleElasticAgent.{hook}", getattr(our_agent.SimpleElasticAgent, hook))
        for hook in HOOKS
    },
}
OTHER_DEFAULTS = {
    ("WorkerSpec", "rdzv_handler"): "a node may be alone, and a handler may go to the agent",
    ("LocalElasticAgent", "logs_specs"): "output may just be inherited",
    ("LocalElasticAgent", "start_method"): "forkserver for functions",
    ("LaunchConfig", "rdzv_backend"): "tcp needs no server, etcd does",
    ("LaunchConfig", "start_method"): "forkserver for functions",
}
OURS_BESIDES = {
    ("SimpleElasticAgent", "rdzv_handler"),
    ("LocalElasticAgent", "rdzv_handler"),
    ("LaunchConfig", "preload"),
    ("LaunchConfig", "drain_deadline"),
    ("LaunchConfig", "hang_timeout"),
    ("LaunchConfig", "port_range"),
    ("LaunchConfig", "progress_pattern"),
    ("LaunchConfig", "max_no_progress"),
    ("LaunchConfig", "history"),
}


Parameters = dict[str, tuple[str, object]]
"""Of each its kind, and its default."""


def parameters(callable_: Any) -> Parameters:
    found = inspect.signature(callable_).parameters
    return {name: (p.kind.name, default(p)) for name, p in found.items() if name != "_"}


def default(parameter: inspect.Parameter) -> object:
    """As JSON has it. Factories of dataclasses have no value that can be compared."""
    value = parameter.default
    if value is None or type(value) in (bool, int, float, str):
        return value
    return "factory" if "factory" in repr(value) else repr(value)


def torchs_parameters(name: str, torch_said: Recordings) -> Parameters:
    def ask() -> object:
        module, path, _ = PAIRS[name]
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        return list(parameters(found).items())

    said = torch_said("signatures", name, ask)
    return {parameter: tuple(rest) for parameter, rest in said}


@pytest.mark.parametrize("name", PAIRS)
def test_parameters_have_torchs_names_and_places(name: str, torch_said: Recordings) -> None:
    theirs, ours = torchs_parameters(name, torch_said), parameters(PAIRS[name][2])
    besides = [one for one in ours if one not in theirs]
    assert {(name, one) for one in besides} <= OURS_BESIDES
    assert all(ours[one][0] == "KEYWORD_ONLY" for one in besides)
    assert [one for one in ours if one in theirs] == list(theirs)


@pytest.mark.parametrize("name", PAIRS)
def test_defaults_are_torchs_but_for_those_that_are_listed(
    name: str, torch_said: Recordings
) -> None:
    theirs, ours = torchs_parameters(name, torch_said), parameters(PAIRS[name][2])
    other = {one for one in theirs if theirs[one][1] != ours[one][1]}
    assert other == {one for of, one in OTHER_DEFAULTS if of == name}


def states(module: Any) -> dict[str, list[object]]:
    running = module.WorkerState.is_running
    return {state.name: [state.value, running(state)] for state in module.WorkerState}


def test_states_are_torchs(torch_said: Recordings) -> None:
    assert states(our_agent) == torch_said("objects", "states", lambda: states(module_of(AGENT)))


def module_of(name: str) -> Any:
    return import_module(name)


def attributes(module: Any) -> dict[str, dict[str, str]]:
    """The public ones of some objects, with the names of their types."""
    spec = module.WorkerSpec("trainer", 2, entrypoint="train", rdzv_handler=None)
    made = {
        "Worker": module.Worker(1),
        "WorkerGroup": module.WorkerGroup(spec),
        "RunResult": module.RunResult(module.WorkerState.FAILED),
    }
    return {
        name: {
            attribute: type(getattr(one, attribute)).__name__
            for attribute in dir(one)
            if not attribute.startswith("_")
        }
        for name, one in made.items()
    }


@pytest.mark.parametrize("name", ["Worker", "WorkerGroup", "RunResult"])
def test_objects_have_torchs_attributes(name: str, torch_said: Recordings) -> None:
    said = torch_said("objects", "attributes", lambda: attributes(module_of(AGENT)))
    theirs, ours = said[name], attributes(our_agent)[name]
    assert theirs.keys() <= ours.keys()
    theirs = {attribute: kind for attribute, kind in theirs.items() if attribute != "id"}
    assert all(ours[attribute] == kind for attribute, kind in theirs.items())


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
COMMAND = ("sh", "-c", 'echo told $RANK $WORLD_SIZE $RALLYPOINT_ROUND;'
           '[ "$RANK$RALLYPOINT_ROUND" != 10 ] || exit 3')

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
    lines = printed(torch_python, tmp_path, OVER_TORCHS_HANDLER, str(free_port()))
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
