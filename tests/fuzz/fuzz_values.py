"""Coverage-guided fuzzing of message values, for as long as one likes: `make fuzz`.

One node with the job's token says anything; two honest nodes must neither stop nor print what they
must not. An input that breaks that is written into the folder and stops the run; naming that file
as an argument plays it again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["rallypoint"]):
    from tests.fuzz.hostile_values import converse

SEEDS = 64


def main() -> None:
    """Runs until stopped, until FUZZ_SECONDS have passed, or until something is found."""
    folder = Path(".fuzz")
    corpus = folder / "values"
    corpus.mkdir(parents=True, exist_ok=True)
    for number in range(SEEDS):
        (corpus / f"seed-{number}").write_bytes(Random(number).randbytes(300))
    limits = [f"-max_total_time={os.environ.get('FUZZ_SECONDS', '0')}", "-rss_limit_mb=2048"]
    found = [f"-artifact_prefix={folder}/", "-max_len=1024", "-timeout=60"]
    replayed = [name for name in sys.argv[1:] if not name.startswith("-")]
    atheris.Setup([*sys.argv, *limits, *found, *([] if replayed else [str(corpus)])], converse)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
