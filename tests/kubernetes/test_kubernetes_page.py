"""docs/kubernetes.md: its commands are run as printed, by kubectl itself on a stand-in of an API
server; its YAML is validated. tests/pods runs the command of the agents."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from tests.docs.page import blocks, commands
from tests.kubernetes.kubectl_server import LOG, KubectlServer
from tests.limits import patience

LINES = [
    line
    for block in blocks("kubernetes.md")
    for line in commands(block)
    if line.startswith(("kubectl", "rallypoint generate"))
]
MADE_BY = {
    "kubectl create namespace": {"Namespace"},
    "create secret": {"Secret"},
    "generate kubernetes": {"ServiceAccount", "Role", "RoleBinding", "Service", "Job"},
    "generate rbac": {"ServiceAccount", "Role", "RoleBinding"},
    "logs -f": set(),
}
"""By what stands in a line: what it makes."""


def test_each_line_makes_what_the_page_says(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl to run the lines with")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    assert len(LINES) == 5
    with KubectlServer() as server:
        config = server.config(tmp_path)
        env = {"PATH": path, "HOME": str(tmp_path), "KUBECONFIG": str(config)}
        for line in LINES:
            before = dict(server.made)
            server.made.clear()
            if "logs" in line:
                server.made |= before
            done = subprocess.run(
                ["/bin/sh", "-c", line],
                cwd=tmp_path,
                env=env,
                capture_output=True,
                text=True,
                timeout=patience(60),
            )
            assert (done.returncode, done.stderr) == (0, ""), line
            (kinds,) = [kinds for word, kinds in MADE_BY.items() if word in line]
            if "logs" in line:
                assert done.stdout == LOG
                continue
            assert {kind for kind, _ in server.made} == kinds
            for made in server.made.values():
                kubernetes_validate.validate(made, "1.31", strict=True)
                spaces = {made["metadata"].get("namespace", "training")}
                assert spaces == {"training"}
                if made["kind"] == "Secret":
                    assert made["data"].keys() == {"token"}
            server.made |= {each: made for each, made in before.items() if each[0] == "Job"}


def test_the_yaml_of_a_manifest_of_ones_own_is_valid() -> None:
    (text,) = [block for block in blocks("kubernetes.md") if block.startswith("    spec:")]
    spec = yaml.safe_load(text)["spec"]
    spec["containers"][0]["image"] = "me/digits:1"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    kubernetes_validate.validate(pod, "1.31", strict=True)
    (env,) = spec["containers"][0]["env"]
    assert env["name"] == "RALLYPOINT_TOKEN"
