"""Torch's servers and clients ask nobody for names: see tests/harness/resolver.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.harness.resolver import no_names as no_names
from tests.register.installed import Environment, shelf_server


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Has the package of docs/registers.md, and nobody may change it."""
    made = Environment(tmp_path_factory.mktemp("environment") / "packages")
    made.install_shelf()
    return made


@pytest.fixture
def shelf() -> Iterator[str]:
    """The address of an empty one."""
    with shelf_server() as address:
        yield address
