"""Remove colours and control characters from foreign text. Pure."""

from __future__ import annotations

import re

_ESCAPES = r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?"
_CONTROLS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]"


def plain_text(text: str) -> str:
    """Return `text` without colours, control characters and byte order marks.

    Tabs and line ends stay. A carriage return, as progress bars use it, ends a line.
    """
    if text.isprintable():
        return text  # Most messages are: the patterns need not be compiled for them.
    text = re.sub(_ESCAPES, "", text).replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(_CONTROLS, "", text)


def clip_end(text: str, limit: int) -> str:
    """Return `text`, cut at its end to `limit` bytes of UTF-8; `...` stands for the rest."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return encoded.decode("utf-8")
    return encoded[: limit - 3].decode("utf-8", "ignore") + "..."


def clip_start(text: str, limit: int) -> str:
    """Return `text`, cut at its start to `limit` bytes of UTF-8."""
    return text.encode("utf-8", "replace")[-limit:].decode("utf-8", "ignore")
