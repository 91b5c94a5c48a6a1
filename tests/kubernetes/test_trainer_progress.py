"""Progress reaches Kubeflow Trainer, and a job runs as well where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster, free_port, wait_until
from tests.kubernetes.trainer_server import PATH, TrainerServer

from rallypoint.agent.environ import ProgressReceiver
from rallypoint.agent.telemetry.trainer_requests import NotPostedError, post

LOST = "Kubeflow Trainer did not take the last progress in time"


@pytest.fixture
def server(certificates: Path) -> Iterator[TrainerServer]:
    with TrainerServer(certificates, "first") as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, certificates: Path, server: TrainerServer) -> Iterator[Cluster]:
    """Of which each agent has the variables that the controller injects."""
    (tmp_path / "token").write_text("first\n")
    with Cluster(tmp_path, nnodes="2") as made:
        made.env |= {
            "KUBEFLOW_TRAINER_SERVER_URL": server.url,
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(certificates / "ca.pem"),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(tmp_path / "token"),
        }
        yield made


@pytest.mark.parametrize(
    ("pattern", "order"),
    [
        (None, "from rallypoint import worker; worker.progress(7, total=10)"),
        (r"step (?P<step>\d+) of (?P<total>\d+)", "print('step 7 of 10', flush=True)"),
    ],
    ids=["reported", "printed"],
)
def test_the_node_of_rank_0_posts_the_steps_and_at_last_that_all_is_done(
    cluster: Cluster, server: TrainerServer, pattern: str | None, order: str
) -> None:
    agents = cluster.agents("a", "b", progress_pattern=pattern)
    cluster.wait_workers(2)
    cluster.order(order)
    wait_until(lambda: server.posted, "the first step to be posted")
    # The kubelet replaces the token about once an hour.
    (cluster.folder / "token").write_text("second\n")
    server.token = "second"
    cluster.end_well(*agents)
    first, last = server.posted
    assert (first.token, last.token) == ("first", "second")
    assert {(each.path, each.kind) for each in server.posted} == {(PATH, "application/json")}
    metrics = [
        {"name": name, "value": value}
        for name, value in (("step", "7"), ("nodes", "2"), ("workers", "2"), ("restarts", "0"))
    ]
    assert [each.status["trainerStatus"]["metrics"] for each in server.posted] == [metrics] * 2
    assert first.status["trainerStatus"]["progressPercentage"] == 70
    assert last.status["trainerStatus"]["progressPercentage"] == 100
    assert "progress" not in "".join(agent.said for agent in agents)


def test_a_controller_that_does_not_answer_delays_nothing(
    cluster: Cluster, server: TrainerServer
) -> None:
    server.answers.clear()
    agents = cluster.agents("a", "b")
    cluster.wait_workers(2)
    cluster.order("from rallypoint import worker; worker.progress(7)")
    wait_until(lambda: server.posted, "the first step to be posted")
    cluster.end_well(*agents)
    assert [agent.lines for agent in agents] == [[f"rallypoint: {LOST}"], []]
    assert len(server.posted) == 1


def test_a_controller_that_refuses_is_said_once_and_the_job_runs(
    cluster: Cluster, server: TrainerServer
) -> None:
    server.token = "another"
    agents = cluster.agents("a", "b")
    cluster.wait_workers(2)
    cluster.order("from rallypoint import worker; worker.progress(7)")
    said = "progress can't be posted to KUBEFLOW_TRAINER_SERVER_URL=https://127.0.0.1:"
    event = agents[0].wait_event("progress_not_posted", said)
    assert event.message.endswith('it answers 401 ({"kind": "Status", "message": "Unauthorized"})')
    cluster.end_well(*agents)
    assert sum(e.name == "progress_not_posted" for agent in agents for e in agent.events) == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"url": "https://127.0.0.1:{closed}/x"}, "Connection refused"),
        ({"url": "ftp://127.0.0.1/x"}, "is no URL like https://HOST:8082/PATH"),
        ({"url": "https://127.0.0.1:0x/y"}, "Port could not be cast to integer value as '0x'"),
        ({"token_file": "/nowhere"}, "/nowhere: No such file or directory"),
        ({"ca_cert": "/nowhere"}, "cacert=/nowhere: can't be used: No such file or directory"),
        ({"ca_cert": ""}, "its certificate is not trusted: "),
    ],
    ids=str,
)
def test_what_keeps_progress_from_being_posted_is_named(
    server: TrainerServer, certificates: Path, tmp_path: Path, given: dict[str, str], why: str
) -> None:
    (tmp_path / "token").write_text("first")
    closed = free_port()
    receiver = ProgressReceiver(
        **{
            "url": server.url,
            "ca_cert": str(certificates / "ca.pem"),
            "token_file": str(tmp_path / "token"),
            "origin": "KUBEFLOW_TRAINER_SERVER_URL=x",
        }
        | {name: text.format(closed=closed) for name, text in given.items()}
    )
    with pytest.raises(NotPostedError) as raised:
        post(receiver, b"{}")
    begins = "progress can't be posted to KUBEFLOW_TRAINER_SERVER_URL=x: "
    assert str(raised.value).startswith(begins + why)
    assert server.posted == []
