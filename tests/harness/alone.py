"""PID namespaces: a command in one sees no job of other tests, or of the person who runs tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.cluster import wait_until
from tests.harness.proc import children_of, name_of

ALONE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Runs a command in a PID namespace of its own; only root may do so."""


def can_be_alone() -> bool:
    """Whether this user may make PID namespaces here."""
    return subprocess.run([*ALONE, "true"], capture_output=True).returncode == 0


@contextmanager
def namespace() -> Iterator[tuple[str, ...]]:
    """A PID namespace that stays when what runs in it has ended: what to put before a command, for
    it to run there."""
    with subprocess.Popen([*ALONE, "sleep", "infinity"]) as keeper:
        try:
            first = wait_until(
                lambda: [pid for pid in children_of(keeper.pid) if name_of(pid) == "sleep"],
                "the namespace",
            )[0]
            yield "nsenter", "--target", str(first), "--pid", "--mount", "--"
        finally:
            keeper.kill()
