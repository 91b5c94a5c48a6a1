"""A network for management, where sessions run, and one for data, where workers meet (F7)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fault.hosts import HostCluster
from tests.fault.network import DATA
from tests.harness.cluster import wait_until

CONNECTS = """
import socket
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = socket.create_connection(place, timeout=30)
with open(os.path.join(orders, ".from-" + os.environ["RALLYPOINT_NODE_ID"]), "w") as file:
    file.write(store.getsockname()[0])
"""

SAY = """
from rallypoint.elastic.stores import TCPStore
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
store.set(os.environ["RANK"], os.environ["RALLYPOINT_NODE_ID"])
tell(heard=[store.get(str(rank)).decode() for rank in range(int(os.environ["WORLD_SIZE"]))])
"""


@pytest.mark.quick
def test_F7_workers_meet_in_another_network_than_their_agents(tmp_path: Path) -> None:
    with HostCluster(tmp_path, "m", "a", "b", data=True, nnodes=3) as cluster:
        data = {name: cluster.network.address(name, DATA) for name in "mab"}
        cluster.network.cut("a", "b")  # in the network of the sessions
        agents = [cluster.agent(name, hosts=name == "m", local_addr=data[name]) for name in "mab"]
        workers = cluster.wait_workers(3, round=0)
        assert workers[0].node == "a", "not the node of the coordinator"
        assert {worker.env["MASTER_ADDR"] for worker in workers} == {data["a"]}
        cluster.order(CONNECTS)
        files = {name: tmp_path / "orders" / f".from-{name}" for name in "mab"}
        for name, file in files.items():
            wait_until(lambda: file.exists() and file.read_text() == data[name], f"{name} there")  # noqa: B023
        cluster.end_well(*agents)


@pytest.mark.parametrize("host", ["serve", "agent"])
def test_F7_workers_meet_on_the_data_network_when_the_nodes_meet_on_another(
    tmp_path: Path, host: str
) -> None:
    with HostCluster(tmp_path, "s", "a", "b", data=True, nnodes=2) as cluster:
        if host == "serve":
            cluster.serve()
        else:
            cluster.options["rdzv_endpoint"] = f"{cluster.network.address('a')}:29400"
        network = cluster.network
        if host == "serve":
            network.cut("a", "b")
        a, b = (cluster.agent(name, local_addr=network.address(name, DATA)) for name in "ab")
        workers = cluster.wait_workers(2, round=0)
        assert {worker.env["MASTER_ADDR"] for worker in workers} == {network.address("a", DATA)}
        cluster.order(SAY)
        told = '"heard": ["a", "b"]'
        wait_until(lambda: all(told in "".join(n.stdout_lines) for n in (a, b)), "all to be heard")
        cluster.end_well(a, b)
