"""The fault of a test, which a script has at one of its steps."""

import os
import signal


def at(step: int) -> None:
    """In the first round, at the step of the variable FAULT_AT, a worker that is not rank 0 is
    killed, or with FAULT=wait it waits for whatever is done to it."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0" or os.environ["RANK"] == "0":
        return
    if str(step) == os.environ.get("FAULT_AT"):
        if os.environ.get("FAULT") == "wait":
            print("waits at", step, flush=True)
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
