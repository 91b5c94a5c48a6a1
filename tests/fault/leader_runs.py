"""Whole jobs of which any node may lead, each with one fault in one state, by a seed.

    python -m tests.fault.leader_runs [--backend file|etcd|kubernetes] [--at-once N] [--table FILE]
        FIRST [LAST]

Prints a line for each run, and appends it to the table. All of these must hold, whatever happens:
no job is lost, the budget is exact, no round has two workers of one rank, and nothing is left. If
the fault concerns nobody but the leader, or only the directory and not for long, no worker is
started again.

What shows each of the faults that leading has to survive:

  leading agent that takes part is killed       kill, vanish
  ... that only stands by                       kill, vanish in the state spare
  `serve --candidate` that leads is killed      kill_candidate; test_candidate
  leader is stopped past its hold, and wakes    stop
  ... between the swap and telling of it        stop_after_swap; test_fault_register (L1: it wakes
                                                while its directory hangs, and has a node to place)
  leader is cut off from the directory          hide, hang
  ... from the other nodes; from both           cut; cut_and_hide
  directory is away and nobody notices          hide_all; test_fault_leaders
  ... so long that all are fenced               hide_all_for_long; test_fault_register (L2)
  directory has four busy writers, a minute     saturate (on the disk of this machine)
  ... is read-only; full; stale                 lock; fill; stale (ESTALE, by FUSE: no NFS client)
  two jobs in one directory                     test_fault_leaders
  either one of two nodes dies                  test_leading_agents

With `--backend etcd` the register is in a real etcd of three members (tests.fault.etcd_leaders),
whose faults take the place of those of a directory. With `--backend kubernetes` it is in a stand-in
of an API server (tests.fault.kubernetes_leaders).

The time of the directory is that of a short lease: with 8 s a job is fenced sooner than with 60 s.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from msgspec import Struct
from tests.fault import etcd_leaders, kubernetes_leaders, network
from tests.fault.leaders import LeaderCluster
from tests.harness.cluster import AgentProcess, Worker, wait_until
from tests.harness.restarted_serve import STEPS, STOP

from rallypoint.core.settings import HOLD_S

LEASE_S = 8.0
NAMES = "abcd"
TABLE = "RALLYPOINT_LEADER_RUNS"
"""This variable of the environment names the file that each line is appended to."""
STEP_ASIDE_S = 25.0
"""So long it may take until another node leads, of a leader that is alive."""
DDP = """\
tell()
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model, stop = DistributedDataParallel(torch.nn.Linear(4, 1)), torch.zeros(1)
while not stop.item():
    model(torch.ones(2, 4)).sum().backward()
    obey()
    dist.all_reduce(stop)
dist.destroy_process_group()
sys.exit(0)
"""
"""An order: train, all together, until one is told to stop."""
QUIET = "import sys; sys.excepthook = lambda *error: None\n"
"""Of a worker whose connections to the round's store are reset: it may see that before its end."""
WRITER = """\
import itertools, os, sys
mine = f"{sys.argv[1]}/writer-{os.getpid()}"
for n in itertools.count():
    with open(mine + ".new", "wb") as file:
        file.write(bytes(1 << 22))
        file.flush()
        os.fsync(file.fileno())
    os.replace(mine + ".new", mine)
"""
"""A program that keeps a directory busy."""
SATURATED_S = 60.0
LISTEN = "from rallypoint import worker; worker.drain_requested(); os.write(1, b'listens\\n')"


