"""PID namespaces: a command in one sees no job of other tests, or of the person who runs tests."""

from __future__ import annotations

import subprocess

from tests.harness.cluster import AgentProcess, wait_until
from tests.harness.proc import children_of

ALONE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Runs a command in a PID namespace of its own; only root may do so."""


def can_be_alone() -> bool:
    """Whether this user may make PID namespaces here."""
    return subprocess.run([*ALONE, "true"], capture_output=True).returncode == 0


def beside(agent: AgentProcess) -> tuple[str, ...]:
    """What to put before a command, for it to run in the namespace of an agent that is alone."""
    first = wait_until(lambda: children_of(agent.pid), "the namespace")[0]
    return ("nsenter", "--target", str(first), "--pid", "--mount", "--")
