"""Coverage-guided fuzzing of the c10d session, for as long as one likes: `make fuzz`.

    FUZZ_SECONDS=600 make fuzz

An input that breaks a promise is written into the folder and stops the run; naming that file as an
argument plays it again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["rallypoint"]):
    from tests.fuzz.store_conversation import VALIDATE, Choices, check_segmentation, check_stream

HEADER_BYTES = 200


def one_input(data: bytes) -> None:
    """The first bytes decide on cuts and on what others do; the rest is what a client sends."""
    choices, stream = data[:HEADER_BYTES], data[HEADER_BYTES:]
    if not stream:
        check_segmentation(choices)
        return
    check_stream(Choices(choices), VALIDATE + stream)
    check_stream(Choices(choices), stream)


def seeds(folder: Path) -> None:
    """Valid streams to begin with, so that the fuzzer need not find the protocol by itself."""
    for number in range(64):
        choices = Choices(bytes(number * n % 256 for n in range(HEADER_BYTES)))
        requests = [request for _, request in choices.conversation((1,)) if request]
        stream = b"".join(requests).removeprefix(VALIDATE)
        (folder / f"seed-{number}").write_bytes(bytes(HEADER_BYTES) + stream[:4096])


def main() -> None:
    """Runs until stopped, until FUZZ_SECONDS have passed, or until something is found."""
    folder = Path(".fuzz")
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    seeds(corpus)
    limits = [f"-max_total_time={os.environ.get('FUZZ_SECONDS', '0')}", "-rss_limit_mb=2048"]
    found = [f"-artifact_prefix={folder}/", "-max_len=8192", "-timeout=30"]
    replayed = [name for name in sys.argv[1:] if not name.startswith("-")]
    atheris.Setup([*sys.argv, *limits, *found, *([] if replayed else [str(corpus)])], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
