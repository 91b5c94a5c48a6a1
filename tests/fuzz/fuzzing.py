"""A fuzzer runs until stopped, until FUZZ_SECONDS have passed, or until something is found."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path


def run(
    one_input: Callable[[bytes], None], name: str, seeds: Iterable[bytes], most: int, limit_s: int
) -> None:
    """Have atheris look for an input of at most so many bytes for which `one_input` raises or
    takes longer than `limit_s`. Begins with the seeds, or plays again what the arguments name."""
    import atheris

    folder = Path(".fuzz")
    corpus = folder / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = [f"-max_total_time={os.environ.get('FUZZ_SECONDS', '0')}", "-rss_limit_mb=2048"]
    found = [f"-artifact_prefix={folder}/", f"-max_len={most}", f"-timeout={limit_s}"]
    replayed = [word for word in sys.argv[1:] if not word.startswith("-")]
    atheris.Setup([*sys.argv, *limits, *found, *([] if replayed else [str(corpus)])], one_input)
    atheris.Fuzz()
