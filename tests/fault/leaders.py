"""A cluster (see `tests.fault.hosts`) of which any node may lead the job, by a directory that all
of them see.

    with LeaderCluster(tmp_path, *"abcd", nnodes="2:4") as cluster:
        cluster.agents(*"abcd")
        cluster.wait_workers(4, round=0)
        cluster.wait_leader().kill()

Nodes take each other for machines: each has a network, a mount and a time namespace. The shared
file system is a small one in memory, of which every node has a view that may fail.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.fault.hosts import HostCluster
from tests.fault.mounts import Disk, View
from tests.harness.cluster import AgentProcess, Option, wait_until

from rallypoint.coordinator.client.token import find_token
from rallypoint.core.takeover.record import LeadRecord
from rallypoint.register import record as register_record
from rallypoint.register.directory.backend import DirectoryBackend

RUN_ID = "job"


class LeaderCluster(HostCluster):
    """Options are those of `rallypoint run`, and hold for every node."""

    register_hosts: tuple[str, ...] = ()
    """Where the register lies, if not on a disk."""
    conf = ""
    """Keys of `--rdzv-conf` that every node needs, with a comma at their end."""

    def __init__(
        self, folder: Path, *hosts: str, is_real_disk: bool = False, **options: Option
    ) -> None:
        self.jobs, self._is_real_disk = folder / "jobs", is_real_disk
        super().__init__(folder, *hosts, data=False, **options)
        self.jobs.mkdir(mode=0o700, exist_ok=True)
        self.options |= {"rdzv_backend": "file", "rdzv_endpoint": str(self.jobs)}
        self._opened = ExitStack()
        self.views: dict[str, View] = {}
        """What each host sees of the directory."""
        self.within: dict[str, Sequence[str]] = {}
        """The words before a node's command that make it run on its host."""

    def agent(
        self,
        name: str,
        nproc: int = 1,
        *,
        host: Option = None,
        prefix: Sequence[str] = (),
        **options: Any,
    ) -> AgentProcess:
        """As in every cluster; each node may lead."""
        place = str(host or name)
        options = {"local_addr": self.network.address(place), **options, "hosts": None}
        inside = (*prefix, *self.views[place].prefix, *self.within.get(place, ()))
        # Past the host cluster: a view is in its host's network already.
        return super(HostCluster, self).agent(name, nproc, prefix=inside, **options)

    def candidate(self, host: str, or_until: Callable[[], bool] = lambda: False) -> AgentProcess:
        """`serve --candidate` on this host, which is listed when this returns.

        `or_until`: the job may have ended before.
        """
        words = "--data-dir", str(self.jobs), "--candidate"
        served = self.serve(host, *words, prefix=self.views[host].prefix)

        def is_listed() -> bool:
            waits = (event for event in served.events if event.name == "waits_to_lead")
            return any("ready to take over from" in event.message for event in waits)

        wait_until(lambda: is_listed() or or_until(), "the candidate to wait")
        return served

    def record(self, run_id: str = RUN_ID) -> LeadRecord | None:
        """What the job's register holds."""
        token = find_token(None, None, self.home, create=False)
        assert token is not None
        found = self.content(run_id, token.for_job(run_id))
        return None if found is None else register_record.decode(found)

    def content(self, run_id: str, token: bytes) -> bytes | None:
        """The same as bytes, for who has the job's token."""
        found = DirectoryBackend(self.disk.outside, run_id, token).get_state()
        return None if found is None else found[0]

    def stored(self) -> dict[str, bytes]:
        """A copy of all that the job's register has stored, for `put_back`."""
        found, folder = {}, Path(self.disk.outside)
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):  # Old versions are removed meanwhile.
                if path.is_file():
                    found[str(path.relative_to(folder))] = path.read_bytes()
        return found

    def put_back(self, stored: dict[str, bytes]) -> None:
        """Somebody who has no token restores this copy."""
        folder = Path(self.disk.outside)
        for path in folder.rglob("*"):
            if path.is_file() and str(path.relative_to(folder)) not in stored:
                path.unlink(missing_ok=True)
        for name, data in stored.items():
            path = folder / name
            if not path.exists():
                path.parent.mkdir(mode=0o700, exist_ok=True)
                path.write_bytes(data)
                path.chmod(0o600)

    def start_register(self, opened: ExitStack) -> None:
        """Start what keeps the register, if no disk does; `opened` is closed when the jobs have
        ended."""

    def check_left(self) -> None:
        """What is left of a job that has ended is what may be left."""

    def leading(self, run_id: str = RUN_ID) -> str:
        """The host of the leader; empty while none leads."""
        record = self.record(run_id)
        if record is None or record.is_vacant:
            return ""
        address = record.leader.addresses[0].rpartition(":")[0]
        return next(host for host in self.network.hosts if self.network.address(host) == address)

    def node(self, name: str) -> AgentProcess:
        """The newest agent of this name."""
        return next(agent for agent in reversed(self.all_agents) if agent.name == name)

    def wait_leader(self, *but: str) -> AgentProcess:
        """The node that leads, which is none of these."""
        name = wait_until(lambda: (n := self.leading()) not in ("", *but) and n, "a leader")
        return self.node(str(name))

    def epoch(self, run_id: str = RUN_ID) -> int:
        """How many have led, so far."""
        record = self.record(run_id)
        return 0 if record is None else record.epoch.number

    def vanish(self, name: str) -> None:
        """The machine of this node is gone, with all that ran there, and answers nothing."""
        self.network.cut(name)
        self.kill_all(name)

    def kill_all(self, name: str) -> None:
        """All that runs on the machine of this node is killed at once, which is there on."""
        running = set(self.network.processes(name)) - self.views[name].keepers
        for number in (signal.SIGSTOP, signal.SIGKILL):  # Nobody outlives another one.
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        self.node(name).kill()

    def __enter__(self) -> LeaderCluster:
        super().__enter__()
        try:
            self.disk = self._opened.enter_context(
                Disk(self.folder / "disk", is_real=self._is_real_disk)
            )
            for host in self.network.hosts:
                view = self.disk.seen_at(self.jobs, self.network.inside(host))
                self.views[host] = self._opened.enter_context(view)
            self.start_register(self._opened)
        except BaseException:
            self._opened.close()
            self.network.remove()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        try:
            super(HostCluster, self).__exit__(kind, error, at)
            self._opened.close()
            if error is None:
                assert self.network.processes() == []
        finally:
            self._opened.close()
            self.network.remove()
