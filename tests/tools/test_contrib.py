"""What `contrib/` has for a service: the unit of systemd is valid, and its command works."""

from __future__ import annotations

import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster
from tests.harness.limits import patience
from tests.harness.programs import run_program

CONTRIB = Path(__file__).resolve().parents[2] / "contrib"
INSTALLED = "/opt/rallypoint/bin/rallypoint"


def unit() -> str:
    return (CONTRIB / "systemd/rallypoint.service").read_text()


def command_of_the_unit() -> list[str]:
    """As systemd makes it: `$$` is a dollar sign for the shell."""
    (line,) = (line for line in unit().splitlines() if line.startswith("ExecStart="))
    return shlex.split(line.removeprefix("ExecStart=").replace("$$", "$"))


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    copy = tmp_path / "rallypoint.service"
    copy.write_text(unit().replace(INSTALLED, sys.executable))
    found = run_program([analyze, "verify", str(copy)])
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


@pytest.mark.executed
def test_the_command_of_the_unit_says_when_it_is_ready_and_ends_as_the_unit_expects(
    tmp_path: Path,
) -> None:
    """With the credential and the environment that systemd would give it."""
    program = tmp_path / "rallypoint"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m rallypoint "$@"\n')
    program.chmod(0o755)
    with (
        Cluster(tmp_path, nnodes="1") as cluster,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(patience(30))
        credentials = tmp_path / "credentials"
        credentials.mkdir()
        (credentials / "token").write_text(cluster.make_token())
        environ = cluster.environ() | {
            "CREDENTIALS_DIRECTORY": str(credentials),
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "RALLYPOINT_SERVE": f"--host 127.0.0.1 --port {cluster.port} "
            f"--data-dir {tmp_path / 'jobs'}",
        }
        words = [word.replace(INSTALLED, str(program)) for word in command_of_the_unit()]
        serve = subprocess.Popen(words, env=environ, stderr=subprocess.PIPE, text=True)
        try:
            assert manager.recv(100) == b"READY=1"
            [agent] = cluster.running("a", hosts=None, round=None)
            cluster.end_well(agent)
            serve.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert f"SuccessExitStatus={serve.wait(patience(30))}\n" in unit()
        finally:
            serve.kill()
            _, said = serve.communicate()
        assert "serving on 127.0.0.1:" in said
