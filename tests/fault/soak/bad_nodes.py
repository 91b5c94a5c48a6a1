"""Bad nodes in a job of a soak: they can't start workers, or their workers fail, or they come and
go, or have the id of another node.

What holds of each: it neither ends the job nor is charged while the minimum of nodes remains. One
that can't start workers leaves with 75. One whose workers fail before their first step, while an
earlier round was healthy without it, is held back; so is one that flaps. One with the id of a node
that is heard exits with 2. The good nodes are disturbed once: a round with it, and one without it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.fault.soak import ledger
from tests.fault.soak.events import Event, Skipped
from tests.fault.soak.job import BAD_HOST, FOREMOST, MOST, Node, RuleBroken, SoakJob
from tests.harness.cluster import wait_until
from tests.harness.limits import patience

CANNOT_START, REFUSED = 75, 2
LIVES = 6
"""A loop starts its node so often at most."""
PAUSE_S = 1.0
"""Between two of its lives, as a service manager does."""
LEAVE_S, HELD_S = 45.0, 15.0
"""How long a bad node may take to leave, and for how long one that is held back is watched."""
FLAPS = 5
TWICE = 2
"""Rounds of one disturbance: one with the bad node, and one without it."""
ROOMY, NARROW, FULL = "size=1m,nr_inodes=64", "size=64k,nr_inodes=3", "size=4k,nr_inodes=1"
"""Small file systems: NARROW has room for the directory of an agent, and none for a round's."""
_MOUNT = 'mount -t tmpfs -o "$0" soak "$1" && shift && exec "$@"'
_PIDS = Path("/sys/fs/cgroup/pids")


class Loop:
    """A bad node under what starts it again when it exits with 75."""

    def __init__(self, job: SoakJob, node_id: str = "", lives: int = LIVES, **how: Any) -> None:
        self._job, self._how, self._lives = job, how, lives
        self.codes: list[int] = []
        self._started = 0
        self._ended_at: float | None = None
        self.node = self._start(node_id or f"bad{len(job.cluster.all_agents)}")

    def _start(self, node_id: str) -> Node:
        self._started += 1
        self._ended_at = None
        return self._job.start(BAD_HOST, node_id, **self._how)

    def tend(self) -> None:
        """Look whether it has ended, and start it again if it is to be."""
        self._job.check_alive()
        now = time.monotonic()
        if self._ended_at is None:
            if (code := self.node.exit_code) is not None:
                self.codes.append(code)
                self._job.notes.append(f"{code}: {self.node.last_line()}")
                self._ended_at = now
        elif self._is_due(now - self._ended_at):
            self.node = self._start(self.node.id)

    def _is_due(self, ended_s: float) -> bool:
        is_wanted = self.codes[-1] == CANNOT_START and self._started < self._lives
        return is_wanted and ended_s > PAUSE_S

    def watch(self, until: Callable[[], object], limit_s: float) -> bool:
        """Tend it until something holds; whether that came."""
        deadline = time.monotonic() + limit_s
        while not until():
            if time.monotonic() > deadline:
                return False
            self.tend()
            time.sleep(0.1)
        return True

    def has_workers(self) -> bool:
        """In the newest world, which is complete: all have met."""
        newest = self._job.newest()
        return any(worker.node == self.node.id for worker in newest) and all(
            worker.met_at is not None for worker in newest
        )

    def stop(self) -> None:
        """Stop the process as a service manager does."""
        process = self.node.agent.process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience(15))
        if process.poll() is None:
            self._job.note_broken(ledger.OUTCOME, f"node {self.node.id} did not stop at SIGTERM")
            self.node.agent.kill()


