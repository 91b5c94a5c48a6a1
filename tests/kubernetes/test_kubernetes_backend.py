"""The register in Kubernetes: the contract of a backend, answers that are lost, late, refused or
slow, what is left behind. By a stand-in of the API server, over HTTP and TLS."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import kubernetes_validate
import pytest
from msgspec.structs import replace
from tests.harness.cluster import free_port, wait_until
from tests.harness.engines import kubernetes_at, kubernetes_engine
from tests.harness.limits import patience
from tests.harness.register_contract import TOKEN, ServedRegisterContract, state_of, stored
from tests.kubernetes.api_stand_in import Fault, KubernetesApi
from tests.kubernetes.stand_in import NAMESPACE, Pod, names

from rallypoint.errors import RecordError, RendezvousConnectionError
from rallypoint.register.kubernetes.api_server import ApiServer
from rallypoint.register.kubernetes.backend import (
    MAX_STATE,
    KubernetesRendezvousBackend,
    config_map,
    name_of,
)
from rallypoint.register.kubernetes.parameters import KubernetesConfig
from rallypoint.register.kubernetes.store import sweep
from rallypoint.wire.death_notice import RegisterAt


class TestKubernetes(ServedRegisterContract):
    max_bytes = MAX_STATE

    @pytest.fixture(autouse=True)
    def _place(
        self, api: KubernetesApi, config: KubernetesConfig, request: pytest.FixtureRequest
    ) -> None:
        self.api, self.config = api, config
        self.run_id = f"{type(self).__name__} {request.node.name}"
        self.away = replace(config, server=f"https://127.0.0.1:{free_port()}")

    def open(self, run_id: str, token: bytes | None) -> KubernetesRendezvousBackend:
        return KubernetesRendezvousBackend(self.config, run_id, token)

    def open_away(self) -> KubernetesRendezvousBackend:
        return KubernetesRendezvousBackend(self.away, self.run_id)

    def places(self) -> tuple[RegisterAt, RegisterAt]:
        return kubernetes_at(self.config), kubernetes_at(self.away)

    def contents(self) -> list[dict[str, Any]]:
        return [self.api.config_maps.read(NAMESPACE, name) for name in names(self.api)]


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A run id that no other test has."""
    return str(request.node.name)


@pytest.fixture
def backend(config: KubernetesConfig, job: str) -> KubernetesRendezvousBackend:
    return KubernetesRendezvousBackend(config, job, TOKEN)


