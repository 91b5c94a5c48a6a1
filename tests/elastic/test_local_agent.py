"""LocalElasticAgent: an agent of real processes in somebody's program."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest
from tests.harness.one_agent import ended, eventually, free_port
from tests.harness.own_program import program

from rallypoint.config import StopConfig
from rallypoint.elastic.agent.server import LocalElasticAgent, WorkerSpec
from rallypoint.elastic.agent.server.api import _stop
from rallypoint.errors import ParameterError, UsageError

HEAD = """
import json, signal
from rallypoint.elastic.agent.server import LocalElasticAgent, WorkerSpec, WorkerState
from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.registry import get_rendezvous_handler

def handler(where, least=1, most=2):
    conf = {"last_call_timeout": 0.3, "keep_alive_interval": 0.5, "insecure": True}
    return get_rendezvous_handler(
        RendezvousParameters("file", where, "job", least, most, "127.0.0.1", **conf)
    )

def work(word):
    env = os.environ
    tell(word, env["RANK"], env["WORLD_SIZE"], env["ROLE_RANK"], env["ROLE_WORLD_SIZE"])
    tell("pid", env["RANK"], os.getpid())
    if word == "wait":
        time.sleep(600)
    if word == "once" and env["RALLYPOINT_ROUND"] == "0" and env["RANK"] == "1":
        raise ValueError("once")
    return int(env["RANK"]), env["ROLE_NAME"], env["RALLYPOINT_ROUND"]
"""


@pytest.mark.executed
def test_A6_workers_and_their_children_die_with_the_program_of_their_agent(tmp_path: Path) -> None:
    """torch's live on under init."""
    text = """---
command = ("sh", "-c", "sleep 600 & sleep 600")
LocalElasticAgent(WorkerSpec("default", 2, entrypoint=command)).run()
"""
    with program(tmp_path, text, before=HEAD) as run:
        eventually(lambda: len(run.named("sleep")) == 4, "four processes of workers")
        run.send(signal.SIGKILL)
        run.wait_gone()


def test_its_group_says_who_runs_and_where(tmp_path: Path) -> None:
    text = """---
agent = LocalElasticAgent(WorkerSpec("trainer", 2, entrypoint=work, args=("wait",)))
group = agent.get_worker_group()
thread = threading.Thread(target=agent.run)
thread.start()
while not os.path.exists("look"): time.sleep(0.01)
for worker in group.workers:
    tell("worker", worker.id, worker.local_rank, worker.global_rank, worker.world_size)
tell("group", group.state.value, group.group_rank, group.group_world_size, group.master_port > 0)
agent.interrupt(signal.SIGTERM)
thread.join()
tell("after", group.state.value)
"""
    with program(tmp_path, text, before=HEAD) as run:
        run.wait_told("pid", 2)
        (tmp_path / "look").touch()
        assert run.wait() == 0, run.err
    pids = dict(line.split() for line in run.told("pid"))
    assert run.told("worker") == [f"{pids['0']} 0 0 2", f"{pids['1']} 1 1 2"]
    assert run.told("group") == ["HEALTHY 0 1 True"]
    assert run.told("after") == ["STOPPED"]
    assert "SignalException: this node left the job: it got SIGTERM" in run.err


def test_R4_agents_of_several_sizes_and_roles_meet_by_live_handlers(tmp_path: Path) -> None:
    """A handler may be in the spec, as torch has it, or be given to the agent."""
    text = """---
where, values = sys.argv[1], {}
def node(role, count):
    meet = handler(where, 2, 2)
    spec = WorkerSpec(role, count, meet if role == "actor" else None, entrypoint=work,
                      args=("once",), max_restarts=1)
    agent = LocalElasticAgent(spec, rdzv_handler=None if role == "actor" else meet)
    result = agent.run()
    assert result.state is WorkerState.SUCCEEDED, result
    values.update(result.return_values)
threads = [threading.Thread(target=node, args=given) for given in (("actor", 1), ("learner", 2))]
for thread in threads: thread.start()
for thread in threads: thread.join()
tell("values", json.dumps(sorted(values.items())))
"""
    run = ended(program(tmp_path, text, str(tmp_path / "meet"), before=HEAD), 0)
    values: list[tuple[int, list[str]]] = json.loads(run.told("values")[0])
    assert [rank for rank, _ in values] == [0, 1, 2]
    assert [int(value[0]) for _, value in values] == [0, 1, 2]
    assert sorted(value[1] for _, value in values) == ["actor", "learner", "learner"]
    assert {value[2] for _, value in values} == {"1"}, "all run again when one has failed"
    by_role = {tuple(line.split()[2:]) for line in run.told("once")}
    assert by_role == {("0", "1"), ("0", "2"), ("1", "2")}