@contextmanager
def bad_node(job: SoakJob, rounds: int = TWICE, **how: Any) -> Iterator[Loop]:
    """One that is stopped at the end. The good nodes then have begun so many rounds at most."""
    before = job.good_worlds()
    loop = Loop(job, **how)
    try:
        yield loop
    finally:
        loop.stop()
    job.mark()
    job.settle()
    if (new := job.good_worlds() - before) > rounds:
        told = f"the good nodes were restarted {new} times by a bad one, not {rounds} at most"
        job.note_broken(ledger.DISTURBED, told)


def _leaves(job: SoakJob, loop: Loop, code: int = CANNOT_START) -> None:
    """The bad node ends so."""
    loop.watch(lambda: code in loop.codes, LEAVE_S)
    if code not in loop.codes:
        told = f"node {loop.node.id} did not exit with {code}: {loop.codes or 'it runs'}"
        job.note_broken(ledger.OUTCOME, told)


def _is_held(job: SoakJob, loop: Loop) -> None:
    """The bad node waits, and the others go on."""
    loop.watch(lambda: loop.codes, HELD_S)
    loop.watch(lambda: loop.codes or job.is_settled(), LEAVE_S)
    if loop.codes or not job.is_settled():
        told = f"node {loop.node.id} was not held back: {loop.codes or 'it has workers'}"
        job.note_broken(ledger.OUTCOME, told)


# It can't start workers


def _mounted(size: str, place: str) -> tuple[str, ...]:
    """Before a command: this place is a small file system, for it alone."""
    if os.geteuid():
        raise Skipped("a file system needs root")
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNT, size, place)


def newcomer_temp_full(job: SoakJob) -> None:
    """TMPDIR has no room for a round's files."""
    with bad_node(job, within=_mounted(NARROW, "TEMP")) as loop:
        _leaves(job, loop)


def newcomer_logs_full(job: SoakJob) -> None:
    """The directory of its logs has no room."""
    logs = job.folder / f"logs-{len(job.cluster.all_agents)}"
    logs.mkdir()
    full = _mounted(FULL, str(logs))
    with bad_node(job, within=full, log_dir=str(logs), redirects="3") as loop:
        _leaves(job, loop)


def disk_fills(job: SoakJob) -> None:
    """A node that runs has no room at a restart, and has it again later. The rounds: with it, the
    restart, without it, with it again, and without it when the loop is stopped."""
    with bad_node(job, rounds=5, within=_mounted(ROOMY, "TEMP")) as loop:
        _has_joined(job, loop)
        with _full(Path(f"/proc/{loop.node.agent.pid}/root{loop.node.temp}")):
            job.command("restart")
            _leaves(job, loop)
        loop.watch(loop.has_workers, HELD_S)


@contextmanager
def _full(place: Path) -> Iterator[None]:
    """Keep this small file system full, whatever is removed there."""
    space = os.open(place, os.O_PATH | os.O_DIRECTORY)  # It outlives the process of `place`.
    inside = Path(f"/proc/self/fd/{space}")
    made, is_over = [inside / "filler"], threading.Event()

    def fill() -> None:
        with suppress(OSError), made[0].open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        while not is_over.wait(0.002):
            path = inside / f"name-{len(made)}"
            with suppress(OSError):
                path.touch()
                made.append(path)

    filling = threading.Thread(target=fill)
    filling.start()
    wait_until(lambda: os.statvfs(inside).f_favail == 0, "a full file system")
    try:
        yield
    finally:
        is_over.set()
        filling.join()
        for path in made:
            path.unlink()
        os.close(space)


def few_descriptors(job: SoakJob) -> None:
    """A node that runs may open no further file when workers are to be started again."""
    with bad_node(job, rounds=4, lives=1) as loop:
        _has_joined(job, loop)
        pid = loop.node.agent.pid
        count = max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 2
        subprocess.run(["prlimit", f"--nofile={count}:{count}", f"--pid={pid}"], check=True)
        job.command("restart")
        _leaves(job, loop)


