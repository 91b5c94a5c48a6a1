"""Fixtures of tests in network namespaces: where those fail, tests are skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fault import network


@pytest.fixture(scope="session")
def namespaces() -> str:
    """Why there are none; empty where there are. What killed runs have left is removed first."""
    reason = network.why_impossible()
    if not reason:
        network.remove_abandoned()
    return reason


@pytest.fixture(autouse=True)
def nothing_left(namespaces: str) -> Iterator[None]:
    """Each test removes what it makes."""
    if namespaces:
        pytest.skip(namespaces)
    yield
    assert network.left() == []
