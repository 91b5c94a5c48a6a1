"""The stand-in of an API server, as any client meets it: what docs/kubernetes.md says of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPSConnection
from typing import Any

import pytest
from tests.kubernetes.api_stand_in import KubernetesApi
from tests.kubernetes.stand_in import NAMESPACE, Pod

from rallypoint.register.http import tls_context

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def ask(api: KubernetesApi, pod: Pod) -> Ask:
    """(method, name and query, body, token) -> status, and what the body of the answer is."""
    tls = tls_context(str(pod.folder / "ca.crt"))

    def asked(
        method: str, name: str = "", body: Any = None, token: str | None = pod.token
    ) -> tuple[int, Any]:
        connection = HTTPSConnection(api.host, api.port, context=tls, timeout=20)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps{name}"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        lines = [json.loads(line) for line in answer.read().splitlines()]
        connection.close()
        return answer.status, lines if "watch" in name else lines[0]

    return asked


def made(name: str, **more: Any) -> dict[str, Any]:
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    return {**head, "metadata": {"name": name, **more.pop("metadata", {})}, **more}


def test_an_object_is_made_read_changed_and_deleted(ask: Ask) -> None:
    status, first = ask("POST", "", made("a", data={"k": "1"}))
    assert status == 201
    assert ask("POST", "", made("a"))[1]["reason"] == "AlreadyExists"
    assert ask("GET", "/a") == (200, first)
    version = {name: first["metadata"][name] for name in ("uid", "resourceVersion")}
    status, second = ask("PUT", "/a", made("a", data={"k": "2"}, metadata=version))
    assert status == 200
    assert second["metadata"]["resourceVersion"] != version["resourceVersion"]
    assert second["metadata"]["uid"] == version["uid"]
    assert ask("PUT", "/a", second) == (200, second), "nothing is written for nothing"
    for stale in (version, {"uid": "another"}):
        status, refused = ask("PUT", "/a", made("a", metadata=stale))
        assert (status, refused["reason"], refused["kind"]) == (409, "Conflict", "Status")
        assert ask("DELETE", "/a", {"preconditions": stale})[0] == 409
    assert ask("PUT", "/a", made("a"))[0] == 200, "without a version it is stored in any case"
    assert ask("DELETE", "/a")[1]["status"] == "Success"
    for method, body in (("GET", None), ("PUT", made("a")), ("DELETE", None)):
        status, refused = ask(method, "/a", body)
        assert (status, refused["reason"]) == (404, "NotFound")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (made("A"), 422, "a lowercase RFC 1123 subdomain must consist of"),
        (made("a" * 254), 422, "a lowercase RFC 1123 subdomain"),
        (made("b", data={"a/b": ""}), 422, "a valid config key must"),
        (made("b", data={"k": ""}, binaryData={"k": ""}), 422, "duplicate of key present in data"),
        (made("b", binaryData={"k": "?"}), 400, "illegal base64 data"),
        (made("b", data={"k": "x" * ((1 << 20) + 1)}), 422, "must have at most 1048576 bytes"),
        (made("b", data={"k": "x" * (3 << 20)}), 413, "Request entity too large"),
        (made("b", metadata={"namespace": "other"}), 400, "does not match the namespace"),
        ({"kind": "Pod"}, 400, "the object provided is unrecognized"),
    ],
)
def test_what_is_no_config_map_is_refused(ask: Ask, body: Any, status: int, says: str) -> None:
    found, refused = ask("POST", "", body)
    assert (found, refused["code"]) == (status, status)
    assert says in refused["message"]
    assert ask("GET")[1]["items"] == []


def test_who_asks_must_be_known_and_may_do_what_roles_say(ask: Ask, api: KubernetesApi) -> None:
    assert ask("GET", token="another")[0] == 401
    says = 'User "system:anonymous" cannot list resource "configmaps" in API group "" in the'
    status, refused = ask("GET", token=None)
    assert status == 403
    assert says in refused["message"]
    other = api.token(NAMESPACE, "other")
    assert "system:serviceaccount:training:other" in ask("GET", "/x", None, other)[1]["message"]
    assert ask("PATCH", "/x")[0] == 405


def test_lists_are_in_pages_and_by_labels(ask: Ask, api: KubernetesApi) -> None:
    for number in range(5):
        labels = {"even": str(number % 2 == 0)}
        assert ask("POST", "", made(f"c{number}", metadata={"labels": labels}))[0] == 201
    found = ask("GET", "?labelSelector=even=True")[1]
    assert [item["metadata"]["name"] for item in found["items"]] == ["c0", "c2", "c4"]
    page = ask("GET", "?limit=2")[1]
    assert [item["metadata"]["name"] for item in page["items"]] == ["c0", "c1"]
    rest = ask("GET", f"?limit=9&continue={page['metadata']['continue']}")[1]
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c2", "c3", "c4"]
    assert "continue" not in rest["metadata"]
    api.config_maps.forget()
    assert ask("GET", f"?continue={page['metadata']['continue']}")[0] == 410
    for number in range(5):
        assert ask("DELETE", f"/c{number}")[0] == 200


def test_a_dry_run_is_judged_and_leaves_nothing(ask: Ask) -> None:
    assert ask("POST", "?dryRun=All", made("d"))[0] == 201
    assert ask("GET", "/d")[0] == 404
    assert ask("POST", "?dryRun=All", made("D"))[0] == 422


def test_a_watch_tells_what_has_changed_since_a_version(ask: Ask, api: KubernetesApi) -> None:
    since = ask("GET")[1]["metadata"]["resourceVersion"]
    first = ask("POST", "", made("e"))[1]
    ask("PUT", "/e", made("e", data={"k": "1"}))
    ask("POST", "", made("f"))
    ask("DELETE", "/e")
    query = f"?watch=1&timeoutSeconds=0&resourceVersion={since}"
    api.config_maps.bookmark_s = 0.05
    watch = f"{query.replace('=0', '=1')}&allowWatchBookmarks=true&fieldSelector=metadata.name%3De"
    events = ask("GET", watch)[1]
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["ADDED", "MODIFIED", "DELETED"]
    assert set(kinds[3:]) == {"BOOKMARK"}
    assert events[0]["object"] == first
    api.config_maps.forget()
    (gone,) = ask("GET", query.replace("=0", "=1"))[1]
    assert (gone["type"], gone["object"]["code"]) == ("ERROR", 410)
    assert ask("DELETE", "/f")[0] == 200
