"""Torch's servers and clients ask nobody for names: see tests/harness/resolver.py. What torchrun
leaves behind lies with the other files of the tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.compat.recordings import Recordings
from tests.harness.resolver import nobody_asked


@pytest.fixture(autouse=True, scope="module")
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
        yield


@pytest.fixture(autouse=True, scope="module")
def no_names() -> Iterator[None]:
    with nobody_asked():
        yield


@pytest.fixture(scope="session")
def torch_said(request: pytest.FixtureRequest) -> Recordings:
    """What the real torch and torchrun say."""
    return Recordings(request.config.getoption("--torch"))
