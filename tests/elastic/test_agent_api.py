"""Agents as a library: rounds, budgets and endings are those of `rallypoint run`, whoever runs the
workers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.harness.cluster import LIMIT_S
from tests.harness.own_agents import (
    Meeting,
    PopenAgent,
    Running,
    ThreadAgent,
    Unwell,
    shell_agent,
    thread_agent,
)
from tests.harness.refusals import refused_in_one_line

from rallypoint.elastic.agent.server import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from rallypoint.elastic.events import Event, flush_events
from rallypoint.elastic.multiprocessing import ProcessFailure, record
from rallypoint.elastic.rendezvous.plug_in.exchange import NodeInfo, encode, node_key
from rallypoint.elastic.stores import HashStore
from rallypoint.errors import (
    ChildFailedError,
    InfrastructureError,
    RallypointError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    SignalException,
    UsageError,
)
from rallypoint.process.failures import MESSAGE_LIMIT_BYTES

Env = dict[str, str]


def ranks(environ: Env, stopped: threading.Event) -> tuple[str, ...]:
    names = ("RANK", "WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_RANK", "ROLE_NAME")
    return tuple(environ[name] for name in names)


def until_stopped(environ: Env, stopped: threading.Event) -> None:
    assert stopped.wait(LIMIT_S)


def test_A2_workers_that_fail_are_started_again_until_they_succeed() -> None:
    agent = shell_agent("exit $((2 - TORCHELASTIC_RESTART_COUNT))", workers=2, restarts=2)
    result = agent.run()
    assert result == RunResult(WorkerState.SUCCEEDED, {0: None, 1: None}, {})
    assert not result.is_failed()
    assert [call for call in agent.calls if call != "monitor"] == [
        *["start", "stop"] * 3,
        "shutdown SIGTERM",
    ]
    assert agent.get_event_succeeded().metadata["agent_restarts"] == 2
    group = agent.get_worker_group()
    assert group.state is WorkerState.SUCCEEDED
    assert [worker.id for worker in group.workers] == [p.pid for p in agent.processes.values()]


def test_A3_a_failure_without_budget_is_a_result_with_its_cause() -> None:
    result = shell_agent('[ "$RANK" = 0 ] && sleep 600; exit 7', workers=2, restarts=1).run()
    assert result.state is WorkerState.FAILED
    assert result.is_failed()
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {1: 7}
    assert result.failures[1].local_rank == 1


class Recording(PopenAgent):
    """Its workers have error files, which the hook that `cleans` names removes."""

    home: Path
    cleans = ""

    def worker_environ(self, worker: Worker) -> dict[str, str]:
        return super().worker_environ(worker) | {"TORCHELASTIC_ERROR_FILE": self._file(worker)}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        for rank, known in result.failures.items():
            file = self._file(worker_group.workers[known.local_rank])
            log = f"{file}.log"
            result.failures[rank] = ProcessFailure(
                known.local_rank, known.pid, known.exitcode, file, log_file=log
            )
        return result

    def note(self, call: str) -> None:
        super().note(call)
        if call.split()[0] == self.cleans:
            for file in self.home.iterdir():
                file.unlink()

    def _file(self, worker: Worker) -> str:
        return str(self.home / str(worker.local_rank))


FAILING = """
from rallypoint.worker import record
@record
def train():
    raise ValueError("bad loss")
