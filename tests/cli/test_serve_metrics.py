"""`rallypoint serve --metrics-port`: what Prometheus gets from a coordinator."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.harness.cluster import Cluster, free_port, wait_until
from tests.harness.commands import rallypoint
from tests.harness.metrics_client import ask
from tests.harness.prometheus_parser import Samples, parse


def scrape(port: int) -> Samples:
    status, kind, text = ask(port)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return parse(text)


def one(samples: Samples, name: str, **labels: str) -> float:
    return samples.get(("rallypoint_coordinator_" + name, tuple(labels.items())), 0.0)


def test_a_coordinator_tells_its_jobs_and_itself(tmp_path: Path) -> None:
    port = free_port()
    with Cluster(tmp_path, nnodes="2", max_restarts=1) as cluster:
        kept = ("--data-dir", str(tmp_path / "jobs"))
        server = cluster.serve("--metrics-port", str(port), *kept)
        server.wait_event("metrics", f"metrics are served at http://127.0.0.1:{port}/metrics")
        before = scrape(port)
        assert one(before, "jobs", state="running") == one(before, "leads") == 0
        agents = cluster.running("a", "b", hosts=None)
        during = scrape(port)
        assert one(during, "jobs", state="running") == 1
        assert one(during, "leads") == one(during, "claims_total") == 1
        assert one(during, "job_nodes", job="job") == one(during, "sessions") == 2
        assert one(during, "events_total", event="round_formed") == 1
        assert one(during, "connections") >= 2
        assert one(during, "received_bytes_total") > 500
        assert one(during, "sent_bytes_total") > 500
        assert one(during, "register_seconds_count", call="write") > 2
        assert one(during, "register_failures_total", call="write") == 0
        assert during["process_resident_memory_bytes", ()] > 1e6
        assert during["process_cpu_seconds_total", ()] > 0
        assert 3 < during["process_open_fds", ()] < during["process_max_fds", ()]
        cluster.order("sys.exit(3)", round=0, node="a")
        cluster.wait_workers(2, round=1)
        again = scrape(port)
        assert one(again, "job_round", job="job") == 1
        assert one(again, "job_faults_total", job="job") == 1
        stop_s = one(again, "job_seconds", job="job", spent="stopping", cause="failure")
        assert 0 < stop_s < one(again, "uptime_seconds")
        assert one(again, "events_total", event="round_formed") == 2
        assert one(again, "register_seconds_count", call="write") > one(
            during, "register_seconds_count", call="write"
        )
        cluster.end_well(*agents)

        def is_over() -> bool:
            return one(scrape(port), "jobs", state="ended") == 1

        wait_until(is_over, "the job to have ended")
        assert one(scrape(port), "sessions") == 0


def test_a_coordinator_answers_health_checks_and_counts_strangers(tmp_path: Path) -> None:
    port = free_port()
    with Cluster(tmp_path) as cluster:
        cluster.serve("--metrics-port", str(port)).wait_event("metrics")
        assert ask(port, path="/healthz") == (200, "text/plain; charset=utf-8", "alive\n")
        status, _, text = ask(port, path="/")
        assert (status, text) == (404, "there is only /metrics and /healthz\n")
        before = scrape(port)
        assert ("rallypoint_coordinator_leads", ()) not in before  # Jobs are not kept.
        with socket.create_connection(("127.0.0.1", cluster.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert stranger.recv(1) == b""
        after = scrape(port)
        assert one(after, "connections_refused_total", why="foreign") == 1
        assert one(after, "connections_total") > one(before, "connections_total")


def test_a_port_of_metrics_that_is_in_use_is_one_line_before_anything_is_served(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path) as cluster, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["serve", "--host", "127.0.0.1", "--port", "0", "--metrics-port", str(port)]
        ended = rallypoint(cluster, *words)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr == (
            f"rallypoint serve: --metrics-port 127.0.0.1:{port}: address already in use: "
            "choose another\n"
        )
