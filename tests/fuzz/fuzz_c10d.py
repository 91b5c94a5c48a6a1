"""Coverage-guided fuzzing of the c10d session, for as long as one likes: `make fuzz`.

    FUZZ_SECONDS=600 make fuzz

An input that breaks a promise is written into the folder and stops the run; naming that file as an
argument plays it again.
"""

from __future__ import annotations

from collections.abc import Iterator

import atheris
from tests.fuzz.fuzzing import run

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


def seeds() -> Iterator[bytes]:
    """Valid streams to begin with, so that the fuzzer need not find the protocol by itself."""
    for number in range(64):
        choices = Choices(bytes(number * n % 256 for n in range(HEADER_BYTES)))
        requests = [request for _, request in choices.conversation((1,)) if request]
        stream = b"".join(requests).removeprefix(VALIDATE)
        yield bytes(HEADER_BYTES) + stream[:4096]


if __name__ == "__main__":
    run(one_input, "corpus", seeds(), 8192, 30)
