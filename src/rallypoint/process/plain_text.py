"""Foreign text without what colours it, moves a cursor or rings a bell. Pure."""

from __future__ import annotations

import re

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]")


def plain_text(text: str) -> str:
    """`text` without colours, control characters and marks of byte order; a carriage return (of
    progress bars) ends a line."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub("", text)


def clip_end(text: str, limit: int) -> str:
    """So many bytes of UTF-8 at most, from the beginning."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return encoded.decode("utf-8")
    return encoded[: limit - 3].decode("utf-8", "ignore") + "..."


def clip_start(text: str, limit: int) -> str:
    """So many bytes of UTF-8 at most, of the end."""
    return text.encode("utf-8", "replace")[-limit:].decode("utf-8", "ignore")
