"""`--metrics-port`: what Prometheus gets from an agent, and that nobody can hold the agent up."""

from __future__ import annotations

import socket
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.harness.cluster import is_listening
from tests.harness.metrics_client import ask, one, port_of, scrape
from tests.harness.one_agent import OneAgent, agent, ended, eventually, free_port
from tests.harness.plug_ins import offer_handlers
from tests.harness.prometheus_parser import Samples

from rallypoint.agent.telemetry.metrics_server import CONNECTIONS

PROGRAM = """
import os, sys, time
from rallypoint.worker import progress
progress(41, total=90, loss=2.5, tokens=700)
progress(42)
tell("round", os.environ["TORCHELASTIC_RESTART_COUNT"])
while not os.path.exists("go"):
    time.sleep(0.01)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3 if os.environ["RANK"] == "1" else time.sleep(600))
while not os.path.exists("end"):
    time.sleep(0.01)
"""
WAITS = "import os, time\ntell('up', 1)\nwhile not os.path.exists('end'): time.sleep(0.01)\n"


@contextmanager
def waiting(home: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[OneAgent]:
    """A job whose worker waits; it ends well when the block is over."""
    (home / "end").unlink(missing_ok=True)
    with agent(home, *options, program=WAITS, env=env) as running:
        yield running
        (home / "end").touch()
        assert running.wait() == 0


def phases(samples: Samples) -> dict[str, float]:
    return {
        labels[0][1]: count
        for (name, labels), count in samples.items()
        if name == "rallypoint_phase_seconds_count"
    }


def spent_s(samples: Samples) -> float:
    """What a job has spent its time on, together."""
    return sum(s for (name, _), s in samples.items() if name == "rallypoint_job_seconds")


def is_cut_off(client: socket.socket) -> bool:
    """Within 30 s, without an answer."""
    client.settimeout(30)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.executed
def test_it_shows_how_a_job_stands_and_what_has_happened(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "2", "--max-restarts", "3", "--metrics-port", "0")
    with agent(tmp_path, *options, "--rdzv-id", 'a"\\b', program=PROGRAM) as running:
        port = port_of(running)
        running.wait_told("round", 2)
        eventually(lambda: "first_progress" in phases(scrape(port)), "the first progress")
        first = scrape(port)
        assert one(first, "round") == 0
        assert one(first, "workers") == one(first, "local_workers") == 2
        assert one(first, "restarts_total", reason="failure") == 0
        assert one(first, "restarts_remaining") == 3
        for rank in "01":
            assert one(first, "worker_step", local_rank=rank) == 42
            assert one(first, "worker_steps_wanted", local_rank=rank) == 90
            assert one(first, "worker_loss", local_rank=rank) == 2.5
            assert one(first, "worker_tokens", local_rank=rank) == 700
            assert 0 <= one(first, "worker_progress_age_seconds", local_rank=rank) < 60
        info = next(labels for name, labels in first if name == "rallypoint_info")
        assert dict(info)["run_id"] == 'a"\\b'
        eventually(lambda: ("rallypoint_heartbeat_age_seconds", ()) in scrape(port), "a heartbeat")
        (tmp_path / "go").touch()
        running.wait_told("round", 4)
        eventually(lambda: one(scrape(port), "worker_step", local_rank="1") == 42, "round 1")
        eventually(lambda: phases(scrape(port))["first_output"] == 2, "its first output")
        later = scrape(port)
        assert one(later, "round") == 1
        assert one(later, "restarts_total", reason="failure") == 1
        assert one(later, "restarts_remaining") == 2
        assert one(later, "worker_failures_total") == 1
        assert one(later, "node_losses_total") == 0
        assert phases(later) | {"first_progress": 2} == {
            "rendezvous": 2,
            "spawn": 2,
            "detect": 1,
            "stop": 1,
            "first_output": 2,
            "first_progress": 2,
        }
        assert one(later, "uptime_seconds") > one(first, "uptime_seconds") > 0
        assert 0 <= one(later, "loop_lag_seconds") < 60
        assert one(later, "events_dropped_total") == 0
        eventually(lambda: one(scrape(port), "job_lost_steps") > 0, "a step in a heartbeat")
        before, spent, after = scrape(port), scrape(port), scrape(port)
        assert one(spent, "job_furthest_step") == 42
        assert one(spent, "job_faults_total") == 1
        assert one(spent, "job_lost_steps") in (1, 2)  # The first one may not have been seen.
        assert spent_s(before) <= spent_s(spent) <= spent_s(after) <= one(after, "uptime_seconds")
        assert one(spent, "job_seconds", spent="useful steps", cause="work") > 0
        assert one(spent, "job_seconds", spent="stopping", cause="failure") > 0
        (tmp_path / "end").touch()
        assert running.wait() == 0
        assert not is_listening(port)


def test_a_worker_that_has_ended_does_not_look_as_if_it_made_no_progress(tmp_path: Path) -> None:
    program = """
    import os, time
    from rallypoint.worker import progress
    progress(42)
    tell("up", 1)
    while not os.path.exists("go" if os.environ["RANK"] == "0" else "end"):
        time.sleep(0.01)
    """
    options = ("--nproc-per-node", "2", "--metrics-port", "0")
    with agent(tmp_path, *options, program=textwrap.dedent(program)) as running:
        port = port_of(running)
        running.wait_told("up", 2)
        for name in ("worker_step", "worker_progress_age_seconds"):
            assert one(scrape(port), name, local_rank="0") >= 0
        (tmp_path / "go").touch()
        eventually(lambda: one(scrape(port), "local_workers") == 1, "the end of one worker")
        samples = scrape(port)
        told = [labels for name, labels in samples if name.startswith("rallypoint_worker_")]
        assert sorted(told) == [(), (("local_rank", "1"),), (("local_rank", "1"),)]
        (tmp_path / "end").touch()
        assert running.wait() == 0


def test_other_requests_are_refused(tmp_path: Path) -> None:
    with waiting(tmp_path, "--metrics-port", "0") as running:
        port = port_of(running)
        head = ask(port, "HEAD")
        assert head[0] == 200
        assert head[2] == ""
        assert ask(port, "GET", "/metrics?x=1")[0] == 200
        assert ask(port, "GET", "/")[::2] == (404, "there is only /metrics\n")
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(port, method)[0] == 405
        for request, status in (
            (b"GET\r\n\r\n", b"400"),
            (b"\x16\x03\x01\x02\x00\n\n", b"400"),
            (b"GET /metrics HTTP/2\r\n\r\n", b"400"),
            (b"GET /" + b"x" * 9000, b"431"),
        ):
            with socket.create_connection(("127.0.0.1", port), 30) as client:
                client.sendall(request)
                assert client.recv(100).startswith(b"HTTP/1.1 " + status)


def test_a_page_in_a_browser_can_not_read_what_is_served_on_loopback(tmp_path: Path) -> None:
    """Its own name may point to 127.0.0.1, but its requests still bear that name."""
    with waiting(tmp_path, "--metrics-port", "0") as running:
        port = port_of(running)
        for host in ("localhost", "LocalHost:80", "127.0.0.1", "127.9.8.7:1", "[::1]:9400"):
            assert ask(port, Host=host)[0] == 200
        for host in ("evil.example", f"127.0.0.1.evil.example:{port}", "[::2]", "10.0.0.1", "a:b"):
            status, _, text = ask(port, Host=host)
            assert status == 421
            assert text == (
                f"this port serves localhost and 127.0.0.1, not {host}: "
                "--metrics-port HOST:PORT with another address serves other names\n"
            )


def test_clients_that_dawdle_are_cut_off_and_delay_nothing(tmp_path: Path) -> None:
    """More of them than there are places, with a lease shorter than they would like to stay."""
    options = ("--lease", "2", "--metrics-port", "0")
    with waiting(tmp_path, *options) as running:
        port = port_of(running)
        running.wait_told("up")
        idle = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(2 * CONNECTIONS)]
        for client in idle:
            client.sendall(b"GET /metrics HT")
        assert ask(port)[0] == 200
        for client in idle:
            assert is_cut_off(client)
            client.close()
        assert ask(port)[0] == 200
        assert not [line for line in running.said if "lease" in line or "connection" in line]


