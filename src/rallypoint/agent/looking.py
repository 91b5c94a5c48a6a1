"""The command that a person types to look at a job of several nodes, from any machine. Pure."""

from __future__ import annotations

from shlex import quote

from rallypoint.config import AccessConfig, RegisterConfig, RendezvousConfig
from rallypoint.core.settings import UNNAMED_RUN_ID


def look_command(rendezvous: RendezvousConfig, access: AccessConfig) -> str:
    """`rallypoint status n1:29400 --job digits`, as the nodes of the job were started."""
    register = rendezvous.register
    words = [str(rendezvous.endpoint)] if register is None else _place(register)
    if rendezvous.run_id != UNNAMED_RUN_ID:
        words += ["--job", rendezvous.run_id]
    if access.insecure:
        words.append("--insecure")
    elif access.token_file:
        words += ["--token-file", access.token_file]
    return " ".join(["rallypoint status", *map(quote, words)])


def _place(register: RegisterConfig) -> list[str]:
    if register.etcd is not None:
        etcd = register.etcd
        conf = {"protocol": etcd.protocol, "etcd_prefix": etcd.prefix, "user": etcd.user}
        conf |= {"password_file": etcd.password_file, "cacert": etcd.cacert}
        conf |= {"cert": etcd.cert, "key": etcd.key}
        usual = {"protocol": "http", "etcd_prefix": "/rallypoint"}
        said = [f"{k}={text}" for k, text in conf.items() if text and usual.get(k) != text]
        words = ["--rdzv-backend", "etcd", "--rdzv-endpoint", str(etcd)]
        return [*words, "--rdzv-conf", ",".join(said)] if said else words
    if register.kubernetes is not None:
        namespace = register.kubernetes.namespace
        words = ["--rdzv-backend", "kubernetes"]
        return [*words, "--rdzv-endpoint", namespace] if namespace else words
    return [register.directory]
