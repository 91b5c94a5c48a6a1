"""Commands that a person runs about the job of a cluster, and how what they print is read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.harness.cluster import Cluster
from tests.harness.limits import patience
from tests.harness.prepared import processes

RALLYPOINT = (sys.executable, "-m", "rallypoint")
LIMIT_S = 60.0
LOOKS = (
    "rallypoint: job job: the coordinator went away: looking for a coordinator, for 60 s at most\n"
)
WISHES = {
    "checkpoint": r"the workers of 1 node have saved a checkpoint$",
    "restart": r"round 1 has begun: 1 node, 1 worker$",
    "cancel": r"the job was cancelled: a person cancelled it \(rallypoint cancel\)$",
    "drain": r"node node-0 was asked to leave$",
}
"""What the first line of each command's answer is."""


def rallypoint(cluster: Cluster, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
    """The end of any command, in the environment of a cluster."""
    line = [*RALLYPOINT, *map(str, words)]
    environ = cluster.environ() | env
    return processes.run(line, env=environ, capture_output=True, timeout=patience(LIMIT_S))


def line_of(
    cluster: Cluster, name: str, *words: str, job: str = "job", endpoint: str = ""
) -> list[str]:
    """The words of a command about a job, which is that of the cluster where nothing is said."""
    where = ["--rdzv-endpoint", endpoint or str(cluster.options["rdzv_endpoint"])]
    if (backend := cluster.options.get("rdzv_backend")) is not None:
        where += ["--rdzv-backend", str(backend)]
    return [*RALLYPOINT, name, *words, *where, "--job", job]


def ask(
    cluster: Cluster, name: str, *words: str, job: str = "job", endpoint: str = ""
) -> subprocess.CompletedProcess[str]:
    """The end of a command about a job."""
    line = line_of(cluster, name, *words, job=job, endpoint=endpoint)
    return rallypoint(cluster, *line[len(RALLYPOINT) :])


def start(
    cluster: Cluster, name: str, *words: str, stdout: Any, stderr: Any = subprocess.PIPE
) -> subprocess.Popen[Any]:
    """A command about the job of a cluster that goes on."""
    how = {"stdout": stdout, "stderr": stderr, "text": True}
    return processes.start(line_of(cluster, name, *words), env=cluster.environ(), **how)


def drain(cluster: Cluster, *words: str, job: str = "job") -> subprocess.CompletedProcess[str]:
    """The end of `rallypoint drain`."""
    return ask(cluster, "drain", *words, job=job)


def first_line(cluster: Cluster, line: list[str]) -> subprocess.CompletedProcess[str]:
    """The end of a command whose reader leaves after one line."""
    piped = ["bash", "-c", f"set -o pipefail; {' '.join(line)} | head -n 1"]
    return processes.run(piped, env=cluster.environ(), capture_output=True, timeout=LIMIT_S)


def wrong_token(folder: Path) -> str:
    """A file with a token that opens no job."""
    file = folder / "token"
    file.touch(0o600)
    file.write_text("ab" * 32)
    return str(file)


def is_refused(done: subprocess.CompletedProcess[str], code: int, said: str) -> None:
    """Assert that a command has ended with this code and one line that says so."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def is_one_line_with(text: str, *words: str) -> bool:
    """Whether stderr is one line of this command, with these words in it."""
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert re.match("rallypoint( run)?: ", lines[0]), text
    assert "Traceback" not in text
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"
    return True
