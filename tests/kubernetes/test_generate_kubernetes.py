"""`rallypoint generate kubernetes`: Kubernetes takes it, and it agrees with itself."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rallypoint.cli.main import main
from rallypoint.cli.options import parse_run
from rallypoint.core.settings import FLAGS
from rallypoint.register.kubernetes.backend import name_of

OF_OTHERS = {"JobSet", "TrainingRuntime", "TrainJob"}
"""Kinds whose schemas are not at hand."""
KINDS = ("--job", "--jobset", "--trainer")
VERSIONS = ("1.31", "1.36")
CHOICES = [
    [],
    ["--nodes", "5", "--spares", "1", "--gpus", "8", "--memory", "64Gi"],
    ["--name", "null", "--namespace", "123", "--image", "a/b@sha256:0", "x y.py", "--n", "'\"{$"],
    ["--drain-deadline", "0.5", "--nproc-per-node", "2", "--max-restarts", "0"],
]


def generated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, Any]]:
    """By kind. The objects of Kubernetes itself are valid."""
    assert main(["generate", "kubernetes", "--image", "me/digits:1", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, out.splitlines())) < 300
    objects = list(yaml.safe_load_all(out))
    for each in objects:
        if each["kind"] not in OF_OTHERS:
            for version in VERSIONS:
                kubernetes_validate.validate(each, version, strict=True)
    return {each["kind"]: each for each in objects}


def job_of(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The Job's specification, which is valid wherever it stands. The Trainer adds the counts."""
    if "Job" in objects:
        return dict(objects["Job"]["spec"])
    if "JobSet" in objects:
        spec = objects["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    else:
        runtime = objects["TrainingRuntime"]["spec"]["template"]["spec"]
        spec = runtime["replicatedJobs"][0]["template"]["spec"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": spec}
    for version in VERSIONS:
        kubernetes_validate.validate(job, version, strict=True)
    return dict(spec)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", CHOICES, ids=str)
def test_what_is_printed_is_taken_by_kubernetes(
    capsys: pytest.CaptureFixture[str], kind: str, words: list[str]
) -> None:
    objects = generated(capsys, kind, *words)
    spec = job_of(objects)["template"]["spec"]
    namespace = "123" if "123" in words else "default"
    assert {each["metadata"]["namespace"] for each in objects.values()} == {namespace}
    assert spec["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"]
    (pod,) = spec["containers"]
    options = pod["command"]
    script = words[words.index("x y.py") :] if "x y.py" in words else ["train.py"]
    assert options[:2] == ["rallypoint", "run"]
    assert options[-len(script) :] == script
    ports = {pod[f"{probe}Probe"]["httpGet"]["port"] for probe in ("startup", "liveness")}
    env = {each["name"]: each for each in pod["env"]}
    assert {env["TORCHELASTIC_HEALTH_CHECK_PORT"]["value"]} == {str(port) for port in ports}
    name = "null" if "null" in words else "train"
    assert env["RALLYPOINT_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == f"{name}-token"
    assert env["PET_RDZV_ID"]["value"] == name
    assert {name for name in env if name.startswith(("PET_", "RALLYPOINT_"))} - {
        "RALLYPOINT_TOKEN"
    } <= {row.env_name for row in FLAGS.values()}


@pytest.mark.parametrize("kind", KINDS)
def test_pods_may_read_and_change_the_record_of_their_job_alone(
    capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    objects = generated(capsys, kind, "--name", "digits")
    record, role, binding = (objects[each] for each in ("ConfigMap", "Role", "RoleBinding"))
    assert record["metadata"]["name"] == name_of("digits")
    assert not {"data", "binaryData"} & record.keys()
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [name_of("digits")],
            "verbs": ["get", "update"],
        }
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = {"kind": "ServiceAccount", "name": "digits", "namespace": "default"}
    assert binding["subjects"] == [account]
    assert objects["ServiceAccount"]["metadata"]["name"] == "digits"


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_cluster_asks_of_jobs_is_in_the_manifest(
    capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    words = "--queue research --label example.com/team=me --label tier= --annotation note=a:\x1b=b"
    words += " --cpus 1500m --memory 64Gi --shm 16Gi --user 4711 --pull-secret a --pull-secret b.c"
    objects = generated(capsys, kind, *words.split(" "))
    labels, annotations = {"example.com/team": "me", "tier": ""}, {"note": "a:\x1b=b"}
    workload = objects[{"--job": "Job", "--jobset": "JobSet", "--trainer": "TrainJob"}[kind]]
    assert workload["metadata"]["labels"] == labels | {"kueue.x-k8s.io/queue-name": "research"}
    assert workload["metadata"]["annotations"] == annotations
    template = job_of(objects)["template"]
    assert template["metadata"] == {"labels": labels, "annotations": annotations}
    spec = template["spec"]
    assert spec["imagePullSecrets"] == [{"name": "a"}, {"name": "b.c"}]
    assert spec["securityContext"]["runAsUser"] == 4711
    (pod,) = spec["containers"]
    assert pod["resources"] == {"requests": {"cpu": "1500m"}, "limits": {"memory": "64Gi"}}
    (shm,) = spec["volumes"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in pod["volumeMounts"]


def test_what_is_left_out_is_left_to_the_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    objects = generated(capsys)
    spec = objects["Job"]["spec"]["template"]["spec"]
    assert "labels" not in objects["Job"]["metadata"]
    assert "metadata" not in objects["Job"]["spec"]["template"]
    assert "ttlSecondsAfterFinished" not in objects["Job"]["spec"]
    assert "imagePullSecrets" not in spec
    assert "resources" not in spec["containers"][0]
    assert spec["volumes"][0]["emptyDir"]["sizeLimit"] == "8Gi"


def test_a_job_that_has_ended_may_be_removed(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, name in (("--job", "Job"), ("--jobset", "JobSet")):
        made = generated(capsys, kind, "--ttl", "0")[name]
        assert made["spec"]["ttlSecondsAfterFinished"] == 0


def test_the_command_says_what_was_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    options = ["--spares", "1", "--gpus", "8", "--memory", "64Gi", "--env-style", "jax,mpi"]
    objects = generated(capsys, "--nodes", "5", *options)
    job = job_of(objects)
    assert (job["completions"], job["parallelism"], job["completionMode"]) == (5, 5, "Indexed")
    (pod,) = job["template"]["spec"]["containers"]
    assert pod["resources"]["limits"] == {"nvidia.com/gpu": 8, "memory": "64Gi"}
    environ = {"PET_RDZV_ID": "train-" + "1" * 36, "RALLYPOINT_TOPOLOGY": "/node-1"}
    command = [*pod["command"][2:-1], "--no-python", "true"]
    config = parse_run(command, environ, None)
    assert (config.rendezvous.min_nodes, config.rendezvous.max_nodes) == (4, 4)
    assert config.workers.count == 8
    assert config.rendezvous.env_styles == ("jax", "mpi")
    grace = job["template"]["spec"]["terminationGracePeriodSeconds"]
    assert config.stop.drain_deadline_s == 60
    assert grace >= 60 + 20


def test_pods_are_replaced_or_not_by_our_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    job = job_of(generated(capsys))
    action: dict[object, str] = {}
    for rule in job["podFailurePolicy"]["rules"]:
        for code in rule.get("onExitCodes", {}).get("values", ["DisruptionTarget"]):
            action.setdefault(code, rule["action"])
    final: dict[object, str] = dict.fromkeys((1, 2, 124, 130), "FailJob")
    assert action == {"DisruptionTarget": "Ignore", 143: "Ignore", **final}
    assert job["template"]["spec"]["restartPolicy"] == "Never"


def test_pods_have_names_before_they_are_ready(capsys: pytest.CaptureFixture[str]) -> None:
    objects = generated(capsys, "--name", "digits", "--rdzv-backend", "tcp")
    service, job = objects["Service"], objects["Job"]
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": "digits"}
    spec = job["spec"]["template"]["spec"]
    assert spec["subdomain"] == service["metadata"]["name"]
    assert "--rdzv-endpoint=digits-0.digits:29400" in spec["containers"][0]["command"]
    assert "ServiceAccount" not in objects
    assert spec["automountServiceAccountToken"] is False


def test_a_train_job_and_its_runtime_fit(capsys: pytest.CaptureFixture[str]) -> None:
    objects = generated(capsys, "--trainer", "--nodes", "3", "--gpus", "4")
    runtime, job = objects["TrainingRuntime"], objects["TrainJob"]["spec"]
    assert job["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 3, "torch": {"numProcPerNode": 4}}
    (pod,) = job_of(objects)["template"]["spec"]["containers"]
    assert pod["name"] == "node"
    # Those are the Trainer's to say, by PET_NNODES and PET_NPROC_PER_NODE.
    assert not [word for word in job["trainer"]["command"] if word.startswith("--n")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--name Digits", "--name Digits: needs lower-case letters"),
        ("--name 1a", "--name 1a: needs lower-case letters"),
        ("--name " + "a" * 53, "a letter first, at most 52"),
        ("--namespace a.b", "--namespace a.b: needs the name of a namespace"),
        ("--nodes 0", "--nodes 0: "),
        ("--nodes 2 --spares 2", "--spares 2: leaves 0 of --nodes 2"),
        ("--nodes 2:4 --spares 3", "--spares 3: leaves 1 of --nodes 2:4"),
        ("--nodes 2:4 --trainer", "--nodes 2:4: a TrainJob has a fixed number of pods"),
        ("--job --jobset", "--job --jobset: needs one of them"),
        ("--trainer --rdzv-backend tcp", "--trainer needs --rdzv-backend kubernetes"),
        ("--gpus some", "--gpus some: needs a whole number"),
        ("--memory 64GB", "--memory 64GB: needs a quantity of Kubernetes, like 64Gi"),
        ("--memory １Gi", "--memory １Gi: needs a quantity of Kubernetes, like 64Gi"),
        ("--cpus two", "--cpus two: needs a number of CPUs, like 8 or 500m"),
        ("--shm 64GB", "--shm 64GB: needs a quantity of Kubernetes, like 64Gi"),
        ("--user 0", "--user 0: needs"),
        ("--label team", "--label team: needs KEY=VALUE"),
        ("--label a/b/c=d", "--label a/b/c=d: needs KEY=VALUE"),
        ("--label -a=d", "--label: needs a value"),
        ("--label " + "a" * 64 + "=d", "=d: needs KEY=VALUE"),
        ("--label a=" + "d" * 64, ": needs a value of at most 63 letters, digits, and - _ ."),
        ("--label kueue.x-k8s.io/queue-name=a", "name=a: needs --queue NAME"),
        ("--annotation =b", "--annotation =b: needs KEY=VALUE"),
        ("--queue a/b", "--queue a/b: needs the name of a LocalQueue, like research"),
        ("--pull-secret A", "--pull-secret A: needs the name of a Secret, like registry"),
        ("--ttl soon", "--ttl soon: needs a whole number"),
        ("--ttl 5 --trainer", "--ttl 5: a TrainJob is not removed by itself"),
        ("--drain-deadline 1e9", "--drain-deadline 1e9: needs at most 86400 seconds"),
        ("--image a -- b", ""),
        ("--image=", "--image: needs the name of an image"),
        ("--image :x", "--image :x: needs the name of an image"),
        ("--image https://host/x", "--image https://host/x: needs the name of an image"),
        ("--image Me/x:", "--image Me/x:: needs the name of an image"),
        ("--image localhost:5000/me/a__b-c:1.2_RC", ""),
        ("--image [fd00::2]:5000/x@sha256:0a1b", ""),
        ("--image Registry.example.com/x", ""),
    ],
)
def test_each_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    code = main(["generate", "kubernetes", "--image", "a", *words.split()])
    out, err = capsys.readouterr()
    assert code == (2 if says else 0)
    if says:
        assert out == ""
        assert says in err, err
        assert len(err.splitlines()) == 1


def test_without_an_image_the_person_is_told_so() -> None:
    command = [sys.executable, "-m", "rallypoint", "generate", "kubernetes"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "the following arguments are required: --image" in told.stderr


def test_the_docs_list_every_field_of_kinds_whose_schemas_are_not_at_hand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "design" / "kubernetes-tests.md").read_text()
    for kind in ("--jobset", "--trainer"):
        for name, made in generated(capsys, kind).items():
            if name in OF_OTHERS:
                assert made["apiVersion"] in page
                assert [key for key in keys(made["spec"]) if key not in page] == []


def keys(value: Any) -> set[str]:
    """All that are the kind's own: a Job's specification has been validated."""
    if isinstance(value, list):
        return {key for each in value for key in keys(each)}
    if not isinstance(value, dict) or "podFailurePolicy" in value:
        return set()
    return {*value} - {"metadata", "labels"} | {
        key for each in value.values() for key in keys(each)
    }


def test_the_docs_lines_are_run_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    lines = page.replace("\\\n", " ").splitlines()
    commands = [line.partition("|")[0] for line in lines if line.startswith("rallypoint generate")]
    assert len(commands) >= 2
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
        for each in yaml.safe_load_all(capsys.readouterr().out):
            kubernetes_validate.validate(each, VERSIONS[0], strict=True)
