"""F8: a token that a person gave to the command line is shown to no worker, nor to any other
process of the same user."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.harness.cluster import AgentProcess, Cluster, wait_until
from tests.harness.unprivileged import become_somebody

pytestmark = pytest.mark.executed

SECRET = "0123456789abcdef" * 4
WAYS: dict[str, dict[str, Any]] = {
    "exec": {},
    "preload": {"preload": "json"},
    "fork": {"run_path": True, "start_method": "fork"},
}
HELPERS = 2 * 3 + 1
"""The agents, their guards and relays, and the round store."""
LOOK = """
import sys
for pid in sys.argv[1:]:
    for name in ("environ", "mem"):
        try:
            open(f"/proc/{pid}/{name}", "rb").close()
        except PermissionError:
            print(pid, name, "is hidden")
        else:
            print(pid, name, "is open")
"""
DUMPABLE = """
import ctypes, resource
dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
tell(dumpable=dumpable, core=resource.getrlimit(resource.RLIMIT_CORE))
"""


@pytest.mark.parametrize("way", WAYS)
def test_F8_no_process_of_a_job_shows_the_token_in_its_environment(
    cluster: Cluster, way: str
) -> None:
    cluster.agents("a", "b", env={"RALLYPOINT_TOKEN": SECRET}, **WAYS[way])
    cluster.wait_workers(2)
    found = cluster.processes()
    assert len(found) == HELPERS + (4 if way == "preload" else 2), found
    for pid, command in found.items():
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        assert SECRET.encode() not in environ, command
        assert b"RALLYPOINT_TOKEN" not in environ, command
        assert SECRET not in command


@pytest.mark.parametrize("way", WAYS)
def test_F8_a_worker_can_look_into_other_workers_but_into_no_process_that_knows_a_token(
    cluster: Cluster, way: str
) -> None:
    """Reading /proc/PID/mem is asked for the same permission as gdb and py-spy are."""
    become, env = become_somebody(), {"RALLYPOINT_TOKEN": SECRET}
    cluster.agents("a", "b", env=env, prefix=become, **WAYS[way])
    workers = {worker.pid for worker in cluster.wait_workers(2)}
    pids = list(map(str, cluster.processes() if os.geteuid() == 0 else workers))
    looker = [*become, sys.executable, "-c", LOOK, *pids]
    lines = subprocess.run(looker, capture_output=True, text=True, check=True).stdout.splitlines()
    for pid in workers:
        assert {f"{pid} environ is open", f"{pid} mem is open"} <= set(lines)
    hidden = {line.split()[0] for line in lines if line.endswith("mem is hidden")}
    assert hidden == {line.split()[0] for line in lines if line.endswith("environ is hidden")}
    assert len(hidden) == (HELPERS if os.geteuid() == 0 else 0)


@pytest.mark.parametrize("way", WAYS)
def test_F8_an_agent_leaves_no_core_dump_and_its_workers_may(
    cluster: Cluster, tmp_path: Path, way: str
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard == 0:
        pytest.skip("this user may leave no core dumps")
    prefix = ("env", f"--chdir={tmp_path}", "prlimit", f"--core={hard}")
    a = cluster.agent("a", prefix=prefix, env={"RALLYPOINT_TOKEN": SECRET}, **WAYS[way])
    cluster.wait_workers(1)
    cluster.order(DUMPABLE)
    said = wait_until(lambda: [s for s in a.stdout_lines if '"dumpable"' in s], "the worker's word")
    assert '"dumpable": 1' in said[0]
    assert f'"core": [{hard}, {hard}]' in said[0]
    a.signal(signal.SIGABRT)
    ended = os.waitid(os.P_PID, a.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    assert (ended.si_code, ended.si_status) == (os.CLD_KILLED, signal.SIGABRT)


def test_F8_a_token_comes_by_a_descriptor_that_no_worker_has(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    from_file = ("sh", "-c", f'exec "$@" 3<{tmp_path}/secret', "sh")
    from_stdin = ("sh", "-c", f'exec "$@" <{tmp_path}/secret', "sh")
    cluster.options["rdzv_conf"] = "last_call_timeout=600"
    a = cluster.agent("a", hosts=True, prefix=from_file, token_fd=3)
    a.wait_event("waiting", "1 joined")
    b = cluster.agent("b", hosts=False, prefix=from_stdin, token_fd=0, **WAYS["fork"])
    workers = cluster.wait_workers(2)
    for worker in workers:
        opened = [os.readlink(fd) for fd in Path(f"/proc/{worker.pid}/fd").iterdir()]
        assert not [path for path in opened if path.endswith("secret")]
    assert list(cluster.home.iterdir()) == []
    cluster.order("assert sys.stdin.read() == ''; sys.exit(0)")
    assert [a.wait_exit(), b.wait_exit()] == [0, 0]


def test_F8_serve_hides_the_token_that_it_needs_for_every_job(cluster: Cluster) -> None:
    become = become_somebody()
    argv = [*become, sys.executable, "-m", "rallypoint", "serve", "--host=127.0.0.1", "--port=0"]
    env = cluster.environ() | {"RALLYPOINT_TOKEN": SECRET}
    server = AgentProcess("serve", [*argv, "--log-format=json"], env, cluster.folder)
    cluster.all_agents.append(server)
    server.wait_event("serving", "(token RALLYPOINT_TOKEN)")
    if os.geteuid() == 0:
        assert SECRET.encode() not in Path(f"/proc/{server.pid}/environ").read_bytes()
    looker = [*become, sys.executable, "-c", LOOK, str(server.pid)]
    lines = subprocess.run(looker, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines == [f"{server.pid} environ is hidden", f"{server.pid} mem is hidden"]
