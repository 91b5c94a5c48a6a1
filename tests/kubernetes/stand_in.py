"""An API server that a test owns, the files of a pod's service account, and jobs by both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from tests.harness.cluster import Cluster, Option
from tests.kubernetes.api_stand_in import KubernetesApi
from tests.kubernetes.objects import Selector

from rallypoint.cli.main import main
from rallypoint.register.kubernetes.parameters import KubernetesConfig, kubernetes_config

NAMESPACE, ACCOUNT = "training", "rallypoint"


def rbac(*words: str) -> list[dict[str, Any]]:
    """Return the objects that `rallypoint generate rbac` prints."""
    out = StringIO()
    with redirect_stdout(out):
        assert main(["generate", "rbac", *words]) == 0
    return list(yaml.safe_load_all(out.getvalue()))


def manifest(*words: str) -> list[dict[str, Any]]:
    """Return the objects that `rallypoint generate kubernetes` prints."""
    out = StringIO()
    with redirect_stdout(out):
        options = ["--namespace", NAMESPACE, "--image", "digits:1"]
        assert main(["generate", "kubernetes", *options, *words]) == 0
    return list(yaml.safe_load_all(out.getvalue()))


def apply(api: KubernetesApi, objects: list[dict[str, Any]]) -> None:
    """Give the stand-in those of the objects that have to do with ConfigMaps."""
    for each in objects:
        if each["kind"] == "ConfigMap":
            api.config_maps.create(NAMESPACE, each, "kubectl", is_dry_run=False)
        elif each["kind"] in ("ServiceAccount", "Role", "RoleBinding"):
            api.apply(each)


class Pod:
    """The files that a pod has, and what `--rdzv-conf` says of them."""

    def __init__(
        self, api: KubernetesApi, certificates: Path, folder: Path, account: str = ACCOUNT
    ) -> None:
        self._api, self.folder, self._account = api, folder, account
        folder.mkdir()
        (folder / "ca.crt").write_bytes((certificates / "ca.pem").read_bytes())
        (folder / "namespace").write_text(NAMESPACE)
        self.token = ""
        self.rotate()

    def rotate(self) -> None:
        """Another token in place of the one before, which is not valid any more."""
        before, self.token = self.token, self._api.token(NAMESPACE, self._account)
        (self.folder / "new").write_text(self.token)
        os.replace(self.folder / "new", self.folder / "token")
        if before:
            self._api.revoke(before)

    def config(self, port: int | None = None) -> KubernetesConfig:
        """`port`: of a proxy before the API server."""
        return kubernetes_config(server=self.url(port), service_account=str(self.folder))

    def conf(self, port: int | None = None, **other: object) -> str:
        """For `--rdzv-conf`."""
        more = "".join(f",{name}={value}" for name, value in other.items())
        return f"server={self.url(port)},service_account={self.folder}{more}"

    def url(self, port: int | None = None) -> str:
        return f"https://{self._api.host}:{port or self._api.port}"


@contextmanager
def stand_in(certificates: Path, host: str = "127.0.0.1") -> Iterator[KubernetesApi]:
    """In which the account of the pods has the rights that we say it needs."""
    spaces = (NAMESPACE, "default")
    server = (str(certificates / "server.pem"), str(certificates / "server.key"))
    with KubernetesApi(*server, spaces, host) as api:
        for found in rbac("--namespace", NAMESPACE, "--service-account", ACCOUNT):
            api.apply(found)
        yield api


def cluster_of(
    folder: Path, pod: Pod, run_id: str, nnodes: str = "3", **options: Option
) -> Cluster:
    """A job by this API server, on loopback. `conf`: further keys, with commas."""
    conf = options.pop("conf", "")
    return Cluster(
        folder,
        rdzv_backend="kubernetes",
        rdzv_endpoint=NAMESPACE,
        rdzv_conf=f"{pod.conf()},{conf}",
        rdzv_id=run_id,
        nnodes=nnodes,
        local_addr="127.0.0.1",
        **options,
    )


def names(api: KubernetesApi) -> list[str]:
    """Of all that is there."""
    items = api.config_maps.listed(Selector(NAMESPACE, {}), 0, "")["items"]
    return [found["metadata"]["name"] for found in items]
