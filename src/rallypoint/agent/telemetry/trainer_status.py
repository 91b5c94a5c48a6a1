"""Posts the progress of a job to Kubeflow Trainer.

It shows the progress as `status.trainerStatus` of the TrainJob. Its controller has told the pods
where to post.

The node of rank 0 posts, once its workers have reported progress: every 5 s at most, as Kubeflow's
documentation asks, and only what has changed. The requests are made in a thread. While one is under
way a newer status replaces one that waits, so there is never more than one to be sent.

Fields: the page "TrainJob Progress" of Kubeflow Trainer 2.2, and its proposal KEP-2779.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable

from msgspec import Struct

from rallypoint.agent.progress import Progress
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.core import event_kinds as kinds
from rallypoint.core.model import Assignment, Verdict
from rallypoint.core.node.timeline import RoundLife
from rallypoint.observe.queue import BoundedQueue
from rallypoint.observe.records import Observer, StatusView, event_now

EVERY_S = 5.0
MAX_INT32 = (1 << 31) - 1
"""The largest number that the field for the remaining seconds can hold."""
MAX_PAUSE_S = 60.0
"""The longest pause in seconds between failing requests: each failure doubles it, from
`EVERY_S`."""

StatusBody = dict[str, object]
Post = Callable[[bytes], None]
"""Sends one status, given as JSON. Called in a thread; raises when it fails."""


class _Sent(Struct):
    """The state of the thread that posts."""

    waiting: StatusBody | None = None
    error: str = ""
    """The error of the last request; empty: it has arrived, or there was none."""
    pause_s: float = EVERY_S


class _Since(Struct, frozen=True):
    """The first step of a round, and the time when it was seen."""

    round: int
    step: int
    at: float


class TrainerStatus(Observer):
    """The reporter of the job's progress to Kubeflow Trainer.

    For the thread of the loop, which it does not block.
    """

    def __init__(
        self, dispatcher: EventDispatcher, post: Post, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._dispatcher, self._post, self._clock = dispatcher, post, clock
        self._queue: BoundedQueue[bool] = BoundedQueue(self._send)
        self._lock = threading.Lock()
        self._sent = _Sent()
        self._last: StatusBody = {}
        self._since = _Since(-1, 0, 0.0)
        self._looked_at, self._is_told = -math.inf, False

    @property
    def pause_s(self) -> float:
        """The pause between two requests in seconds, longer when the last ones have failed."""
        return self._sent.pause_s

    def status(self, view: StatusView) -> None:
        if self._sent.error and not self._is_told:
            self._is_told = True
            record = kinds.PROGRESS_NOT_POSTED(self._sent.error)
            self._dispatcher.event(event_now(record, self._dispatcher.node))
        now, life = self._clock(), self._dispatcher.timeline.newest
        if now - self._looked_at < self.pause_s or life is None or life.ended_at is not None:
            return
        if (progress := self._progress(life)) is not None:
            self._looked_at = now
            self._put(_metrics(progress, life.assignment) | self._how_far(life, progress, now))

    def finished(self, succeeded: bool, reason: str, verdict: Verdict | None) -> None:
        life = self._dispatcher.timeline.newest
        if not succeeded or life is None or life.assignment.group_rank:
            return
        if (progress := self._dispatcher.reached(life.number)) is not None:
            done: StatusBody = {"progressPercentage": 100, "estimatedRemainingSeconds": 0}
            self._put(_metrics(progress, life.assignment) | done)

    def close(self, limit_s: float) -> str:
        """Let the last status be sent, and return why it was not; blocks for `limit_s` at most.

        Empty if it was sent, or if the reason was shown before.
        """
        if self._queue.close(limit_s):
            return "Kubeflow Trainer did not take the last progress in time"
        return "" if self._is_told else self._sent.error

    def _progress(self, life: RoundLife) -> Progress | None:
        """Return the progress of the worker of rank 0's node that is furthest behind.

        None: this is another node, or no worker has reported any.
        """
        shm = self._dispatcher.shm
        if life.assignment.group_rank or shm is None:
            return None
        told = [progress for progress in shm.progress() if progress is not None]
        return min(told, key=lambda progress: progress.step, default=None)

    def _how_far(self, life: RoundLife, progress: Progress, now: float) -> StatusBody:
        """Return the share of steps done and the time left, if the total is known.

        The time left follows from the pace of this round, since its first step was seen.
        """
        if life.number != self._since.round:
            self._since = _Since(life.number, progress.step, now)
        if not progress.total or progress.total < 0:
            return {}
        share = min(max(progress.step / progress.total, 0.0), 1.0)
        found: StatusBody = {"progressPercentage": int(100 * share)}
        if (made := progress.step - self._since.step) > 0 and share:
            left_s = (progress.total - progress.step) * (now - self._since.at) / made
            found["estimatedRemainingSeconds"] = min(max(round(left_s), 0), MAX_INT32)
        return found

    def _put(self, status: StatusBody) -> None:
        if status == self._last:
            return
        self._last = status
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._lock:
            waits, self._sent.waiting = self._sent.waiting, status | {"lastUpdatedTime": at}
        if waits is None:
            self._queue.put(True)

    def _send(self, _: bool) -> None:
        sent = self._sent
        with self._lock:
            status, sent.waiting = sent.waiting, None
        try:
            self._post(json.dumps({"trainerStatus": status}).encode())
            sent.error, sent.pause_s = "", EVERY_S
        except Exception as error:
            sent.error, sent.pause_s = str(error), min(sent.pause_s * 2, MAX_PAUSE_S)


def _metrics(progress: Progress, place: Assignment) -> StatusBody:
    """Return a worker's last step, loss and tokens, and the job's size and restarts."""
    values = {"step": progress.step, "loss": progress.loss, "tokens": progress.tokens}
    values |= {"nodes": place.group_world_size, "workers": place.world_size}
    values["restarts"] = place.restart_count
    told = [{"name": name, "value": str(n)} for name, n in values.items() if n is not None]
    return {"metrics": told}