def few_processes(job: SoakJob) -> None:
    """A node that runs may fork no further process when workers are to be started again."""
    group = _PIDS / f"rallypoint-soak-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise Skipped(f"no group of processes can be made: {error.strerror}") from None
    try:
        with bad_node(job, rounds=4, lives=1) as loop:
            _has_joined(job, loop)
            for pid in (loop.node.agent.pid, *loop.node.children()):
                (group / "cgroup.procs").write_text(str(pid))
            (group / "pids.max").write_text("1")
            job.command("restart")
            _leaves(job, loop)
    finally:
        with suppress(OSError):
            group.rmdir()


def _has_joined(job: SoakJob, loop: Loop) -> None:
    if not loop.watch(loop.has_workers, LEAVE_S):
        told = f"node {loop.node.id} did not take part: {loop.codes or 'it runs'}"
        raise RuleBroken(ledger.SETTLED, told)


# Its workers fail


def newcomer_false(job: SoakJob) -> None:
    """A node comes whose workers exit with 1 at once."""
    job.pass_probation()
    with bad_node(job, no_python=True, script=["false"]) as loop:
        _is_held(job, loop)


def newcomer_fails_soon(job: SoakJob) -> None:
    """A node comes whose workers fail after some seconds, before the first step."""
    job.pass_probation()
    with bad_node(job, words=(3, 1)) as loop:
        _is_held(job, loop)


def newcomer_fails_every_second_round(job: SoakJob) -> None:
    job.pass_probation()
    with bad_node(job, words=(0.5, 2, 4)) as loop:
        _is_held(job, loop)


# It comes and goes, or is not what it seems


def flapping(job: SoakJob) -> None:
    """Kill a node shortly after each round with it has begun: it is held back at last."""
    before = job.good_worlds()
    name = f"flap{len(job.cluster.all_agents)}"
    was_held = False
    for _ in range(FLAPS):
        loop = Loop(job, name)
        try:
            was_held = not loop.watch(loop.has_workers, HELD_S)
            if not was_held:
                time.sleep(0.5)
                loop.node.agent.kill()
        finally:
            loop.stop()
        if was_held:
            break
        job.settle()
    job.mark()
    job.settle()
    if not was_held:
        told = f"node {name} was lost {FLAPS} times and was not held back"
        job.note_broken(ledger.OUTCOME, told)
    if (new := job.good_worlds() - before) > 3 * TWICE:
        told = f"the good nodes were restarted {new} times by a node that flaps"
        job.note_broken(ledger.DISTURBED, told)


def same_id(job: SoakJob) -> None:
    """Another machine has the id of a node that is heard."""
    with bad_node(job, rounds=1, node_id=job.some().id) as loop:
        _leaves(job, loop, REFUSED)


def newcomer_cut_from_rank_0(job: SoakJob) -> None:
    """A node comes that reaches the leader, and not the store of the round."""
    if job.rank_0() is job.leader():
        if len(job.good) == MOST:
            raise Skipped("the leader has rank 0, and there is no place for another node")
        job.add(topology=FOREMOST)
        job.settle()
    rank_0 = job.rank_0()
    job.cluster.network.cut(BAD_HOST, rank_0.host)
    try:
        with bad_node(job) as loop:
            _is_held(job, loop)
    finally:
        job.cluster.network.heal(BAD_HOST, rank_0.host)


BAD: dict[str, Event] = {
    event.__name__: event
    for event in (
        newcomer_temp_full,
        newcomer_logs_full,
        disk_fills,
        few_descriptors,
        few_processes,
        newcomer_false,
        newcomer_fails_soon,
        newcomer_fails_every_second_round,
        flapping,
        same_id,
        newcomer_cut_from_rank_0,
    )
}
"""The events of a job without restarts."""
FAILING = ("newcomer_false", "newcomer_fails_soon", "newcomer_fails_every_second_round")
"""The newcomers whose workers fail, each in another way."""
UNCHARGED = ("newcomer_false", "newcomer_fails_soon")
"""Those of a job with a budget, too: they are not charged."""
