"""The layout of shared memory, as numbers of words; `shm.py` has the meaning. Pure.

Imports nothing: workers pay for it at their start.
"""

from __future__ import annotations

MAGIC = int.from_bytes(b"RPSHM\0\0\0", "little")
VERSION = 2
WORD_BYTES = 8
HEADER_WORDS = 8
SLOT_WORDS = 24
"""The number of words in a slot. The worker writes the first 16, the relay the others; spare ones
are 0."""

# Words of the header; the first three are magic, version and workers.
CURRENT = 3
"""The position of the word that is 1 while the round continues."""
REQUEST = 4
DEADLINE = 5
"""The position of the word with the deadline of the request for a checkpoint, in ns on
CLOCK_MONOTONIC; 0: none."""
HELD_UNTIL = 6
"""The position of the word with the end of the agent's lease, in ns on CLOCK_BOOTTIME; 0: not
known, or there is none."""
AGENT = 7
"""The position of the word with the agent's pid. 0 is of an older agent, under which workers do not
hold SIGTERM back, as it would not end them."""

# Words of a slot.
OWNER = 0
"""The position of the word with the pid of the process that reports for this worker; 0: none
yet."""
LISTENS = 1
"""The position of the word that is 1 once the worker has looked for requests for a checkpoint, and
TAKES_WISHES once it has looked for those of people."""
TAKES_WISHES = 3
STEP = 2
PROGRESS_AT = 3
"""The position of the word that says when the worker last reported a step, in ns on
CLOCK_MONOTONIC; 0: never."""
ANSWERED = 4
"""The position of the word with the number of the request that the worker's last checkpoint
answers; 0: none."""
CHECKPOINT = 5
"""The position of the word with the step of the worker's last checkpoint plus 1; 0: none, or the
worker did not say which step."""
STACKS = 6
"""The position of the word with the signal that makes the reporting process write the stacks of its
threads; 0: there is none."""
HOLDS = 7
"""The position of the word that is 1 while the worker ignores SIGTERM only because of Rallypoint,
so that the agent may send SIGKILL in its place."""

TOTAL = 8
"""The position of the word with the total number of steps that the worker has reported; 0: not
reported."""
LOSS = 9
"""The position of the word with the loss that the worker has reported, a double, as its bits; 0:
not reported. So a loss of 0 is written as -0.0."""
TOKENS = 10
"""The position of the word with the number of tokens so far by the worker's own count; 0: not
reported."""
PHASE_AT = 11
"""The position of the word that says when the worker's phase last began or ended, in ns on
CLOCK_MONOTONIC; 0: it has named none. An older agent ignores this word."""
PHASE, PHASE_WORDS = 12, 3
"""The position, and the number, of the words with the name of the worker's phase, in UTF-8, filled
up with zeros; all 0: it is in none."""
PHASE_BYTES = WORD_BYTES * PHASE_WORDS

# What the relay has read in the worker's output (`--progress-pattern`).
OUTPUT_STEP = 16
OUTPUT_AT = 17
"""The position of the word that says when the step in the worker's output last changed, in ns on
CLOCK_MONOTONIC; 0: none was read."""
OUTPUT_TOTAL = 18
OUTPUT_LOSS = 19
OUTPUT_TOKENS = 20
OUTPUT_CHANGES = 21
"""The position of the word with the number of changes of the step in the worker's output, with the
first one read; 0: none was read."""

KIND_BITS = 8
KIND_MASK = (1 << KIND_BITS) - 1
MAX_WORD = (1 << 63) - 1

NONE, DRAIN, GROWTH, SAVE = 0, 1, 2, 3
"""The numbers of the kinds of requests for a checkpoint; see `shm.ShmRequest`."""
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
