"""How a worker finds its board. `place` reads the other variables, but is slow to import."""

from __future__ import annotations

import os


def board_path() -> str:
    """Where the board of this round is; empty outside of rallypoint."""
    return os.environ.get("RALLYPOINT_BOARD", "")


def local_rank() -> int:
    """This worker's slot; -1 when the environment does not say.

    LOCAL_RANK is no slot where each worker sees one device only (`--virtual-local-rank`).
    """
    text = os.environ.get("RALLYPOINT_LOCAL_RANK") or os.environ.get("LOCAL_RANK", "")
    return int(text) if text.isascii() and text.isdigit() else -1


def may_hold_sigterm() -> bool:
    """Whether nobody has forbidden it."""
    return os.environ.get("RALLYPOINT_HOLD_SIGTERM", "1") != "0"
