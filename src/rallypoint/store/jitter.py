"""Random parts of a pause, so that clients do not move in step.

Not from the sequence of `random`, which belongs to the program: a training run that has seeded it
must draw the same numbers with this library and without, and forked processes must differ.
"""

from __future__ import annotations

from random import SystemRandom

uniform = SystemRandom().uniform
"""A number between the two that are given."""
