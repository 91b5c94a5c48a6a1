"""The fault of a test, which a script has at one of its steps."""

import os
import signal


def at(step: int) -> None:
    """SIGKILL to this worker, in the first round, if it is at the step of DIE_AT and not rank 0."""
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if first and os.environ["RANK"] != "0" and str(step) == os.environ.get("DIE_AT"):
        os.kill(os.getpid(), signal.SIGKILL)
