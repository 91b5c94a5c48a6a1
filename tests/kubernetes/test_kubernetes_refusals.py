"""What a person is told of an API server that can't be used, and of rights that are missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.certificates import make_certificates
from tests.harness.cluster import free_port
from tests.harness.command_line import refusal
from tests.harness.commands import is_one_line_with
from tests.harness.http_thread import HttpThread, SaysHello
from tests.harness.one_agent import OneAgent, agent
from tests.kubernetes.api_stand_in import KubernetesApi
from tests.kubernetes.stand_in import ACCOUNT, NAMESPACE, Pod, apply, manifest, names, rbac

from rallypoint.register.kubernetes.backend import config_map, name_of

WORKER = "import os\ntell('rank', os.environ['RANK'])\ntell('env', *os.environ)\n"
BACKEND = "--rdzv-backend kubernetes"


def run(folder: Path, conf: str, code: int = 2, job: str = "job", where: str = "") -> OneAgent:
    """To its end."""
    words = ["--rdzv-backend=kubernetes", f"--rdzv-id={job}", "--local-addr=127.0.0.1"]
    words += [f"--rdzv-endpoint={where}", f"--rdzv-conf={conf}"]
    with agent(folder, *words, program=WORKER) as ended:
        assert ended.wait() == code, ended.err
    assert ended.told("rank") == ([] if code else ["0"])
    return ended


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "this is no pod (KUBERNETES_SERVICE_HOST is not set): run it in one, or give "),
        ("--rdzv-endpoint A", "A: is not the name of a namespace (lower-case letters, digits and"),
        ("--rdzv-conf server=h:443", "server=h:443: needs http[s]://HOST[:PORT]"),
        ("--rdzv-conf server=https://h:x", "server=https://h:x: x is not a valid port (1..65535)"),
        ("--rdzv-conf server=https://u@h", "server=https://u@h: needs http[s]://HOST[:PORT]"),
        ("--rdzv-conf server=https://", "server=https://: needs a host name or an address"),
    ],
)
def test_each_mistake_is_one_line(given: str, says: str) -> None:
    text = refusal(f"{BACKEND} --rdzv-id job {given} train.py")
    assert text.startswith(f"{BACKEND}: {says}"), text
    assert "\n" not in text


def test_without_a_run_id_a_job_is_refused() -> None:
    text = refusal(f"{BACKEND} --rdzv-conf server=https://h train.py")
    assert text.startswith(f"{BACKEND}: a namespace may hold many jobs: give --rdzv-id")


def test_a_pod_without_a_service_account_is_one_line(tmp_path: Path, api: KubernetesApi) -> None:
    folder = tmp_path / "none"
    says = f"{BACKEND}: there is no service account: {folder}/token: No such file or directory"
    err = run(tmp_path, f"server={api.url},service_account={folder}").err
    assert is_one_line_with(err, says, "automountServiceAccountToken")


def test_the_rights_of_a_generated_manifest_suffice_for_its_record_and_for_no_other(
    tmp_path: Path, api: KubernetesApi, certificates: Path
) -> None:
    objects = manifest("--name", "digits")
    apply(api, objects)
    pod = Pod(api, certificates, tmp_path / "account", "digits")
    run(tmp_path, pod.conf(), code=0, job="digits")
    there = api.config_maps.read(NAMESPACE, name_of("digits"))
    assert list(there["binaryData"]) == ["register"]
    says = f"{BACKEND}: the service account digits of the namespace {NAMESPACE} may not get configm"
    assert is_one_line_with(run(tmp_path, pod.conf(), job="other").err, says)
    # It is the one of the manifest that is missing.
    uid = {"uid": there["metadata"]["uid"]}
    api.config_maps.remove(NAMESPACE, name_of("digits"), uid)
    err = run(tmp_path, pod.conf(), job="digits").err
    says = "may not create configmaps"
    assert is_one_line_with(err, says, "none is needed for a ConfigMap that was made before")


@pytest.mark.parametrize("verb", ["get", "create", "update"])
def test_a_right_that_is_missing_is_one_line_with_the_command_that_gives_it(
    tmp_path: Path, api: KubernetesApi, pod: Pod, verb: str
) -> None:
    role = api.withdraw("Role", NAMESPACE, "rallypoint")
    try:
        verbs = [each for each in role["rules"][0]["verbs"] if each != verb]
        api.apply({**role, "rules": [{**role["rules"][0], "verbs": verbs}]})
        err = run(tmp_path, pod.conf()).err
    finally:
        api.apply(role)
    says = f"{BACKEND}: the service account {ACCOUNT} of the namespace {NAMESPACE} may not {verb}"
    command = f"`rallypoint generate rbac --namespace {NAMESPACE} --service-account {ACCOUNT} |"
    assert is_one_line_with(err, f"{says} configmaps in the namespace {NAMESPACE}: ", command)


def test_rights_in_another_namespace_are_given_by_the_command_that_is_named(
    tmp_path: Path, api: KubernetesApi, pod: Pod
) -> None:
    err = run(tmp_path, pod.conf(), where="default").err
    words = f"--namespace default --service-account {NAMESPACE}:{ACCOUNT}"
    assert is_one_line_with(err, f"rallypoint generate rbac {words}")
    for found in rbac(*words.split()):
        api.apply(found)
    run(tmp_path, pod.conf(), code=0, where="default")


def test_a_token_that_has_ended_is_one_line(tmp_path: Path, api: KubernetesApi, pod: Pod) -> None:
    api.revoke(pod.token)
    err = run(tmp_path, pod.conf()).err
    assert is_one_line_with(err, f"{BACKEND}: the API server {api.url} does not accept the token")


def test_nothing_there_is_waited_for_and_said(tmp_path: Path, pod: Pod) -> None:
    port = free_port()
    ended = run(tmp_path, pod.conf(port, join_timeout=0.3), code=75)
    *waiting, last = ended.err.splitlines()
    assert is_one_line_with(last, f"{BACKEND}: waited 0.3 s: the API server https://127.0.0.1:")
    assert "Connection refused; see that it runs, and is reached from here" in last
    assert [line for line in waiting if "waiting for the API server" in line] == waiting


def test_another_web_server_is_no_api_server(tmp_path: Path, pod: Pod) -> None:
    with HttpThread(SaysHello) as server:
        where = f"127.0.0.1:{server.port}"
        conf = f"service_account={pod.folder}"
        plain = run(tmp_path, f"server=http://{where},{conf}").err
        secured = run(tmp_path, f"server=https://{where},{conf}").err
    assert is_one_line_with(plain, f"{BACKEND}: the API server http://{where} can't be used: it is")
    assert "it is no API server of Kubernetes: it answers " in plain
    assert is_one_line_with(secured, "TLS with it fails: ", "(does it want server=http://...?)")


def test_an_api_server_of_another_cluster_is_not_trusted(
    tmp_path: Path, pod: Pod, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = make_certificates(tmp_path_factory.mktemp("other"))
    (pod.folder / "ca.crt").write_bytes((other / "ca.pem").read_bytes())
    assert is_one_line_with(run(tmp_path, pod.conf()).err, "its certificate is not trusted: ")
    (pod.folder / "ca.crt").unlink()
    says = f"cacert={pod.folder}/ca.crt: can't be used: No such file"
    assert is_one_line_with(run(tmp_path, pod.conf()).err, says)


def test_a_foreign_config_map_is_named_and_left(
    tmp_path: Path, api: KubernetesApi, pod: Pod
) -> None:
    theirs = {**config_map(name_of("theirs")), "binaryData": {"theirs": "AA=="}}
    there = api.config_maps.create(NAMESPACE, theirs, "somebody", is_dry_run=False)
    err = run(tmp_path, pod.conf(), job="theirs").err
    says = f"the ConfigMap {name_of('theirs')} in the namespace {NAMESPACE} was not written by"
    assert is_one_line_with(err, says, "delete it, or use another namespace or run id")
    assert api.config_maps.read(NAMESPACE, name_of("theirs")) == there


@pytest.fixture
def plain(certificates: Path) -> Iterator[KubernetesApi]:
    """As by a `kubectl proxy`, which shows who it is itself."""
    with KubernetesApi("", "", (NAMESPACE,)) as api:
        _, role, binding = rbac("--namespace", NAMESPACE)
        api.apply(role)
        api.apply({**binding, "subjects": [{"kind": "User", "name": "system:anonymous"}]})
        yield api


def test_a_proxy_without_tls_needs_no_service_account(tmp_path: Path, plain: KubernetesApi) -> None:
    conf = f"server={plain.url},service_account={tmp_path}"
    run(tmp_path, conf, code=0, where=NAMESPACE)
    assert names(plain) == [name_of("job")]
    plain.withdraw("Role", NAMESPACE, "rallypoint")
    err = run(tmp_path, conf, where=NAMESPACE).err
    assert is_one_line_with(err, f"{BACKEND}: the user system:anonymous may not get configmaps in")
