"""The hash functions of commands give what those of the standard library give."""

from __future__ import annotations

import hashlib
import hmac
import subprocess
import sys

from hypothesis import given
from hypothesis.strategies import binary

from rallypoint import hashes


@given(binary(max_size=300))
def test_sha256_is_that_of_hashlib(data: bytes) -> None:
    assert hashes.sha256(data) == hashlib.sha256(data).digest()


@given(binary(max_size=200), binary(max_size=300))
def test_hmac_sha256_is_that_of_hmac(key: bytes, message: bytes) -> None:
    """Also where the key is longer than a block of 64 bytes."""
    assert hashes.hmac_sha256(key, message) == hmac.digest(key, message, "sha256")


def test_blake2s_and_the_comparison_are_those_of_the_standard_library() -> None:
    assert hashes.blake2s is hashlib.blake2s
    assert hashes.compare_digest(b"one", b"one")
    assert not hashes.compare_digest(b"one", b"two")


def test_an_interpreter_without_its_own_sha256_uses_that_of_openssl() -> None:
    script = """
import sys
for name in ("_sha2", "_sha256"):
    sys.modules[name] = None
from rallypoint import hashes
print(hashes.hmac_sha256(b"key", b"text").hex(), hashes.sha256(b"text").hex())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    expected = hmac.digest(b"key", b"text", "sha256").hex(), hashlib.sha256(b"text").hexdigest()
    assert done.stdout.split() == list(expected), done.stderr
