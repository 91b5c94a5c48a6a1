"""The layout of shared memory, as numbers of words; `shm.py` has the meaning. Pure.

Imports nothing: workers pay for it at their start.
"""

from __future__ import annotations

MAGIC = int.from_bytes(b"RPSHM\0\0\0", "little")
VERSION = 2
WORD_BYTES = 8
HEADER_WORDS = 8
SLOT_WORDS = 24
"""The number of words in a worker's slot of the shared memory. The worker writes the first 16, the
relay the others; spare ones are 0."""

# Words of the header; the first three are magic, version and workers.
CURRENT = 3
"""The position in the shared memory of the word that is 1 while the round continues."""
REQUEST = 4
DEADLINE = 5
"""The position in the shared memory of the deadline of the request for a checkpoint, in ns on
CLOCK_MONOTONIC; 0 there: no request is open. That of a request without a time limit is years
away."""
HELD_UNTIL = 6
"""The position in the shared memory of the end of the agent's lease, in ns on CLOCK_BOOTTIME; 0
there: not known, or there is none."""
AGENT = 7
"""The position in the shared memory of the agent's pid. 0 there is of an older agent, under which
workers do not hold SIGTERM back, as it would not end them."""

# Words of a slot.
OWNER = 0
"""The position in a worker's slot of the pid of the process that reports for it; 0 there: none
yet."""
LISTENS = 1
"""The position in a worker's slot of the word that is 1 once it has looked for requests for a
checkpoint, and TAKES_WISHES once it has looked for those of people."""
TAKES_WISHES = 3
STEP = 2
PROGRESS_AT = 3
"""The position in a worker's slot of the time when it last reported a step, in ns on
CLOCK_MONOTONIC; 0 there: never."""
ANSWERED = 4
"""The position in a worker's slot of the number of the request that its last checkpoint answers; 0
there: none."""
CHECKPOINT = 5
"""The position in a worker's slot of the step of its last checkpoint plus 1; 0 there: none, or the
worker did not say which step."""
STACKS = 6
"""The position in a worker's slot of the signal that makes its process write the stacks of its
threads; 0 there: there is none."""
HOLDS = 7
"""The position in a worker's slot of the word that is 1 while it ignores SIGTERM only because of
Rallypoint, so that the agent may send SIGKILL in its place."""

TOTAL = 8
"""The position in a worker's slot of the total number of steps that it has reported; 0 there: not
reported."""
LOSS = 9
"""The position in a worker's slot of the loss that it has reported, a double, as its bits; 0 there:
not reported. So a loss of 0 is written as -0.0."""
TOKENS = 10
"""The position in a worker's slot of the number of tokens so far by its own count; 0 there: not
reported."""
PHASE_AT = 11
"""The position in a worker's slot of the time when its phase last began or ended, in ns on
CLOCK_MONOTONIC; 0 there: it has named none. An older agent ignores this word."""
PHASE, PHASE_WORDS = 12, 3
"""The position in a worker's slot, and the number, of the words with the name of its phase, in
UTF-8, filled up with zeros; all 0: it is in none."""
PHASE_BYTES = WORD_BYTES * PHASE_WORDS

# What the relay has read in the worker's output (`--progress-pattern`).
OUTPUT_STEP = 16
OUTPUT_AT = 17
"""The position in a worker's slot of the time when the step in its output last changed, in ns on
CLOCK_MONOTONIC; 0 there: none was read."""
OUTPUT_TOTAL = 18
OUTPUT_LOSS = 19
OUTPUT_TOKENS = 20
OUTPUT_CHANGES = 21
"""The position in a worker's slot of the number of changes of the step in its output, with the
first one read; 0 there: none was read."""

KIND_BITS = 8
KIND_MASK = (1 << KIND_BITS) - 1
MAX_WORD = (1 << 63) - 1

NONE, DRAIN, GROWTH, SAVE = 0, 1, 2, 3
"""The numbers of the kinds of requests for a checkpoint, and of none; see `shm.ShmRequest`."""
NS_PER_S = 1_000_000_000


def shm_bytes(workers: int) -> int:
    """Return the size in bytes of the shared memory of a node with this many workers."""
    return WORD_BYTES * (HEADER_WORDS + SLOT_WORDS * workers)


def first_word(local_rank: int) -> int:
    """Return the position of this worker's slot in the shared memory, in words."""
    return HEADER_WORDS + SLOT_WORDS * local_rank


def ask_stacks_path(stacks: str) -> str:
    """Return the named pipe at which a process waits for requests to write stacks to this file."""
    return f"{stacks}.ask"