train()
"""


@pytest.mark.parametrize("cleans", ["", "stop", "shutdown"])
def test_P7_the_error_file_that_a_hook_names_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleans: str
) -> None:
    spec = WorkerSpec("default", 1, entrypoint=sys.executable, args=("-c", FAILING), max_restarts=0)
    agent = Recording(spec)
    agent.home, agent.cleans = tmp_path / "theirs", cleans
    agent.home.mkdir()
    (failure,) = agent.run().failures.values()
    message = failure.message
    assert message["message"] == "ValueError: bad loss"
    assert message["extraInfo"]["py_callstack"].startswith("Traceback (most recent call last):")
    assert failure.error_file == ("<N/A>" if cleans else str(agent.home / "0"))
    assert failure.error_file_data == {"message": message}
    assert failure.log_file == f"{agent.home / '0'}.log"

    def launch() -> None:
        raise ChildFailedError("train", {0: failure})

    own = tmp_path / "own.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(own))
    with pytest.raises(ChildFailedError):
        record(launch)()
    assert json.loads(own.read_text()) == {"message": message | {"errorCode": 1}}


def test_A7_what_a_hook_tells_reaches_the_other_nodes_within_bounds() -> None:
    def fail(environ: Env, stopped: threading.Event) -> None:
        raise ValueError("\x1b[31m" + "x" * 1_000_000)

    meeting = Meeting()
    failing = Running(thread_agent(fail, handler=meeting.handler(2, 2)))
    other = Running(thread_agent(until_stopped, handler=meeting.handler(2, 2)))
    for agent in (failing, other):
        (failure,) = agent.result().failures.values()
        assert len(failure.message) == MESSAGE_LIMIT_BYTES
        assert failure.message.startswith("ValueError: xxx")


def test_threads_as_workers_return_their_values_by_global_rank() -> None:
    result = thread_agent(ranks, workers=2).run()
    assert result.return_values == {
        0: ("0", "2", "0", "2", "0", "default"),
        1: ("1", "2", "1", "2", "0", "default"),
    }


def test_a_program_asks_an_agent_for_events_as_torchs(tmp_path: Path) -> None:
    agent = thread_agent(ranks, role="trainer")
    assert agent.get_event_succeeded().metadata["group_rank"] is None
    agent.run()
    told = agent.get_event_succeeded()
    assert (told.name, told.source) == ("torchelastic.worker.status.SUCCEEDED", "AGENT")
    assert told.metadata["role"] == "trainer"
    assert told.metadata["group_rank"] == 0
    assert json.loads(str(told.metadata["metadata"]))["group_world_size"] == 1
    assert (told.metadata["global_rank"], told.metadata["worker_id"]) == (None, None)
    assert type(told.metadata["total_run_time"]) is int
    try:
        raise ValueError("no data")
    except ValueError:
        failed = agent.get_event_failed()
    assert "ValueError: no data" in str(failed.metadata["raw_error"])

    agent.get_worker_group().spec.event_log_handler = f"jsonl:{tmp_path / 'events'}"
    times = [time.perf_counter()]

    def load() -> None:
        times.extend((time.perf_counter(), time.perf_counter()))
        raise KeyError

    with pytest.raises(KeyError), agent.record_duration("LOADED"):
        load()
    times.append(time.perf_counter())
    flush_events()
    recorded = Event.deserialize((tmp_path / "events").read_text())
    assert recorded.name == "torchelastic.worker.status.LOADED"
    least, most = (times[2] - times[1]) * 1000, (times[3] - times[0]) * 1000
    assert least <= float(str(recorded.metadata["duration_ms"])) <= most


def test_W2_a_group_that_is_unhealthy_without_budget_is_no_success() -> None:
    def feel_unwell(environ: Env, stopped: threading.Event) -> None:
        raise Unwell

    agent = thread_agent(feel_unwell, restarts=1)
    result = agent.run()
    assert result.state is WorkerState.FAILED
    assert result.is_failed()
    assert "the workers of this node are UNHEALTHY" in result.failures[0].message
    assert agent.calls.count("start") == 2, "it is a failure like any other, so it is charged"


def test_W5_a_node_that_is_not_needed_succeeds_with_nothing() -> None:
    class NotNeeded:
        def next_rendezvous(self) -> Any:
            raise RendezvousGracefulExitError("the job ended without it")

        def is_closed(self) -> bool:
            return False

        def num_nodes_waiting(self) -> int:
            return 0

        def set_closed(self) -> None:
            pass

    agent = thread_agent(ranks, handler=NotNeeded())
    assert agent.run() == RunResult(WorkerState.SUCCEEDED, {}, {})
    assert "start" not in agent.calls


def test_a_node_that_reaches_no_coordinator_where_rank_0_has_told_says_which_one() -> None:
    class Nowhere:
        """Each round has a node of rank 0 that tells an address where nothing listens."""

        rounds = 0

        def next_rendezvous(self) -> Any:
            self.rounds += 1
            store = HashStore()
            first = NodeInfo("z", None, ("127.0.0.1:1",), b"secret" * 5)
            store.set(node_key(0), encode(first))
            return store, 1, 2

        def is_closed(self) -> bool:
            return False

        def num_nodes_waiting(self) -> int:
            return 0

        def set_closed(self) -> None:
            pass

    handler = Nowhere()
    agent = thread_agent(ranks, handler=handler)
    with pytest.raises(RendezvousConnectionError, match="node z hosts the coordinator of this"):
        agent.run()
    assert handler.rounds > 1, "the node may have been killed in between"
    assert "start" not in agent.calls


def test_A1_a_node_that_comes_wakes_an_agent_that_would_not_look_for_an_hour() -> None:
    meeting = Meeting()
    first = shell_agent("sleep 600", handler=meeting.handler(1, 2))
    first.get_worker_group().spec.monitor_interval = 3600.0
    one = Running(first)
    first.wait_calls("monitor", 1)
    second = shell_agent("sleep 600", handler=meeting.handler(1, 2))
    two = Running(second)
    second.wait_calls("start", 1)
    first.wait_calls("start", 2)
    assert [call for call in first.calls if call != "monitor"] == ["start", "stop", "start"]
    assert first.get_worker_group().group_world_size == 2
    assert len({first.get_worker_group().master_port, second.get_worker_group().master_port}) == 1
    for agent in (first, second):
        agent.interrupt(signal.SIGTERM)
    for running in (one, two):
        with pytest.raises(SignalException, match="it got SIGTERM"):
            running.result()
    assert first.calls[-1] == "shutdown SIGTERM"
    assert "rallypoint-hooks" not in {thread.name for thread in threading.enumerate()}
    assert all(process.poll() is not None for process in first.processes.values())


def test_a_job_that_another_node_closes_ends_here_too() -> None:
    meeting = Meeting()
    handler = meeting.handler(1, 2)
    agent = thread_agent(until_stopped, handler=handler)
    running = Running(agent)
    agent.wait_calls("start", 1)
    handler.set_closed()
    with pytest.raises(RendezvousClosedError, match="closed by another node"):
        running.result()
    assert agent.calls[-2:] == ["stop", "shutdown SIGTERM"]


def test_what_a_hook_raises_is_raised_and_the_job_goes_on_without_this_node() -> None:
    class NoMachine(ThreadAgent):
        def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
            raise OSError("no machine left")

    broken = NoMachine(thread_agent(ranks).get_worker_group().spec)
    with pytest.raises(OSError, match="no machine left"):
        broken.run()
    assert broken.calls == ["shutdown SIGTERM"]


@pytest.mark.parametrize(
    ("hook", "returns", "says"),
    [
        ("_start_workers", None, "_start_workers returned None: it needs"),
        ("_start_workers", {0: "a", 2: "b"}, "local ranks 0..1"),
        ("_monitor_workers", "fine", "returned 'fine': it needs a RunResult"),
        ("_monitor_workers", RunResult(WorkerState.STOPPED), "returned the state STOPPED"),
        (
            "_monitor_workers",
            RunResult(WorkerState.FAILED, failures={"x": 5}),  # type: ignore[dict-item]
            "failures of ['x']: it needs global ranks of this node, 0..1",
        ),
    ],
)
def test_a_hook_that_breaks_its_contract_is_named_in_one_line(
    hook: str, returns: object, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = thread_agent(until_stopped, workers=2)
    monkeypatch.setattr(agent, hook, lambda group: returns)
    with refused_in_one_line(RallypointError, says):
        agent.run()


def test_a_stop_that_does_not_return_ends_the_agent() -> None:
    class Stubborn(ThreadAgent):
        def _stop_workers(self, worker_group: WorkerGroup) -> None:
            self.note("stop")
            threading.Event().wait(LIMIT_S * 2)

    def fail(environ: Env, stopped: threading.Event) -> None:
        raise ValueError

    spec = thread_agent(fail, restarts=3).get_worker_group().spec
    agent = Stubborn(spec, shutdown_timeout=0)
    with pytest.raises(InfrastructureError, match="_stop_workers has not returned"):
        agent.run()
    assert agent.calls.count("start") == 1, "nothing may start beside what did not stop"


def test_W31_a_program_keeps_its_signal_handlers_and_its_environment() -> None:
    def mine(number: int, frame: object) -> None:
        raise AssertionError

    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    environ = dict(os.environ)
    signal.signal(signal.SIGTERM, mine)
    try:
        assert not thread_agent(ranks).run().is_failed()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before[signal.SIGTERM])
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
    assert dict(os.environ) == environ
    descriptor = signal.set_wakeup_fd(-1)
    assert descriptor == -1


def test_SIGINT_in_the_main_thread_stops_the_workers_and_is_an_interrupt() -> None:
    agent = thread_agent(until_stopped)

    def interrupt() -> None:
        agent.wait_calls("start", 1)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        agent.run()
    sender.join()
    assert agent.calls[-2:] == ["stop", "shutdown SIGINT"]


def test_an_agent_runs_where_a_loop_runs_already() -> None:
    async def cell() -> RunResult:
        return thread_agent(ranks).run()

    assert asyncio.run(cell()).state is WorkerState.SUCCEEDED


def test_an_agent_that_runs_is_not_run_twice() -> None:
    agent = thread_agent(until_stopped)
    running = Running(agent)
    agent.wait_calls("start", 1)
    with pytest.raises(UsageError, match="is already running"):
        agent.run()
    agent.interrupt(signal.SIGTERM)
    with pytest.raises(SignalException):
        running.result()


def test_it_logs_what_went_wrong_and_little_else(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rallypoint"):
        assert not shell_agent("exit 0").run().is_failed()
        assert caplog.messages == []
        assert (
            not shell_agent("exit $((1 - TORCHELASTIC_RESTART_COUNT))", restarts=1)
            .run()
            .is_failed()
        )
    assert any("exited with code 1" in line for line in caplog.messages)
    assert any("restart 1 of 1" in line for line in caplog.messages)


def test_a_store_of_the_round_is_for_the_hooks(tmp_path: Path) -> None:
    agents = [
        thread_agent(ranks, handler=handler) for handler in map(Meeting().handler, (2, 2), (2, 2))
    ]
    running = [Running(agent) for agent in agents]
    for one in running:
        one.result()
    stores = [agent.get_worker_group().store for agent in agents]
    stores[0].set("word", b"said")
    assert stores[1].get("word") == b"said"
    assert not isinstance(stores[0], HashStore), "a prefix of the round's own"
