"""Every test here needs network namespaces; it is skipped, with the reason, where they fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fault.namespaces import namespaces, nothing_left

__all__ = ["namespaces", "nothing_left"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.clusters)