def test_a_register_is_an_object_that_kubernetes_takes(
    api: KubernetesApi, backend: KubernetesRendezvousBackend, job: str
) -> None:
    stored(backend, b"x")
    found = api.config_maps.read(NAMESPACE, name_of(job))
    assert found["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "rallypoint"
    there = backend.get_state()
    assert there is not None
    for sent in (config_map(name_of(job), there[1], "AA=="), config_map(name_of(job)), found):
        kubernetes_validate.validate(sent, "1.30", strict=True)


@pytest.mark.parametrize("run_id", ["..", "a/b", "A_B", "x" * 300, "nœud", "\n", " ", "\0", "-"])
def test_any_run_id_has_a_name_of_its_own(
    api: KubernetesApi, config: KubernetesConfig, run_id: str
) -> None:
    stored(KubernetesRendezvousBackend(config, run_id), b"x")
    assert state_of(KubernetesRendezvousBackend(config, run_id)) == b"x"
    assert KubernetesRendezvousBackend(config, run_id + "-").get_state() is None
    assert name_of(run_id) != name_of(run_id.lower()) or run_id == run_id.lower()


def test_a_config_map_that_is_not_ours_is_named_and_left(
    api: KubernetesApi, backend: KubernetesRendezvousBackend, job: str
) -> None:
    theirs = {**config_map(name_of(job)), "binaryData": {}, "data": {"a": "b"}}
    there = api.config_maps.create(NAMESPACE, theirs, "somebody", is_dry_run=False)
    for call in (backend.get_state, lambda: backend.set_state(b"x")):
        with pytest.raises(RecordError, match="was not written by Rallypoint") as raised:
            call()
        assert f"the ConfigMap {name_of(job)} in the namespace {NAMESPACE}" in str(raised.value)
    assert api.config_maps.read(NAMESPACE, name_of(job)) == there


def test_a_register_that_was_deleted_and_made_anew_is_another_one(
    api: KubernetesApi, backend: KubernetesRendezvousBackend, job: str
) -> None:
    """The uid tells, whatever the resourceVersion is."""
    stored(backend, b"x")
    found = backend.get_state()
    assert found is not None
    api.config_maps.remove(NAMESPACE, name_of(job), {})
    assert backend.set_state(b"y", found[1]) is None
    stored(backend, b"z")
    now = backend.get_state()
    assert now is not None
    assert backend.set_state(b"y", replace(now[1], uid=found[1].uid)) == (b"z", now[1], False)


# Who asks


def test_a_token_that_is_replaced_while_a_job_runs_is_read_again(
    pod: Pod, backend: KubernetesRendezvousBackend
) -> None:
    stored(backend, b"1")
    pod.rotate()
    stored(backend, b"2")
    assert state_of(backend) == b"2"


def test_a_token_that_has_ended_is_waited_for_and_said(
    api: KubernetesApi, pod: Pod, backend: KubernetesRendezvousBackend
) -> None:
    stored(backend, b"1")
    before = pod.token
    api.revoke(before)
    with pytest.raises(RendezvousConnectionError, match="does not accept the token in /"):
        backend.get_state()
    pod.token = ""
    pod.rotate()
    assert state_of(backend) == b"1"


def test_a_right_that_is_taken_away_is_waited_for_and_said(
    api: KubernetesApi, backend: KubernetesRendezvousBackend
) -> None:
    stored(backend, b"1")
    role = api.withdraw("Role", NAMESPACE, "rallypoint")
    with pytest.raises(RendezvousConnectionError, match="may not get configmaps in the namespace"):
        backend.get_state()
    api.apply(role)
    assert state_of(backend) == b"1"


def test_a_certificate_that_is_replaced_while_a_job_runs_is_read_again(
    api: KubernetesApi, pod: Pod, backend: KubernetesRendezvousBackend
) -> None:
    """That of the authority, by which the server is known: it is wanted for each connection."""
    stored(backend, b"1")
    own = pod.folder / "ca.crt"
    before = own.read_bytes()
    own.write_bytes(b"")
    api.stop()
    with pytest.raises(RendezvousConnectionError, match="Connection refused"):
        backend.get_state()
    api.start()
    with pytest.raises(RendezvousConnectionError, match="cacert=/"):
        backend.get_state()
    own.write_bytes(before)
    assert state_of(backend) == b"1"


# Servers that have much to do


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_to_wait_is_asked_again_after_that(
    api: KubernetesApi, backend: KubernetesRendezvousBackend, status: int
) -> None:
    stored(backend, b"1")
    api.faults.append(Fault("PUT", status, (("Retry-After", "1"),)))
    stored(backend, b"2")
    assert state_of(backend) == b"2"
    assert not api.faults


def test_a_server_that_asks_to_wait_for_long_is_left_alone_so_long(
    api: KubernetesApi, backend: KubernetesRendezvousBackend
) -> None:
    api.faults.extend([Fault("GET", 429, (("Retry-After", "8"),)), Fault("GET", 500)])
    for says in ("it answers 429", "wants no request for"):
        with pytest.raises(RendezvousConnectionError, match=says):
            backend.get_state()
    assert api.faults.popleft().status == 500, "it was asked before the time"


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault("GET", 500), "it answers 500"),
        (Fault("GET", 504, (), b"<html>"), "it is no API server of Kubernetes: it answers 504"),
    ],
    ids=["internal", "proxy"],
)
def test_a_server_that_fails_is_said(
    api: KubernetesApi, backend: KubernetesRendezvousBackend, fault: Fault, says: str
) -> None:
    api.faults.append(fault)
    with pytest.raises(RendezvousConnectionError, match=says):
        backend.get_state()
    assert backend.get_state() is None


def test_a_slow_server_is_waited_for_up_to_the_limit(
    api: KubernetesApi, config: KubernetesConfig, job: str
) -> None:
    patient = KubernetesRendezvousBackend(config, job, TOKEN)
    hasty = KubernetesRendezvousBackend(config, job, TOKEN, limit_s=0.2)
    api.slow_s = 0.4
    try:
        stored(patient, b"1")
        with pytest.raises(RendezvousConnectionError, match="no answer within 0"):
            hasty.set_state(b"2")
    finally:
        api.slow_s = 0.0
    assert state_of(patient) == b"1"


def test_a_server_that_was_away_is_used_again(
    api: KubernetesApi, backend: KubernetesRendezvousBackend
) -> None:
    stored(backend, b"1")
    api.stop()
    try:
        with pytest.raises(RendezvousConnectionError, match="Connection refused"):
            backend.get_state()
    finally:
        api.start()
    stored(backend, b"2")


# Waiting


def test_a_wait_goes_on_when_changes_are_forgotten_and_when_watches_are_ended(
    api: KubernetesApi, backend: KubernetesRendezvousBackend
) -> None:
    """410 Gone, in the answer and in place of it; and a server that ends each watch at once."""
    stored(backend, b"x")
    found = backend.get_state()
    assert found is not None
    seen: list[bool] = []
    waiting = threading.Thread(
        target=lambda: seen.append(backend.wait_for_change(found[1], 3600.0))
    )
    api.requests.clear()
    api.config_maps.bookmark_s = 0.05
    waiting.start()
    for number in range(4):
        wait_until(
            lambda: sum(each == "watch " for each in [*api.requests]) > number or seen,  # noqa: B023
            f"watch {number}",
        )
        assert seen == []
        if number < 3:
            api.config_maps.forget()
    waiting.join(0.3)  # Bookmarks come meanwhile.
    assert seen == []
    stored(backend, b"y")
    waiting.join(patience(20))
    assert seen == [True], "it was not woken"