def test_only_this_machine_is_served_unless_told_otherwise(tmp_path: Path) -> None:
    port = free_port()
    with waiting(tmp_path, "--metrics-port", str(port)) as running:
        assert port_of(running) == port
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), 30)
    with waiting(tmp_path, "--metrics-port", f"0.0.0.0:{port}") as running:
        running.wait_said(f"http://0.0.0.0:{port}/metrics")
        assert ask(port, Host="node-7.cluster:9400")[0] == 200
        socket.create_connection(("127.0.0.2", port), 30).close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{taken}", "--metrics-port 127.0.0.1:{taken}: address already in use: choose another"),
        ("192.0.2.1:9400", "--metrics-port 192.0.2.1:9400: cannot assign requested address"),
        ("x", "--metrics-port x: needs PORT or HOST:PORT, for example 9400 or 0.0.0.0:9400"),
        ("70000", "--metrics-port 70000: needs PORT or HOST:PORT"),
        (":9400", "--metrics-port :9400: needs PORT or HOST:PORT"),
        ("::1:9400", "--metrics-port ::1:9400: an IPv6 address with a port needs brackets"),
        ("a b:1", "--metrics-port a b:1: needs a host name or an address"),
    ],
)
def test_a_port_that_can_not_be_had_is_one_line_before_anything_starts(
    tmp_path: Path, given: str, said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        options = ("--metrics-port", given.format(taken=number))
        running = ended(agent(tmp_path, *options, program="tell('started')"), 2)
    assert running.out == ""
    (line,) = running.err.splitlines()
    assert said.format(taken=number) in line


def test_the_age_of_the_heartbeat_is_shown_of_nodes_that_meet_by_a_handler(tmp_path: Path) -> None:
    meeting = ("--rdzv-backend", "peers", "--rdzv-endpoint", str(tmp_path / "meeting"))
    options = ("--nnodes", "1:2", *meeting, "--rdzv-conf", "last_call_timeout=1")
    env = offer_handlers(tmp_path)
    with waiting(tmp_path, *options, "--metrics-port", "0", env=env) as running:
        port = port_of(running)
        running.wait_told("up")
        found = scrape(port)
        assert one(found, "nodes") == 1
        assert one(found, "heartbeat_age_seconds") >= 0


def test_health_checks_are_answered_at_the_sessions_address_until_the_agent_ends(
    tmp_path: Path,
) -> None:
    port = free_port()
    env = {"TORCHELASTIC_HEALTH_CHECK_PORT": str(port)}
    with waiting(tmp_path, env=env) as running:
        running.wait_told("up")
        assert f"health checks are answered at http://127.0.0.1:{port}/health" in running.err
        alive = (200, "text/plain; charset=utf-8", "alive\n")
        assert ask(port, path="/health") == ask(port, path="/health?verbose=1") == alive
        assert ask(port, path="/metrics")[0] == 404
        assert ask(port, "POST", path="/health")[0] == 405
        assert ask(port, path="/health", Host="evil.example")[0] == 421
    assert not is_listening(port)


def test_a_port_for_health_checks_that_is_taken_is_said_and_the_job_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"TORCHELASTIC_HEALTH_CHECK_PORT": str(port)}
        running = ended(agent(tmp_path, program="tell('up', 1)\n", env=env), 0)
        assert f"health checks get no answer: 127.0.0.1:{port}: address already" in running.err
