"""One API server for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.certificates import make_certificates
from tests.harness.resolver import no_names as no_names
from tests.kubernetes.api_stand_in import KubernetesApi
from tests.kubernetes.stand_in import Pod, stand_in

from rallypoint.register.kubernetes.parameters import KubernetesConfig


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def api(certificates: Path) -> Iterator[KubernetesApi]:
    with stand_in(certificates) as server:
        yield server


@pytest.fixture
def pod(api: KubernetesApi, certificates: Path, tmp_path: Path) -> Pod:
    return Pod(api, certificates, tmp_path / "account")


@pytest.fixture
def config(pod: Pod) -> KubernetesConfig:
    return pod.config()
