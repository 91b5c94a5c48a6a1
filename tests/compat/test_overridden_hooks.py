"""Subclasses of torch's `LocalElasticAgent`: their hooks run as torch's would, or the definition is
refused with what to use instead.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
from tests.compat.recordings import Recordings
from tests.compat.torch_objects import private_methods
from tests.harness.programs import said_by

from rallypoint.elastic.agent.embedded.refused_hooks import CALLED_HOOKS, REFUSED_HOOKS
from rallypoint.elastic.agent.server import LocalElasticAgent, SimpleElasticAgent
from rallypoint.errors import UnusedHookError

PROGRAM = """
import importlib, os, sys, tempfile
server = importlib.import_module(sys.argv[1] + ".agent.server")
local = importlib.import_module(sys.argv[1] + ".agent.server.local_elastic_agent")
mp = importlib.import_module(sys.argv[1] + ".multiprocessing")
calls, seen = [], []

class Agent(local.LocalElasticAgent):
    def _start_workers(self, worker_group):
        calls.append("start")
        os.environ["ATTEMPT"] = str(calls.count("start"))
        ids = super()._start_workers(worker_group)
        are_pids = all(type(pid) is int for pid in ids.values())
        seen.append((sorted(ids), are_pids, type(self._pcontext).__name__))
        return ids

    def _monitor_workers(self, worker_group):
        result = super()._monitor_workers(worker_group)
        calls.append(result.state.name)
        if result.failures:
            (rank, failure), = result.failures.items()
            seen.append((rank, failure.exitcode, failure.local_rank))
        return result

    def _stop_workers(self, worker_group, *rest):
        calls.append("stop")
        super()._stop_workers(worker_group, *rest)

    def _shutdown(self, death_sig=15, timeout=30, *rest):
        calls.append("shutdown")
        super()._shutdown(death_sig, timeout, *rest)

def work(word, number):
    if os.environ["ATTEMPT"] == "1" and os.environ["RANK"] == "1":
        os._exit(3)
    names = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    return [word, number, *map(os.environ.get, names)]

if __name__ == "__main__":
    if sys.argv[1].startswith("torch"):
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
        params = RendezvousParameters("c10d", "localhost:0", "job", 1, 1, "localhost")
        handler = get_rendezvous_handler(params)
    else:
        handler = None
    given = {"entrypoint": work, "args": ("n${local_rank}", 5), "max_restarts": 1}
    spec = server.WorkerSpec("trainer", 2, handler, **given)
    logs = mp.DefaultLogsSpecs(log_dir=tempfile.mkdtemp(dir=sys.argv[2]))
    result = Agent(spec, logs_specs=logs).run()
    print(result.state.name, sorted(result.return_values.items()), result.failures)
    kept = [c for i, c in enumerate(calls) if c != "HEALTHY"]
    print(seen)
    first = kept.index("FAILED")
    print(kept[:first + 1], "stop" in kept[first:], kept.count("start"), kept[-1])
"""


def printed(python: str, folder: Path, elastic: str) -> list[str]:
    script = folder / "program.py"
    script.write_text(PROGRAM)
    return said_by([python, script, elastic, folder], timeout=300).splitlines()


def test_a_subclass_that_extends_torchs_hooks_does_the_same_here(
    tmp_path: Path, torch_said: Recordings, torch_python: str
) -> None:
    elastic = "torch.distributed.elastic"
    theirs = torch_said("agents", "hooks", lambda: printed(torch_python, tmp_path, elastic))
    ours = printed(sys.executable, tmp_path, "rallypoint.elastic")
    assert ours == theirs
    assert ours[0].startswith("SUCCEEDED [(0, ['n0', 5, '0', '2', '1']), (1, ['n1', 5, '1',")


@pytest.mark.parametrize("name", sorted(REFUSED_HOOKS))
@pytest.mark.parametrize("agent", [LocalElasticAgent, SimpleElasticAgent])
def test_overriding_what_nothing_calls_is_refused_with_what_to_use(agent: type, name: str) -> None:
    with pytest.raises(UnusedHookError) as refused:
        type("MyAgent", (agent,), {name: lambda self: None})
    text = str(refused.value)
    assert text == f"MyAgent.{name} is never called here: {REFUSED_HOOKS[name]}"
    assert "\n" not in text
    assert isinstance(refused.value, TypeError)


def test_a_mixin_with_such_a_method_is_refused_too() -> None:
    class Mixin:
        def _invoke_run(self, role: str = "default") -> None:
            raise NotImplementedError

    with pytest.raises(UnusedHookError, match=r"MyAgent\._invoke_run is never called here"):
        type("MyAgent", (Mixin, LocalElasticAgent), {})


def test_methods_of_a_programs_own_are_nobodys_hooks() -> None:
    class MyAgent(LocalElasticAgent):
        def _my_helper(self) -> int:
            return 1

    assert issubclass(MyAgent, SimpleElasticAgent)


def test_every_private_method_of_torchs_agents_is_called_or_refused(
    torch_said: Recordings,
) -> None:
    theirs = torch_said("agents", "private methods", private_methods)
    assert set(theirs) == {*CALLED_HOOKS, *REFUSED_HOOKS}


def test_no_refused_name_is_ours() -> None:
    """Or every subclass would be refused."""
    module = import_module("rallypoint.elastic.agent.server")
    for name in REFUSED_HOOKS:
        assert not hasattr(module.LocalElasticAgent, name)
