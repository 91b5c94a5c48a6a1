"""`--rdzv-backend c10d --rdzv-conf store_type=file`: nodes meet by a path, as torchrun's do."""

from __future__ import annotations

import os

from tests.harness.cluster import Cluster

BY_PATH = "store_type=file,last_call_timeout=20"


def test_L1_nodes_meet_by_the_path_of_a_file_and_outlive_the_one_that_leads(
    cluster: Cluster,
) -> None:
    """The file may be there already, as made by mktemp; the job needs no name."""
    file = cluster.folder / "rendezvous"
    file.touch()
    cluster.options |= {
        "rdzv_backend": "c10d",
        "rdzv_endpoint": str(file),
        "rdzv_id": None,
        "rdzv_conf": BY_PATH,
        "local_addr": "127.0.0.1",
        "nnodes": "2",
    }
    a, b = cluster.agents("a", "b", hosts=None)
    workers = cluster.wait_workers(2, round=0)
    assert {worker.env["TORCHELASTIC_RUN_ID"] for worker in workers} == {"none"}
    leader = next(x for x in (a, b) if any(event.name == "leads" for event in x.events))
    leader.kill()
    c = cluster.agent("c")
    cluster.wait_workers(2, round=1)
    cluster.end_well(b if leader is a else a, c)
    assert file.read_bytes() == b""
    assert "rendezvous.rallypoint" in os.listdir(cluster.folder)


def test_A1_without_a_path_a_node_is_alone_as_with_torchruns_temporary_file(
    cluster: Cluster,
) -> None:
    conf = {"rdzv_backend": "c10d", "rdzv_conf": "store_type=file"}
    cluster.options |= {"rdzv_endpoint": None, "rdzv_id": None, "nnodes": "1", **conf}
    cluster.end_well(*cluster.running("a", hosts=None))
