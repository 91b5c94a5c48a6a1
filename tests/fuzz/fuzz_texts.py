"""Coverage-guided fuzzing of what others have written, for as long as one likes: `make fuzz`.

Records of registers, answers of etcd and of the API server, histories, summaries, lists of hosts,
and what is generated of words. An input for which a reader raises anything but its documented error
is written into the folder and stops the run; naming that file as an argument plays it again.
Without atheris: `python -m tests.fuzz.fuzz_texts --runs 100000` reads random inputs.
"""

from __future__ import annotations

import sys
import time
from random import Random

from tests.fuzz.fuzzing import run


def at_random(runs: int) -> None:
    """So many inputs, always the same; prints how fast that was."""
    from tests.fuzz.hostile_texts import check_words, read_bytes

    began = time.process_time()
    for number in range(runs):
        data = Random(number).randbytes(120)
        try:
            read_bytes(data)
        except BaseException:
            print(f"run {number}: {data.hex()}", file=sys.stderr)
            raise
    check_words()
    took_s = time.process_time() - began
    print(f"{runs} runs, {runs / took_s:.0f} per CPU second")


def main() -> None:
    """Runs until stopped, until FUZZ_SECONDS have passed, or until something is found."""
    if sys.argv[1:2] == ["--runs"]:
        at_random(int(sys.argv[2]))
        return
    import atheris

    with atheris.instrument_imports(include=["rallypoint"]):
        from tests.fuzz.hostile_texts import read_bytes
    seeds = (Random(number).randbytes(120) for number in range(64))
    run(read_bytes, "texts", seeds, 512, 60)


if __name__ == "__main__":
    main()