def test_A7_a_failure_without_budget_is_told_by_every_agent(tmp_path: Path) -> None:
    text = """---
where = sys.argv[1]
def node():
    spec = WorkerSpec("default", 1, handler(where, 2, 2), entrypoint=work, args=("once",),
                      max_restarts=0)
    result = LocalElasticAgent(spec).run()
    failure = result.failures[1]
    tell("result", result.state.value, result.is_failed(), list(result.failures), failure.exitcode,
         failure.message["message"])
threads = [threading.Thread(target=node) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    run = ended(program(tmp_path, text, str(tmp_path / "meet"), before=HEAD), 0)
    assert run.told("result") == ["FAILED True [1] 1 ValueError: once"] * 2


def test_who_makes_an_agent_is_told_about_parameters(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        spec = WorkerSpec(
            "x", 1, entrypoint="true", master_addr="127.0.0.1", master_port=port, max_restarts=0
        )
        with pytest.raises(UsageError, match=f"^master_port {port}: .*: choose another$"):
            LocalElasticAgent(spec).run()
    with pytest.raises(ParameterError, match=r"^WorkerSpec\(role='x+'\): needs 1 to 255 bytes"):
        WorkerSpec("x" * 256, 1, entrypoint="true")


@pytest.mark.parametrize("backend", ["none", "c10d", "static", "tcp"])
def test_a_spec_says_where_the_workers_store_listens_whatever_store_the_handler_has(
    tmp_path: Path, backend: str
) -> None:
    where = "localhost" if backend == "none" else "127.0.0.7"
    text = """---
backend, meet, where, port = *sys.argv[1:4], int(sys.argv[4])
more = {"static": {"rank": 0, "insecure": True}, "tcp": {"insecure": True}}.get(backend, {})
handler = None
if backend != "none":
    handler = get_rendezvous_handler(RendezvousParameters(backend, meet, "job", 1, 1, **more))
command = ("sh", "-c", "echo at $MASTER_ADDR:$MASTER_PORT")
spec = WorkerSpec("x", 1, handler, entrypoint=command, master_addr=where, master_port=port)
agent = LocalElasticAgent(spec)
agent.run()
event = agent.get_event_succeeded()
tell("event", event.metadata["run_id"], event.metadata["rdzv_backend"])
"""
    port = free_port()
    words = (backend, f"127.0.0.1:{free_port()}", where, str(port))
    run = ended(program(tmp_path, text, *words, before=HEAD), 0)
    assert run.told("at") == [f"{where}:{port}"]
    assert backend == "none" or run.told("event") == [f"job {backend}"]


@pytest.mark.parametrize("where", ["alone", "by a handler"])
def test_health_checks_are_answered_while_an_agent_of_a_program_runs(
    tmp_path: Path, where: str
) -> None:
    text = """
import socket
from urllib.request import urlopen
def ask():
    port = os.environ["TORCHELASTIC_HEALTH_CHECK_PORT"]
    tell("said", urlopen(f"http://127.0.0.1:{port}/health", timeout=60).read().decode().strip())
---
os.environ["TORCHELASTIC_HEALTH_CHECK_PORT"] = sys.argv[1]
given = handler(sys.argv[2], 1, 1) if len(sys.argv) > 2 else None
result = LocalElasticAgent(WorkerSpec("default", 1, given, entrypoint=ask)).run()
tell("ended", result.state.value)
tell("left", socket.socket().connect_ex(("127.0.0.1", int(sys.argv[1]))) == 0)
"""
    words = [] if where == "alone" else [str(tmp_path / "meet")]
    run = ended(program(tmp_path, text, str(free_port()), *words, before=HEAD), 0)
    assert (run.told("said"), run.told("ended")) == (["alive"], ["SUCCEEDED"]), run.err
    assert run.told("left") == ["False"]


def test_the_signals_of_torchs_variable_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def signals(text: str) -> tuple[str, ...]:
        monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", text)
        return _stop(3).signals

    assert signals("") == StopConfig().signals
    assert signals("SIGUSR1, SIGTERM,") == ("SIGUSR1", "SIGTERM")
    why = "^TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGFOO: SIGFOO is not a signal"
    with pytest.raises(UsageError, match=why):
        signals("SIGTERM,SIGFOO")


def test_torchs_variable_has_the_signals_that_end_it(tmp_path: Path) -> None:
    text = """---
os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGUSR1"
agent = LocalElasticAgent(WorkerSpec("default", 1, entrypoint=work, args=("wait",)))
try:
    agent.run()
except BaseException as error:
    tell("ended", type(error).__name__, error.sigval.name)
"""
    with program(tmp_path, text, before=HEAD) as run:
        run.wait_told("pid")
        run.send(signal.SIGUSR1)
        assert run.wait() == 0, run.err
    assert run.told("ended") == ["SignalException SIGUSR1"]
