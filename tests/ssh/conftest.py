"""Every test here needs a real sshd on loopback; it is skipped, with the reason, where there is
none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.ssh import servers


@pytest.fixture(scope="module")
def all_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Hosts]:
    """One set for all tests of a module."""
    if reason := servers.why_impossible():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("ssh")
    with servers.Hosts(folder, "node-a", "node-b", "node-c", refusing=("gone",)) as made:
        yield made


@pytest.fixture
def hosts(all_hosts: servers.Hosts) -> Iterator[servers.Hosts]:
    """With an empty directory; nothing runs there when the test is over."""
    all_hosts.empty()
    yield all_hosts
    all_hosts.clean()