class Job:
    """One run: a job, and what has been done to it."""

    def __init__(self, cluster: LeaderCluster, chance: random.Random, *, is_ddp: bool) -> None:
        self.cluster, self.random, self.is_ddp = cluster, chance, is_ddp
        self.leader: AgentProcess
        self.gone: set[str] = set()
        """Nodes that are lost for good, or drain."""
        self.restarts = 0
        """The restarts that the budget is charged."""
        self.least_restarts: int | None = None
        """The same where one of them may be lost; None: none is."""
        self.drained: AgentProcess | None = None
        self.to_begin = ""
        """Nodes that come when the fault is over."""
        self.last_call_s = 600
        self.notes: list[str] = []

    # States

    def train(self) -> None:
        """What workers do that start now: they all-reduce, by DDP or over the round's store."""
        self.cluster.order(DDP if self.is_ddp else STEPS)

    def begin(self, names: str = NAMES) -> None:
        preload = "torch" if self.is_ddp else None
        env = {}
        if self.is_ddp:
            env["GLOO_SOCKET_IFNAME"] = "eth0"
            env["TORCHINDUCTOR_CACHE_DIR"] = str(self.cluster.folder / "torch")
        waits_s = 1 if self.cluster.options["nnodes"] == "3:4" else self.last_call_s
        self.cluster.options["rdzv_conf"] = f"{self.cluster.conf}last_call_timeout={waits_s}"
        for name in names:
            self.cluster.agent(name, env=env, preload=preload)

    def form(self) -> None:
        """Nodes wait for more."""
        self.train()
        self.begin("ab")
        self.to_begin = "cd"
        for name in "ab":
            self.cluster.node(name).wait_event("waiting", "1 more node")
        self.leader = self.cluster.wait_leader()

    def last_call(self) -> None:
        """Enough nodes are there, and the last call for more is open."""
        self.train()
        self.last_call_s, self.to_begin = 30, "d"
        self.begin("abc")
        self.leader = self.cluster.wait_leader()
        wait_until(lambda: sum("waiting" in e for e in self._told("abc")) == 3, "all to wait")
        assert not self.cluster.workers()

    def enroll(self) -> None:
        """The leader is lost, and another one has just taken over."""
        self.run()
        before = self.cluster.epoch()
        self.leader.kill()
        self.gone.add(self.leader.name)
        wait_until(lambda: self.cluster.epoch() > before, "a leader")
        self.leader = self.cluster.wait_leader()

    def run(self) -> None:
        """All workers make steps."""
        self.train()
        self.begin()
        self.wait_all()
        self.leader = self.cluster.wait_leader()

    def spare(self) -> None:
        """The leader stands by: its node was lost, and another one has taken its place."""
        self.cluster.order(QUIET + (DDP if self.is_ddp else STEPS))
        self.begin("d")
        self.leader = self.cluster.wait_leader()
        self.begin("ab")
        first = self.cluster.wait_workers(3, round=0)
        self.begin("c")
        self.cluster.node("c").wait_event("waiting", "standing by")
        self.cluster.network.mute("d")
        self.cluster.network.reset("d", "d")
        wait_until(lambda: {w.node for w in self.newest()} == set("abc"), "another one")
        wait_until(lambda: not any(w.is_alive for w in first), "the fence")
        self.cluster.network.unmute("d")
        self.leader.wait_event("waiting", "standing by")
        assert self.cluster.leading() == "d"
        wait_until(lambda: all(w.is_alive for w in self.newest()), "the workers")

    def back_off(self) -> None:
        """A worker has failed, and the next round is not due yet."""
        self.run()
        before = self.cluster.workers()
        self.cluster.order("os._exit(3)", round=before[0].round, rank=self.random.randrange(4))
        self.restarts = 1
        self.leader.wait_event("restart")

    def drain(self) -> None:
        """A node that does not lead is told to go, and nobody has saved yet."""
        self.run()
        self.cluster.order(LISTEN)
        agents = [self.cluster.node(name) for name in NAMES]
        wait_until(lambda: all("listens" in a.stdout_lines for a in agents), "all to listen")
        name = self.random.choice([a.name for a in agents if a is not self.leader])
        self.drained = self.cluster.node(name)
        self.drained.signal(signal.SIGTERM)
        self.leader.wait_event("node_draining")

    def finish_half(self) -> None:
        """Half of the nodes have succeeded."""
        self.run()
        self.cluster.order(STOP)  # That needs all ranks, and the store of a node that may be lost.
        told = [self.cluster.node(name) for name in NAMES]
        wait_until(
            lambda: all(any(" steps" in line for line in a.stdout_lines) for a in told), "the steps"
        )
        for rank in self.random.sample(range(4), 2):
            self.cluster.order("sys.exit(0)", round=0, rank=rank)
        wait_until(
            lambda: sum("succeeded" in [e.name for e in a.events] for a in told) == 2, "successes"
        )

    def end(self) -> None:
        """All workers are about to succeed."""
        self.run()
        self.order_end()

    # Faults

    def kill(self) -> None:
        """The leading agent."""
        self.leader.kill()
        self.gone.add(self.leader.name)

    def kill_candidate(self) -> None:
        """A coordinator that takes over from the leading agent, and takes part in nothing."""
        self.gone.add("serve")
        candidate = self.cluster.candidate(CANDIDATE, or_until=self._have_ended)
        self.kill()
        wait_until(
            lambda: self.cluster.leading() == CANDIDATE or self._have_ended(), "the candidate"
        )
        self.notes.append("candidate led" if not self._have_ended() else "ended before")
        candidate.kill()

    def vanish(self) -> None:
        """The leading machine."""
        self.cluster.vanish(self.leader.name)
        self.gone.add(self.leader.name)

    def stop(self) -> None:
        """The leading agent does not run for longer than its hold."""
        self.leader.pause()
        self.wait_other()
        self.leader.resume()

    def stop_after_swap(self) -> None:
        """The leading agent is stopped when what it has decided is in the directory, mostly before
        it tells of it; another one leads when it wakes."""
        told, pid = len(self.leader.events), self.leader.pid
        place = Path(self.cluster.disk.outside)
        stopped = threading.Thread(target=_stop_at_change, args=(place, pid, time.monotonic() + 15))
        stopped.start()
        charged = self.restarts
        self._give_cause()
        stopped.join()
        record = self.cluster.record()
        assert record is not None
        if self.restarts > charged and (record.job is None or record.job.is_active):
            # Stopped at a swap before that of the failure. All nodes are fenced before another one
            # leads, and what failed before may follow from that.
            self.least_restarts = charged
        self.notes.append(f"{len(self.leader.events) - told} told before")
        self.wait_other()
        self.leader.resume()

    def hide(self) -> None:
        """The leader alone has no directory."""
        view = self.cluster.views[self.leader.name]
        view.take_away()
        self.sleep(2, 14)
        view.bring_back()

    def hang(self) -> None:
        """The leader's directory does not answer."""
        view = self.cluster.views[self.leader.name]
        view.hang()
        self.sleep(2, 14)
        view.answer()

    def stale(self) -> None:
        """The leader gets ESTALE for whatever it asks of its directory."""
        view = self.cluster.views[self.leader.name]
        view.hang(is_stale=True)
        self.sleep(2, 14)
        view.answer()

    def saturate(self) -> None:
        """Four nodes write to the directory's disk as fast as they can."""
        place = self.cluster.jobs / "busy"
        Path(self.cluster.disk.outside, "busy").mkdir()
        writers = [
            subprocess.Popen([*self.cluster.views[n].prefix, sys.executable, "-c", WRITER, place])
            for n in NAMES
        ]
        time.sleep(SATURATED_S)
        for writer in writers:
            writer.kill()
            writer.wait()
        shutil.rmtree(Path(self.cluster.disk.outside, "busy"))

    def cut(self) -> None:
        """The leader does not reach the other nodes."""
        self.cluster.network.cut(self.leader.name)
        self.wait_other()
        self.cluster.network.heal(self.leader.name)

    def cut_and_hide(self) -> None:
        """Neither the other nodes nor the directory."""
        self.cluster.views[self.leader.name].take_away()
        self.cut()
        self.cluster.views[self.leader.name].bring_back()

    def lock(self) -> None:
        """The directory is read-only for all."""
        for view in self.cluster.views.values():
            view.make_read_only()
        self.sleep(2, 14)
        for view in self.cluster.views.values():
            view.make_writable()

    def hide_all(self) -> None:
        """Nobody has a directory."""
        for view in self.cluster.views.values():
            view.take_away()
        self.sleep(2, 14)
        for view in self.cluster.views.values():
            view.bring_back()

    def hide_all_for_long(self) -> None:
        """For so long that all workers are stopped."""
        for view in self.cluster.views.values():
            view.take_away()
        self.wait_fences(self.alive())
        for view in self.cluster.views.values():
            view.bring_back()

    def fill(self) -> None:
        """The file system is full."""
        self.cluster.disk.fill()
        self.sleep(2, 14)
        self.cluster.disk.free()

    # And then

    def live(self) -> list[AgentProcess]:
        """The newest agent of each node that is to end well."""
        started = {agent.name: agent for agent in self.cluster.all_agents}
        return [agent for name, agent in started.items() if name not in self.gone]

    def go_on(self, state: str) -> None:
        """The fault is over: see the job to its end."""
        self.begin(self.to_begin)
        if self.drained is not None:
            self.gone.add(self.drained.name)
            self.cluster.order("worker.checkpoint_saved(1)")
            assert self.drained.wait_exit() == 128 + signal.SIGTERM, "the exit code of a drain"
        if state in ("form", "last_call", "run", "back_off", "drain", "enroll"):
            self.wait_all()
        self.order_end()
        for agent in self.live():
            assert agent.wait_exit() == 0, f"the exit code of {agent.name}"
            assert agent.verdict["outcome"] == "succeeded"
            spent = agent.verdict["restarts"]
            least = self.restarts if self.least_restarts is None else self.least_restarts
            assert least <= spent <= self.restarts, agent.verdict
        self.check()

    def check(self) -> None:
        """What holds of every job that has ended."""
        workers = self.cluster.workers()
        twice = [key for key, n in Counter((w.round, w.rank) for w in workers).items() if n > 1]
        assert not twice, f"of (round, rank) there are two: {twice}"
        sizes = {(w.round, w.env["WORLD_SIZE"]) for w in workers}
        assert len(sizes) == len({round_ for round_, _ in sizes}), f"two worlds: {sizes}"
        self.cluster.check_left()
        names = [path.name for path in Path(self.cluster.disk.outside).rglob("*")]
        odd = [name for name in names if name.startswith(("probe-", "new-", "gone-"))]
        assert self.gone or not odd, f"left in the directory: {odd}"

    def order_end(self) -> None:
        self.cluster.order("stop += 1" if self.is_ddp else "sys.exit(0)")

    def newest(self) -> list[Worker]:
        """The workers of the newest round."""
        workers = self.cluster.workers()
        return [worker for worker in workers if worker.round == workers[-1].round]

    def alive(self) -> list[Worker]:
        """The workers that run."""
        newest = self.newest() if self.cluster.workers() else []
        return [worker for worker in newest if worker.is_alive]

    def wait_fences(self, workers: list[Worker]) -> None:
        """Until these were stopped, as the register is away for all; as long if there are none."""
        if not workers:
            self.sleep(20, 30)
        limit_s = HOLD_S + 5 * float(self.cluster.options["lease"] or 0)
        wait_until(lambda: not any(worker.is_alive for worker in workers), "the fences", limit_s)

    def wait_all(self) -> list[Worker]:
        """Exactly the nodes that live have workers in the newest round."""
        names = {agent.name for agent in self.live()}

        def find() -> list[Worker]:
            newest = self.newest() if self.cluster.workers() else []
            for agent in self.live():
                assert agent.process.poll() is None, f"{agent.name} has ended"
            is_it = {w.node for w in newest} == names and all(w.is_alive for w in newest)
            return newest if is_it else []

        return wait_until(find, f"{sorted(names)} to run")

    def wait_other(self) -> None:
        """Until another node leads; or so long that none will, for there is no need."""
        before = self.cluster.epoch()
        with contextlib.suppress(AssertionError):
            wait_until(lambda: self.cluster.epoch() > before, "a leader", STEP_ASIDE_S)

    def _give_cause(self) -> None:
        """For a decision of the leader, if none is due in this state."""
        if self.to_begin:
            first, self.to_begin = self.to_begin[0], self.to_begin[1:]
            self.begin(first)
        elif not (self.restarts or self.gone or self.drained or self._have_ended()):
            others = [w for w in self.newest() if w.node != self.leader.name and w.is_alive]
            if others:
                worker = self.random.choice(others)
                self.cluster.order("os._exit(3)", round=worker.round, rank=worker.rank)
                self.restarts = 1

    def _told(self, names: str) -> list[set[str]]:
        return [{event.name for event in self.cluster.node(name).events} for name in names]

    def _have_ended(self) -> bool:
        return all(agent.process.poll() is not None for agent in self.live())

    def sleep(self, least_s: float, most_s: float) -> None:
        time.sleep(self.random.uniform(least_s, most_s))


