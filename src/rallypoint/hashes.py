"""Hash functions without OpenSSL: BLAKE2s, SHA-256 and HMAC-SHA256.

`hashlib` and `hmac` load OpenSSL's libcrypto, which takes 3.8 MB of each agent, and milliseconds of
each start, for as many bytes as an agent hashes: some hundred in a second. The modules of CPython
behind them have the same functions. Where an interpreter lacks these modules, `hashlib` serves.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hashlib import blake2s
    from hmac import compare_digest
else:
    try:
        from _blake2 import blake2s
        from _operator import _compare_digest as compare_digest
    except ImportError:
        from hashlib import blake2s
        from hmac import compare_digest

__all__ = ["SHA256_BYTES", "blake2s", "compare_digest", "hmac_sha256", "sha256"]

SHA256_BYTES = 32


def _find_sha256() -> Callable[[bytes], Any]:
    for name in ("_sha2", "_sha256", "hashlib"):  # From Python 3.12 on; before; anywhere.
        try:
            return import_module(name).sha256  # type: ignore[no-any-return]
        except (ImportError, AttributeError):
            continue
    raise ImportError("this Python has no SHA-256")


_new_sha256 = _find_sha256()
_BLOCK_BYTES = 64
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))


def sha256(data: bytes) -> bytes:
    """Return the 32 bytes of SHA-256 (FIPS 180-4) of `data`."""
    return _new_sha256(data).digest()  # type: ignore[no-any-return]


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """Return the 32 bytes of HMAC-SHA256 (RFC 2104) of `message` under `key`."""
    block = (sha256(key) if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    inner = sha256(block.translate(_INNER_PAD) + message)
    return sha256(block.translate(_OUTER_PAD) + inner)
