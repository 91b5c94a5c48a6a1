"""Torch's servers and clients ask nobody for names: see tests/harness/resolver.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.harness.resolver import nobody_asked


@pytest.fixture(autouse=True, scope="module")
def no_names() -> Iterator[None]:
    with nobody_asked():
        yield
