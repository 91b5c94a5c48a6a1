"""Coverage-guided fuzzing of message values, for as long as one likes: `make fuzz`.

One node with the job's token says anything; two honest nodes must neither stop nor print what they
must not. An input that breaks that is written into the folder and stops the run; naming that file
as an argument plays it again.
"""

from __future__ import annotations

from random import Random

import atheris
from tests.fuzz.fuzzing import run

with atheris.instrument_imports(include=["rallypoint"]):
    from tests.fuzz.hostile_values import converse

if __name__ == "__main__":
    run(converse, "values", (Random(number).randbytes(300) for number in range(64)), 1024, 60)
