"""`rallypoint generate`: what it prints, Kubernetes takes."""

from __future__ import annotations

import kubernetes_validate
import pytest
from tests.kubernetes.stand_in import rbac

from rallypoint.cli.main import main


@pytest.mark.parametrize(
    ("words", "namespace", "account"),
    [
        ([], "default", ("default", "rallypoint")),
        (["--namespace", "training"], "training", ("training", "rallypoint")),
        (["--namespace", "123", "--service-account", "null"], "123", ("123", "null")),
        (["--service-account", "other:a.b"], "default", ("other", "a.b")),
    ],
)
def test_rights_are_objects_that_kubernetes_takes_and_no_more_than_needed(
    words: list[str], namespace: str, account: tuple[str, str]
) -> None:
    made = rbac(*words)
    for each in made:
        kubernetes_validate.validate(each, "1.30", strict=True)
    space, name = account
    assert [each["kind"] for each in made] == ["ServiceAccount", "Role", "RoleBinding"]
    has, role, binding = made
    assert (has["metadata"]["namespace"], has["metadata"]["name"]) == account
    assert {each["metadata"]["namespace"] for each in (role, binding)} == {namespace}
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "verbs": ["get", "list", "watch", "create", "update", "delete"],
        }
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    subject = {"kind": "ServiceAccount", "name": name, "namespace": space}
    assert binding["subjects"] == [subject]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("generate", "the following arguments are required: KIND"),
        ("generate slurmy", "slurmy: needs one of "),
        ("generate rbac --namespace A", "--namespace A: needs the name of a namespace, like trai"),
        ("generate rbac --service-account a/b", "--service-account a/b: needs the name of a serv"),
        ("generate rbac --service-account :", "--service-account :: needs the name of a service"),
        ("generate rbac --service-account :x", "--service-account :x: needs the name of a serv"),
        ("generate rbac --service-account a:b:c", "--service-account a:b:c: needs the name of a"),
        (f"generate rbac --service-account {'a' * 250}", "--service-account aaaaa"),
    ],
)
def test_each_mistake_is_one_line(capsys: pytest.CaptureFixture[str], line: str, says: str) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"rallypoint generate: {says}"), err
    assert len(err.splitlines()) == 1