# A ConfigMap that was made before


class TestMadeBefore(TestKubernetes):
    """The same contract, by an account that may read and change that one object alone."""

    @pytest.fixture(autouse=True)
    def _made(self, api: KubernetesApi, pod: Pod, _place: None) -> Iterator[None]:
        mine = [name_of(run_id) for run_id in (self.run_id, self.run_id + "2")]
        for name in mine:
            empty = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
            api.config_maps.create(NAMESPACE, empty, "kubectl", is_dry_run=False)
        before = api.withdraw("Role", NAMESPACE, "rallypoint")
        rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": mine}
        # `list` and `watch`, of that name: for `wait_for_change`, which no node of a job uses.
        verbs = ["get", "update", "list", "watch"]
        api.apply({**before, "rules": [{**rule, "verbs": verbs}]})
        yield
        api.apply(before)


def test_two_that_write_the_first_version_of_one_that_was_made_before_do_not_both_win(
    api: KubernetesApi, backend: KubernetesRendezvousBackend, config: KubernetesConfig, job: str
) -> None:
    """The other one writes between the look of the first at what is there and its own write, and
    the answer to its own write is lost, too."""
    empty = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name_of(job)}}
    api.config_maps.create(NAMESPACE, empty, "kubectl", is_dry_run=False)
    assert backend.get_state() is None
    other = KubernetesRendezvousBackend(config, job, TOKEN)
    api.faults.append(Fault("PUT", 0))
    after = other.set_state(b"1")
    assert after is not None
    assert after[2]
    assert backend.set_state(b"2") == (b"1", after[1], False)
    assert state_of(backend) == b"1"


# Answers that are lost


def test_a_version_whose_answer_was_lost_is_known_again(
    api: KubernetesApi, backend: KubernetesRendezvousBackend, config: KubernetesConfig, job: str
) -> None:
    """Whoever asks again is told that the object has changed: by itself."""
    other = KubernetesRendezvousBackend(config, job + "2", TOKEN)
    assert other.get_state() is None  # A connection that breaks is replaced if it was used before.
    for method in ("POST", "PUT"):
        api.faults.append(Fault(method, 0))
        found = other.get_state()
        after = other.set_state(method.encode(), None if found is None else found[1])
        assert after is not None
        assert after[2]
        assert other.get_state() == (method.encode(), after[1])
    assert not api.faults


def test_of_a_version_whose_answer_was_lost_and_that_was_replaced_nothing_is_said(
    api: KubernetesApi, backend: KubernetesRendezvousBackend, config: KubernetesConfig, job: str
) -> None:
    """It was stored: who is told that it was not would do the same again."""
    other = KubernetesRendezvousBackend(config, job, TOKEN)
    stored(backend, b"0")
    found = backend.get_state()
    assert found is not None
    api.faults.append(Fault("PUT", 0, meanwhile=lambda: stored(other, b"2")))
    assert backend.set_state(b"1", found[1]) is None
    assert state_of(backend) == b"2"


# Retention


def test_registers_that_have_not_changed_for_a_week_are_removed(
    api: KubernetesApi, config: KubernetesConfig
) -> None:
    jobs = [f"old{number}" for number in range(7)]
    for name in jobs:
        stored(KubernetesRendezvousBackend(config, name), b"x")
    week_ago = datetime.now(UTC) - timedelta(days=7)
    for name in jobs[:5]:
        api.config_maps.date(NAMESPACE, name_of(name), week_ago - timedelta(minutes=1))
    api.config_maps.date(NAMESPACE, name_of(jobs[5]), week_ago + timedelta(minutes=5))
    stored(KubernetesRendezvousBackend(config, jobs[0]), b"y")
    theirs = {**config_map("theirs"), "metadata": {"name": "theirs"}}
    api.config_maps.create(NAMESPACE, theirs, "somebody", is_dry_run=False)
    api.config_maps.date(NAMESPACE, "theirs", week_ago - timedelta(days=9))
    assert sweep(ApiServer(config), page=2) == 4
    left = {*names(api)}
    assert left >= {name_of(jobs[0]), name_of(jobs[5]), name_of(jobs[6]), "theirs"}
    assert not left & {name_of(name) for name in jobs[1:5]}


def test_a_register_that_is_not_dated_is_left(api: KubernetesApi, config: KubernetesConfig) -> None:
    """Its job may run for longer than a week."""
    stored(KubernetesRendezvousBackend(config, "undated"), b"x")
    api.config_maps.date(NAMESPACE, name_of("undated"), datetime(2020, 1, 1, tzinfo=UTC))
    api.config_maps.date(NAMESPACE, name_of("undated"), None)
    kubernetes_engine(config, "job").sweep()
    assert state_of(KubernetesRendezvousBackend(config, "undated")) == b"x"
