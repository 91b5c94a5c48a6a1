"""Asks another interpreter one question, for example how many devices its torch sees."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping


def ask_interpreter(
    interpreter: str, program: str, environ: Mapping[str, str], *, timeout_s: float
) -> str | None:
    """What `interpreter -c program` prints on stdout; None if it fails or takes too long.

    Blocks for up to `timeout_s`; leaves no process behind; safe to retry. The answer is for us:
    the other's stderr is thrown away, and the token is not shown to it.
    """
    shown = {name: value for name, value in environ.items() if name != "RALLYPOINT_TOKEN"}
    try:
        done = subprocess.run(
            [interpreter, "-c", program],
            env=shown,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
