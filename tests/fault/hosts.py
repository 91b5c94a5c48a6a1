"""A cluster (see `tests.harness.cluster`) whose nodes are hosts of a network of their own.

    with HostCluster(tmp_path, "a", "b", "c", lease=4) as cluster:
        a, b = cluster.agents("a", "b")
        cluster.network.cut("a", "b")

A node runs on the host of its name, or on the one that it is given. They meet at the first host.
On leaving, nothing may run on a host, and where no agent was killed no temporary file may be left.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fault.network import Network
from tests.harness.cluster import AgentProcess, Cluster, Option, wait_until

PORT = 29400
_LISTENS = "0A"


class HostCluster(Cluster):
    """Options are those of `rallypoint run`, and hold for every node."""

    def __init__(self, folder: Path, *hosts: str, data: bool = False, **options: Option) -> None:
        self.network = Network(*hosts, data=data)
        endpoint = f"{self.network.address(hosts[0])}:{PORT}"
        super().__init__(folder, **{"rdzv_endpoint": endpoint, "lease": 4, **options})
        self.make_token()

    def agent(
        self,
        name: str,
        nproc: int = 1,
        *,
        host: Option = None,
        prefix: Sequence[str] = (),
        **options: Any,
    ) -> AgentProcess:
        """As in every cluster; `hosts` is whether it hosts the coordinator."""
        inside = (*prefix, *self.network.inside(str(host or name)))
        return super().agent(name, nproc, prefix=inside, **options)

    def serve(
        self, host: str = "", *words: str, port: int = PORT, prefix: Sequence[str] = ()
    ) -> AgentProcess:
        """A coordinator of its own on this host (the first), which is up when this returns.
        `prefix` may have it run there in another way."""
        host = host or self.network.hosts[0]
        command = [*(prefix or self.network.inside(host)), sys.executable, "-m", "rallypoint"]
        command += ["serve"]
        command += ["--host", self.network.address(host), "--port", str(port)]
        served = sum(agent.name == "serve" for agent in self.all_agents)
        file_name = f"serve.{served + 1}" if served else "serve"
        command += ["--log-format", "json", *words]
        server = AgentProcess(file_name, command, self.environ(), self.folder)
        server.name = "serve"
        self.all_agents.append(server)
        wait_until(lambda: listens(server.pid, port), "the coordinator to listen")
        return server

    def __enter__(self) -> HostCluster:
        self.network.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        try:
            super().__exit__(kind, error, at)
            if error is None:
                assert self.network.processes() == []
        finally:
            self.network.remove()

    def _assert_clean(self) -> None:
        super()._assert_clean()
        nodes = [agent for agent in self.all_agents if agent.name != "serve"]
        killed = any(node.process.returncode == -signal.SIGKILL for node in nodes)
        assert killed or list(self.temp.iterdir()) == []


def listens(pid: int, port: int) -> bool:
    """Whether something listens on this TCP port where the process is."""
    rows = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    fields = [row.split() for row in rows]
    return any(f[3] == _LISTENS and int(f[1].rpartition(":")[2], 16) == port for f in fields)


def wait_count(agent: AgentProcess, name: str, count: int) -> None:
    """Wait until the agent has told of this event so often."""
    told = f"{count} x {name} of {agent.name}"
    wait_until(lambda: sum(event.name == name for event in agent.events) >= count, told)
