"""The layout of shared memory, as numbers of words; `shm.py` has the meaning. Pure.

Imports nothing: workers pay for it at their start.
"""

from __future__ import annotations

MAGIC = int.from_bytes(b"RPSHM\0\0\0", "little")
VERSION = 2
WORD_BYTES = 8
HEADER_WORDS = 8
SLOT_WORDS = 24
"""The words of a slot: the first 16 are the worker's, the others the relay's; spare ones are 0."""

# Words of the header; the first three are magic, version and workers.
CURRENT = 3
"""The word that is 1 while the round continues."""
REQUEST = 4
DEADLINE = 5
"""The deadline of the request, in ns on CLOCK_MONOTONIC; 0: none."""
HELD_UNTIL = 6
"""The end of the agent's lease, in ns on CLOCK_BOOTTIME; 0: not known, or there is none."""
AGENT = 7
"""The agent's pid; 0: it is of a version that ends no worker that holds SIGTERM back."""

# Words of a slot.
OWNER = 0
"""The pid that reports for this worker; 0: none yet."""
LISTENS = 1
"""The word that is 1 once the worker has looked for requests; TAKES_WISHES once it has looked for
those of people."""
TAKES_WISHES = 3
STEP = 2
PROGRESS_AT = 3
"""The time of its last step, in ns on CLOCK_MONOTONIC; 0: it has reported none."""
ANSWERED = 4
"""The number of the request that its last checkpoint answers; 0: none."""
CHECKPOINT = 5
"""The step of its last checkpoint plus 1; 0: none, or a step that it did not tell."""
STACKS = 6
"""The signal that makes its owner write its stacks; 0: there is none."""
HOLDS = 7
"""The word that is 1 while its owner ignores SIGTERM only because of Rallypoint, so that a SIGKILL
has the effect of SIGTERM."""

TOTAL = 8
"""The total number of steps; 0: not reported."""
LOSS = 9
"""The loss, a double, written as its bits; 0: not reported. So a loss of 0 is written as -0.0."""
TOKENS = 10
"""The number of tokens by its own count; 0: not reported."""
PHASE_AT = 11
"""When its phase last began or ended, in ns on CLOCK_MONOTONIC; 0: it has named none. An older
agent ignores it."""
PHASE, PHASE_WORDS = 12, 3
"""The name of its phase, in UTF-8, filled up with zeros; 0: it is in none."""
PHASE_BYTES = WORD_BYTES * PHASE_WORDS

# What the relay has read in the worker's output (`--progress-pattern`).
OUTPUT_STEP = 16
OUTPUT_AT = 17
"""When the step in its output last changed, in ns on CLOCK_MONOTONIC; 0: nothing was read."""
OUTPUT_TOTAL = 18
OUTPUT_LOSS = 19
OUTPUT_TOKENS = 20
OUTPUT_CHANGES = 21
"""The number of changes of the step; 1: only the first line was read."""

KIND_BITS = 8
KIND_MASK = (1 << KIND_BITS) - 1
MAX_WORD = (1 << 63) - 1

NONE, DRAIN, GROWTH, SAVE = 0, 1, 2, 3
"""The kinds of requests; see `shm.ShmRequest`."""
NS_PER_S = 1_000_000_000


def shm_bytes(workers: int) -> int:
    """Return the size of shared memory."""
    return WORD_BYTES * (HEADER_WORDS + SLOT_WORDS * workers)


def first_word(local_rank: int) -> int:
    """Return the position of this worker's slot."""
    return HEADER_WORDS + SLOT_WORDS * local_rank


def ask_stacks_path(stacks: str) -> str:
    """Return the named pipe at which a process waits for requests to write stacks to this file."""
    return f"{stacks}.ask"