STATES: dict[str, Callable[[Job], None]] = {
    "form": Job.form,
    "last_call": Job.last_call,
    "run": Job.run,
    "spare": Job.spare,
    "back_off": Job.back_off,
    "drain": Job.drain,
    "enroll": Job.enroll,
    "finish_half": Job.finish_half,
    "end": Job.end,
}
FAULTS: dict[str, Callable[[Job], None]] = {
    "kill": Job.kill,
    "kill_candidate": Job.kill_candidate,
    "vanish": Job.vanish,
    "stop": Job.stop,
    "stop_after_swap": Job.stop_after_swap,
    "hide": Job.hide,
    "hang": Job.hang,
    "stale": Job.stale,
    "cut": Job.cut,
    "cut_and_hide": Job.cut_and_hide,
    "lock": Job.lock,
    "hide_all": Job.hide_all,
    "hide_all_for_long": Job.hide_all_for_long,
    "fill": Job.fill,
    "saturate": Job.saturate,
}
UNNOTICED = defaultdict[str, set[str]](set)
"""No worker is started again because of these faults, by state."""
UNNOTICED["run"] = {"hide", "hang", "stale", "lock", "hide_all", "fill", "saturate"}
UNNOTICED["spare"] = FAULTS.keys() - {"hide_all_for_long", "stop_after_swap"}
DDP_STATES = ("form", "last_call", "run", "spare", "back_off", "enroll", "end")
CANDIDATE = "s"
"""The host of a coordinator that takes part in nothing."""
NNODES = {"form": "3:4", "spare": "3:3"}
SPARE_LEASE_S = 20.0
"""Longer than it takes until another node leads, whatever became of the leader."""


