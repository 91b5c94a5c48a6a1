"""F8: keys. The vectors are RFC 5869, appendix A (SHA-256)."""

from __future__ import annotations

import pytest

from rallypoint.wire.keys import (
    KEY_BYTES,
    SessionKeys,
    hkdf_expand,
    hkdf_extract,
    job_token,
    round_store_key,
    session_keys,
)

VECTORS = [
    (
        "0b" * 22,
        "000102030405060708090a0b0c",
        "f0f1f2f3f4f5f6f7f8f9",
        "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5",
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    (
        bytes(range(0x50)).hex(),
        bytes(range(0x60, 0xB0)).hex(),
        bytes(range(0xB0, 0x100)).hex(),
        "06a6b88c5853361a06104c9ceb35b45cef760014904671014a193f40c15fc244",
        (
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
            "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
            "cc30c58179ec3e87c14c01d5c1f3434f1d87"
        ),
    ),
    (
        "0b" * 22,
        "",
        "",
        "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04",
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
    ),
]


@pytest.mark.parametrize(("material", "salt", "info", "secret", "output"), VECTORS)
def test_F8_hkdf_gives_the_vectors_of_rfc_5869(
    material: str, salt: str, info: str, secret: str, output: str
) -> None:
    extracted = hkdf_extract(bytes.fromhex(salt), bytes.fromhex(material))
    assert extracted.hex() == secret
    assert hkdf_expand(extracted, bytes.fromhex(info), len(output) // 2).hex() == output


@pytest.mark.parametrize("length", [0, -1, 255 * 32 + 1])
def test_F8_hkdf_refuses_impossible_lengths(length: int) -> None:
    with pytest.raises(ValueError, match="HKDF"):
        hkdf_expand(bytes(32), b"", length)


def test_F8_session_keys_depend_on_every_input_and_differ_by_direction() -> None:
    base = session_keys(b"t" * 32, b"c" * 32, b"s" * 32, 1, "job")
    others = [
        session_keys(b"T" * 32, b"c" * 32, b"s" * 32, 1, "job"),
        session_keys(b"t" * 32, b"C" * 32, b"s" * 32, 1, "job"),
        session_keys(b"t" * 32, b"c" * 32, b"S" * 32, 1, "job"),
        session_keys(b"t" * 32, b"c" * 32, b"s" * 32, 2, "job"),
        session_keys(b"t" * 32, b"c" * 32, b"s" * 32, 1, "jobs"),
    ]
    keys = [
        key for pair in [base, *others] for key in (pair.client_to_server, pair.server_to_client)
    ]
    assert len(set(keys)) == 2 * (1 + len(others))
    assert {len(key) for key in keys} == {KEY_BYTES}
    assert session_keys(b"t" * 32, b"c" * 32, b"s" * 32, 1, "job") == base


def test_F8_a_jobs_token_differs_by_job_and_by_master() -> None:
    tokens = {job_token(master, job) for master in (b"m" * 32, b"n" * 32) for job in ("a", "b")}
    assert len(tokens) == 4
    assert b"m" * 32 not in tokens
    assert job_token(b"m" * 32, "a") in tokens


def test_F9_a_round_stores_key_depends_on_the_whole_stamp() -> None:
    keys = {
        round_store_key(b"t" * 32, "job", 1, 3),
        round_store_key(b"u" * 32, "job", 1, 3),
        round_store_key(b"t" * 32, "Job", 1, 3),
        round_store_key(b"t" * 32, "job", 12, 3),
        round_store_key(b"t" * 32, "job", 1, 2**80),
    }
    assert len(keys) == 5
    assert round_store_key(b"t" * 32, "job", 1, 3) in keys


def test_F8_printing_session_keys_shows_no_key() -> None:
    keys = SessionKeys(b"secret-one", b"secret-two")
    assert "secret" not in repr(keys)
    assert "secret" not in str(keys)
