"""When progress is posted to Kubeflow Trainer, by which node, and how often."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.harness.cluster import wait_until
from tests.harness.node_machine import Node, assigned, stamp

from rallypoint.agent.environ import ProgressReceiver, progress_receiver_asked_for
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.agent.telemetry.trainer_status import EVERY_S, MAX_PAUSE_S, TrainerStatus
from rallypoint.agent.worker_shm import WorkerShm
from rallypoint.core import messages as m
from rallypoint.core.node import machine
from rallypoint.core.node.events import EnrolmentDone
from rallypoint.core.node.machine import NodePhase
from rallypoint.observe.records import AgentEvent, Observer, StatusView
from rallypoint.wire import shm_words as at
from rallypoint.wire.shm import fresh_shm, pack_word

VIEW = StatusView(round=0, nodes=2, max_nodes=2, workers=4, restarts=0, max_restarts=3)


class Told(Observer):
    def __init__(self) -> None:
        self.events: list[AgentEvent] = []

    def event(self, event: AgentEvent) -> None:
        self.events.append(event)


class Trainer:
    """An agent's dispatcher with two workers, and a receiver of which the test decides when it
    takes a status and how."""

    def __init__(self, group_rank: int) -> None:
        self.now, self.error = 0.0, ""
        self.taken: list[dict[str, Any]] = []
        self.may_take, self.has_asked = threading.Semaphore(0), threading.Semaphore(0)
        self.dispatcher, self.told = EventDispatcher(), Told()
        self.status = TrainerStatus(self.dispatcher, self._post, lambda: self.now)
        self.dispatcher.subscribe(self.told)
        self.dispatcher.subscribe(self.status)
        self._fd = os.memfd_create("shm")
        os.write(self._fd, fresh_shm(2, os.getpid()))
        self.shm = WorkerShm("", self._fd, 2)
        state = Node(NodePhase.IDLE).state
        order = assigned(group_rank=group_rank)
        for event in (order, EnrolmentDone(stamp()), m.StartNow(stamp())):
            self.dispatcher.stepped(event, machine.step(state, event))
        self.dispatcher.spawned((70, 71), 0.1, self.shm)

    def step(self, *steps: int, total: int = 0, tokens: int = 0) -> None:
        """Of the workers, by local rank; 0 is not told."""
        for rank, step in enumerate(steps):
            words = {at.STEP: step, at.PROGRESS_AT: 1, at.TOTAL: total, at.TOKENS: tokens}
            for word, value in words.items():
                place = at.WORD_BYTES * (at.first_word(rank) + word)
                os.pwrite(self._fd, pack_word(value), place)

    def look(self, after_s: float) -> None:
        """As the agent does, once a second."""
        self.now += after_s
        self.dispatcher.status(VIEW)

    def take(self, error: str = "") -> dict[str, Any]:
        """The request that is under way or comes: it arrives, or fails by this error."""
        assert self.has_asked.acquire(timeout=30)
        self.error = error
        taken = self.taken[-1]
        self.may_take.release()
        return taken

    def is_asked(self) -> bool:
        """Whether there is a request that nobody has taken."""
        return self.has_asked.acquire(timeout=0.2)

    def pauses(self, pause_s: float) -> bool:
        return self.status.pause_s == pause_s

    def _post(self, body: bytes) -> None:
        self.taken.append(json.loads(body)["trainerStatus"])
        self.has_asked.release()
        self.may_take.acquire()
        if self.error:
            raise OSError(self.error)


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    made = Trainer(group_rank=0)
    yield made
    made.may_take.release(1000)
    assert not made.status.close(30)


def step_of(status: dict[str, Any]) -> str:
    metrics = {metric["name"]: str(metric["value"]) for metric in status["metrics"]}
    return metrics["step"]


def test_a_status_has_what_the_trainer_documents(trainer: Trainer) -> None:
    trainer.step(12, 11)
    trainer.look(1)
    status = trainer.take()
    assert status.keys() == {"metrics", "lastUpdatedTime"}
    metrics = {metric["name"]: metric["value"] for metric in status["metrics"]}
    assert metrics == {"step": "11", "nodes": "2", "workers": "4", "restarts": "0"}
    trainer.step(13, 14)
    trainer.dispatcher.finished(True, "")
    last = trainer.take()
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)
    assert step_of(last) == "14"


def test_with_a_total_it_tells_how_far_the_job_is_and_how_long_it_takes(trainer: Trainer) -> None:
    trainer.step(10, 12, total=100, tokens=512)
    trainer.look(1)
    first = trainer.take()
    assert {"name": "tokens", "value": "512"} in first["metrics"]
    assert first["progressPercentage"] == 10
    assert "estimatedRemainingSeconds" not in first
    trainer.step(20, 22, total=100)
    trainer.look(30)
    second = trainer.take()
    assert (second["progressPercentage"], second["estimatedRemainingSeconds"]) == (20, 240)
    trainer.step(110, 110, total=100)
    trainer.look(30)
    third = trainer.take()
    assert (third["progressPercentage"], third["estimatedRemainingSeconds"]) == (100, 0)


def test_it_is_posted_every_five_seconds_at_most_and_only_when_it_changes(trainer: Trainer) -> None:
    trainer.look(1)
    trainer.step(1, 1)
    trainer.look(1)
    assert step_of(trainer.take()) == "1"
    trainer.step(2, 2)
    trainer.look(EVERY_S - 0.1)
    assert not trainer.is_asked()
    trainer.look(0.1)
    assert step_of(trainer.take()) == "2"
    trainer.look(EVERY_S)
    assert not trainer.is_asked()


def test_while_a_request_is_under_way_the_newest_status_waits_and_nothing_else(
    trainer: Trainer,
) -> None:
    for step in range(1, 9):
        trainer.step(step, step)
        trainer.look(EVERY_S)
        if step == 1:
            assert trainer.has_asked.acquire(timeout=30)
    trainer.may_take.release()
    assert step_of(trainer.take()) == "8"
    assert len(trainer.taken) == 2


def test_a_receiver_that_fails_is_asked_less_and_less_often_and_said_once(trainer: Trainer) -> None:
    trainer.step(0, 0)
    trainer.look(0)
    for step, pause_s in enumerate((10.0, 20.0, 40.0, MAX_PAUSE_S, MAX_PAUSE_S), 1):
        trainer.take("it is away")
        wait_until(partial(trainer.pauses, pause_s), "the failure to be counted")
        trainer.step(step, step)
        trainer.look(pause_s - 0.5)
        assert not trainer.is_asked()
        trainer.look(0.5)
    trainer.take()
    assert [event.message for event in trainer.told.events] == ["it is away"]
    trainer.dispatcher.finished(True, "")
    trainer.take()


def test_a_job_that_fails_is_not_said_to_be_complete(trainer: Trainer) -> None:
    trainer.step(1, 1)
    trainer.dispatcher.finished(False, "")
    assert not trainer.is_asked()


@pytest.mark.parametrize("group_rank", [0, 1])
def test_other_nodes_and_jobs_without_progress_post_nothing(group_rank: int) -> None:
    trainer = Trainer(group_rank)
    if group_rank:
        trainer.step(1, 1)
    trainer.look(EVERY_S)
    trainer.dispatcher.finished(True, "")
    assert not trainer.status.close(30)
    assert trainer.taken == []


def test_the_variables_of_the_release_and_of_the_proposal_are_read() -> None:
    def asked(name: str) -> ProgressReceiver | None:
        environ = {f"{name}_URL": "https://a/b", f"{name}_CA_CERT": "/ca", f"{name}_TOKEN": "/t"}
        assert progress_receiver_asked_for(environ | {"RALLYPOINT_INCARNATION": "1"}) is None
        return progress_receiver_asked_for(environ)

    for name in ("KUBEFLOW_TRAINER_SERVER", "KUBEFLOW_TRAINER_STATUS"):
        origin = f"{name}_URL=https://a/b"
        assert asked(name) == ProgressReceiver("https://a/b", "/ca", "/t", origin)
    assert progress_receiver_asked_for({"KUBEFLOW_TRAINER_SERVER_URL": ""}) is None
