"""The agent and the launcher beside torch's own: names, defaults, and what a subclass sees."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.integration.cluster import free_port

import rallypoint.agent as our_agent
import rallypoint.launcher as our_launcher

torch_agent: Any = import_module("torch.distributed.elastic.agent.server.api")
torch_local: Any = import_module("torch.distributed.elastic.agent.server.local_elastic_agent")
torch_launcher: Any = import_module("torch.distributed.launcher.api")

HOOKS = ("_start_workers", "_stop_workers", "_monitor_workers", "_shutdown")
PAIRS: dict[str, tuple[Any, Any]] = {
    "WorkerSpec": (torch_agent.WorkerSpec, our_agent.WorkerSpec),
    "Worker": (torch_agent.Worker, our_agent.Worker),
    "WorkerGroup": (torch_agent.WorkerGroup, our_agent.WorkerGroup),
    "RunResult": (torch_agent.RunResult, our_agent.RunResult),
    "SimpleElasticAgent": (torch_agent.SimpleElasticAgent, our_agent.SimpleElasticAgent),
    "LocalElasticAgent": (torch_local.LocalElasticAgent, our_agent.LocalElasticAgent),
    "LaunchConfig": (torch_launcher.LaunchConfig, our_launcher.LaunchConfig),
    "elastic_launch": (torch_launcher.elastic_launch, our_launcher.elastic_launch),
    "launch_agent": (torch_launcher.launch_agent, our_launcher.launch_agent),
    "run": (torch_agent.ElasticAgent.run, our_agent.ElasticAgent.run),
    "get_worker_group": (
        torch_agent.ElasticAgent.get_worker_group,
        our_agent.ElasticAgent.get_worker_group,
    ),
    **{
        hook: (
            getattr(torch_agent.SimpleElasticAgent, hook),
            getattr(our_agent.SimpleElasticAgent, hook),
        )
        for hook in ("_start_workers", "_stop_workers", "_monitor_workers", "_shutdown")
    },
}
OTHER_DEFAULTS = {
    ("WorkerSpec", "rdzv_handler"): "a node may be alone, and a handler may go to the agent",
    ("LocalElasticAgent", "logs_specs"): "output may just be inherited",
    ("LocalElasticAgent", "start_method"): "forkserver for functions",
    ("LaunchConfig", "rdzv_backend"): "there is no etcd here; tcp needs no server",
    ("LaunchConfig", "start_method"): "forkserver for functions",
}
OURS_BESIDES = {
    ("SimpleElasticAgent", "rdzv_handler"),
    ("LocalElasticAgent", "rdzv_handler"),
    ("LaunchConfig", "preload"),
    ("LaunchConfig", "drain_deadline"),
    ("LaunchConfig", "hang_timeout"),
}


def parameters(callable_: Any) -> dict[str, inspect.Parameter]:
    found = inspect.signature(callable_).parameters
    return {name: one for name, one in found.items() if name != "_"}


def default(parameter: inspect.Parameter) -> object:
    """Factories of dataclasses have no value that can be compared."""
    return "factory" if "factory" in repr(parameter.default) else parameter.default


@pytest.mark.parametrize("name", PAIRS)
def test_parameters_have_torchs_names_and_places(name: str) -> None:
    theirs, ours = map(parameters, PAIRS[name])
    besides = [one for one in ours if one not in theirs]
    assert {(name, one) for one in besides} <= OURS_BESIDES
    assert all(ours[one].kind is inspect.Parameter.KEYWORD_ONLY for one in besides)
    assert [one for one in ours if one in theirs] == list(theirs)


@pytest.mark.parametrize("name", PAIRS)
def test_defaults_are_torchs_but_for_those_that_are_listed(name: str) -> None:
    theirs, ours = map(parameters, PAIRS[name])
    other = {one for one in theirs if default(theirs[one]) != default(ours[one])}
    assert other == {one for of, one in OTHER_DEFAULTS if of == name}


def test_states_are_torchs() -> None:
    theirs = {state.name: state.value for state in torch_agent.WorkerState}
    assert {state.name: state.value for state in our_agent.WorkerState} == theirs
    for state in torch_agent.WorkerState:
        running = our_agent.WorkerState.is_running(our_agent.WorkerState(state.value))
        assert running == torch_agent.WorkerState.is_running(state)


@pytest.mark.parametrize("name", ["Worker", "WorkerGroup", "RunResult"])
def test_objects_have_torchs_attributes(name: str) -> None:
    def made(module: Any) -> object:
        more = {"rdzv_handler": None}
        spec = module.WorkerSpec("trainer", 2, entrypoint="train", **more)
        return {
            "Worker": lambda: module.Worker(1),
            "WorkerGroup": lambda: module.WorkerGroup(spec),
            "RunResult": lambda: module.RunResult(module.WorkerState.FAILED),
        }[name]()

    def public(one: object) -> dict[str, str]:
        names = [attribute for attribute in dir(one) if not attribute.startswith("_")]
        return {attribute: type(getattr(one, attribute)).__name__ for attribute in names}

    theirs, ours = public(made(torch_agent)), public(made(our_agent))
    assert theirs.keys() <= ours.keys()
    theirs.pop("id", None)
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


def test_a_subclass_that_was_written_for_torch_does_the_same_here(tmp_path: Path) -> None:
    script = tmp_path / "subclass.py"
    script.write_text(SUBCLASS)
    told = []
    for module in ("torch.distributed.elastic.agent.server.api", "rallypoint.agent"):
        ran = subprocess.run(
            [sys.executable, str(script), module], capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, ran.stderr
        told.append(ran.stdout)
    assert told[0] == told[1]
    assert told[1].startswith("SUCCEEDED [(0, 0), (1, 10)] False")


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


def test_a_launch_returns_and_raises_what_torchs_does(tmp_path: Path) -> None:
    script = tmp_path / "launching.py"
    script.write_text(LAUNCH)
    told = []
    for module in ("torch.distributed.launcher.api", "rallypoint.launcher"):
        ran = subprocess.run(
            [sys.executable, str(script), module, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ran.returncode == 0, ran.stderr
        told.append(ran.stdout.splitlines())
    theirs, ours = told
    assert ours[:3] == theirs[:3]
    assert ours[3] == "ValueError: bad luck"


OVER_TORCHS_HANDLER = """
import os, sys, threading
from rallypoint.agent import LocalElasticAgent, WorkerSpec
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


def test_agents_meet_by_live_handlers_of_torchs(tmp_path: Path) -> None:
    """And restart together, when one of them has failed."""
    script = tmp_path / "nodes.py"
    script.write_text(OVER_TORCHS_HANDLER)
    ran = subprocess.run(
        [sys.executable, str(script), str(free_port())], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[-1] == "results SUCCEEDED SUCCEEDED", ran.stderr
    assert sorted(lines[:-1]) == [f"told {rank} 2 {round_}" for rank in (0, 1) for round_ in (0, 1)]