class Plan(Struct, frozen=True):
    """One run."""

    fault: str
    state: str
    is_ddp: bool = False
    seed: int = 0


def plan_of(seed: int, faults: Sequence[str] = tuple(FAULTS)) -> Plan:
    """Of so many seeds in a row as there are pairs, each has another pair of fault and state, and
    fewer have as many of each as can be; every fifth trains with DDP."""
    states, is_ddp = list(STATES), (seed + seed // len(faults)) % 5 == 4
    periods = math.lcm(len(faults), len(states))
    state = states[(seed + seed // periods) % len(states)]
    if is_ddp and state not in DDP_STATES:
        state = DDP_STATES[seed % len(DDP_STATES)]
    return Plan(faults[seed % len(faults)], state, is_ddp, seed)


def run(folder: Path, plan: Plan, backend: str = "file") -> str:
    """Raises AssertionError. Returns a summary."""
    is_spare = plan.state == "spare"
    made = CLUSTERS[backend]
    with made(
        folder,
        *NAMES,
        *([CANDIDATE] if plan.fault == "kill_candidate" else []),
        is_real_disk=plan.fault == "saturate",
        nnodes=NNODES.get(plan.state, "2:4"),
        lease=SPARE_LEASE_S if is_spare else LEASE_S,
        max_restarts=1,
        restart_backoff=4,
        drain_deadline=600,
    ) as cluster:
        job = Job(cluster, random.Random(plan.seed), is_ddp=plan.is_ddp)
        STATES[plan.state](job)
        before = cluster.workers()
        BY_BACKEND[backend][plan.fault](job)
        job.go_on(plan.state)
        if plan.fault in UNNOTICED[plan.state]:
            assert cluster.workers() == before, "workers were started again"
        rounds = len({worker.round for worker in cluster.workers()})
        return ", ".join([f"{cluster.epoch()} led", f"{rounds} rounds", *job.notes])


_OF_ANY: dict[str, Callable[[Job], None]] = {
    "kill": Job.kill,
    "vanish": Job.vanish,
    "stop": Job.stop,
}
BY_BACKEND = {
    "file": FAULTS,
    "etcd": _OF_ANY | etcd_leaders.FAULTS,
    "kubernetes": _OF_ANY | kubernetes_leaders.FAULTS,
}
CLUSTERS = {
    "file": LeaderCluster,
    "etcd": etcd_leaders.EtcdLeaderCluster,
    "kubernetes": kubernetes_leaders.KubernetesLeaderCluster,
}
UNNOTICED["run"] |= etcd_leaders.UNNOTICED | kubernetes_leaders.UNNOTICED
UNNOTICED["finish_half"] = UNNOTICED["end"] = UNNOTICED["run"]
UNNOTICED["spare"] |= etcd_leaders.FAULTS.keys() - {"no_quorum_for_long"}
UNNOTICED["spare"] |= kubernetes_leaders.FAULTS.keys() - {"away_for_long"}


def _stop_at_change(place: Path, pid: int, until: float) -> None:
    """Stop this process when another version is in the register below this directory; in any case
    then. It looks all the time: what follows on the version comes within a millisecond."""
    newest = max(place.glob("*/*-*/"), key=lambda path: path.name)
    following = str(newest / f"{len(os.listdir(newest)) + 1:06}")
    while not os.path.lexists(following) and time.monotonic() < until:
        pass
    os.kill(pid, signal.SIGSTOP)


def main() -> int:
    """Run them, and say how many have failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--backend", choices=tuple(BY_BACKEND), default="file")
    parser.add_argument("--table", type=Path, help="a file that each line is appended to")
    parser.add_argument("--only", action="store_true", help="this one, in this process")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    options = parser.parse_args()
    if options.table:
        os.environ[TABLE] = str(options.table.absolute())
    if options.only:
        return _one(options.first, options.backend)
    network.remove_abandoned()
    seeds = range(options.first, (options.last or options.first) + 1)
    with ThreadPoolExecutor(options.at_once) as pool:
        failed = [
            seed
            for seed, is_ok in zip(
                seeds, pool.map(partial(_child, options.backend), seeds), strict=True
            )
            if not is_ok
        ]
    _tell(f"{len(seeds)} runs, {len(failed)} failed: {failed}")
    return bool(failed)


def _tell(line: str) -> None:
    print(line, flush=True)
    if table := os.environ.get(TABLE):
        with open(table, "a") as file:
            file.write(line + "\n")


def _child(backend: str, seed: int) -> bool:
    command = [sys.executable, "-m", "tests.fault.leader_runs", "--only", str(seed)]
    command += ["--backend", backend]
    return subprocess.run(command).returncode == 0


def _one(seed: int, backend: str) -> int:
    plan, began_at = plan_of(seed, tuple(BY_BACKEND[backend])), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"leader-run-{seed}-"))
    name = f"{seed:4} {plan.fault:17} {plan.state:11} {'ddp' if plan.is_ddp else '   '}"
    log = folder / "log"
    try:
        with log.open("w") as file, contextlib.redirect_stdout(file):
            try:
                said = run(folder, plan, backend)
            except BaseException:
                traceback.print_exc(file=file)
                raise
    except BaseException as error:
        first = (str(error) or repr(error)).splitlines()[0][:200]
        _tell(f"{name} {time.monotonic() - began_at:5.1f} s FAILED {first} ({log})")
        return 1
    _tell(f"{name} {time.monotonic() - began_at:5.1f} s {said}")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    sys.exit(main())
