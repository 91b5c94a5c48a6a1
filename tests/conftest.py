"""What holds for all tests.

The examples of property tests are the same at every run, so that a change is judged by itself; new
ones are looked for with `HYPOTHESIS_PROFILE=search pytest`, and `make fuzz`.

Signals that pytest was started to ignore (`nohup`, a background job of a shell) would be ignored by
every program that a test starts. With a handler they are ignored here only: an exec takes it away.
"""

from __future__ import annotations

import os
import signal

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False, print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def ignore(number: int, _frame: object) -> None:
    """What this process does instead."""


for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, ignore)
