"""`rallypoint generate rbac`: the rights that a pod needs for `--rdzv-backend kubernetes`."""

from __future__ import annotations

from rallypoint.cli.generate.quoting import fill
from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.values import Given
from rallypoint.core.settings import Setting

_NAMESPACE, _ACCOUNT = "default", "rallypoint"

RBAC = Command(
    "generate rbac",
    """\
usage: rallypoint generate rbac [options]

Print the rights that a pod needs for --rdzv-backend kubernetes, as YAML: a
service account, a role, and the binding of the two. Pods get them by
serviceAccountName in their specification.

  rallypoint generate rbac --namespace training | kubectl apply -f -
""",
    (
        (
            "Options",
            (
                Setting(
                    "--namespace",
                    "NAME",
                    "namespace of the jobs' records, usually that of the pods",
                    default=_NAMESPACE,
                ),
                Setting(
                    "--service-account",
                    "[NAMESPACE:]NAME",
                    "service account of the pods, with its namespace if that is not --namespace",
                    default=_ACCOUNT,
                ),
            ),
        ),
    ),
)


def text(scanned: Scanned) -> str:
    """Return the YAML of the pods' rights: service account, role and binding. Raises UsageError."""
    from rallypoint.register.kubernetes.parameters import is_label, is_subdomain

    def given(flag: str, default: str) -> Given:
        return scanned.get(flag) or Given(default, f"{flag} {default}")

    namespace, account = given("--namespace", _NAMESPACE), given("--service-account", _ACCOUNT)
    space, colon, name = account.text.rpartition(":")
    space = space if colon else namespace.text
    if not is_label(namespace.text):
        raise namespace.wrong("needs the name of a namespace, like training")
    whole = f"rallypoint-{space}-{name}"  # the binding's name
    if not is_label(space) or not is_subdomain(name) or not is_subdomain(whole):
        raise account.wrong("needs the name of a service account, like rallypoint or training:me")
    return fill("rbac.yaml", {"namespace": namespace.text, "space": space, "account": name})
