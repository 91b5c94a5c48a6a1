"""Commands that run as a user without privileges, whoever runs the tests."""

from __future__ import annotations

import os
import subprocess

import pytest


def become_somebody() -> tuple[str, ...]:
    """What to put before a command. Root becomes nobody in particular, who may read and write the
    files that root may; skips where that is not allowed. Nothing for any other user."""
    if os.geteuid() != 0:
        return ()
    user = 60_000 + os.getpid() % 5000
    become = (
        *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"),
        *("--inh-caps=+dac_override", "--ambient-caps=+dac_override"),
    )
    if subprocess.run([*become, "true"], capture_output=True).returncode:
        pytest.skip("root may not become another user here")
    return become
