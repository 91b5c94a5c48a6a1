"""Every test here needs network namespaces; it is skipped, with the reason, where they fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fault import network

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.clusters)


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
