"""What a person is told of an etcd that can't be used, and of users and TLS that can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError

import pytest
from tests.etcd.servers import Etcd, add_users
from tests.harness.certificates import make_certificates
from tests.harness.cluster import free_port
from tests.harness.commands import is_one_line_with
from tests.harness.engines import etcd_engine
from tests.harness.http_thread import HttpThread, SaysHello
from tests.harness.narrowed import known
from tests.harness.one_agent import OneAgent, agent

from rallypoint.errors import RendezvousConnectionError
from rallypoint.register.etcd.backend import key_of
from rallypoint.register.etcd.parameters import EtcdConfig, read_etcd

WORKER = "import os\ntell('rank', os.environ['RANK'])\ntell('env', *os.environ)\n"


def run(folder: Path, endpoints: str, conf: str = "", code: int = 2) -> OneAgent:
    """To its end."""
    words = ["--rdzv-backend=etcd", "--rdzv-id=job", "--local-addr=127.0.0.1"]
    words += [f"--rdzv-endpoint={endpoints}", *([f"--rdzv-conf={conf}"] if conf else [])]
    folder.mkdir(exist_ok=True)
    with agent(folder, *words, program=WORKER) as ended:
        assert ended.wait() == code, ended.err
    assert ended.told("rank") == ([] if code else ["0"])
    return ended


def test_nothing_there_is_waited_for_and_said(tmp_path: Path) -> None:
    where = f"127.0.0.1:{free_port()}"
    *waiting, last = run(tmp_path, where, "join_timeout=0.3", code=75).err.splitlines()
    assert is_one_line_with(last, f"--rdzv-endpoint {where}: waited 0.3 s", "Connection refused")
    assert [line for line in waiting if f"waiting for etcd at {where}" in line] == waiting


def test_an_etcd_without_space_is_waited_for_and_said(tmp_path: Path) -> None:
    (tmp_path / "etcd").mkdir()
    with Etcd(tmp_path / "etcd", 1, "--quota-backend-bytes", "100000") as full:
        with suppress(HTTPError):
            while True:
                full.put("/somebody's", b"x" * 50_000)
        ended = run(tmp_path, full.endpoints, "join_timeout=0.3", code=75)
        assert full.keys("/rallypoint") == {}
    last = ended.err.splitlines()[-1]
    assert is_one_line_with(last, "etcd has no space left: compact and defragment it")


def test_another_web_server_is_no_etcd(tmp_path: Path) -> None:
    with HttpThread(SaysHello) as server:
        ended = run(tmp_path, f"127.0.0.1:{server.port}")
    assert is_one_line_with(ended.err, "it is no etcd: it answers 200, 'hello'")


def test_an_etcd_without_its_gateway_is_one_line(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path, 1, "--enable-grpc-gateway=false")
    etcd.start(0)
    try:
        etcd.wait_listening()
        ended = run(tmp_path, etcd.endpoints)
    finally:
        etcd.kill(0)
    assert is_one_line_with(
        ended.err, "there is no JSON gateway of etcd's version 3: it is no etcd"
    )


def test_foreign_data_is_named_and_left(tmp_path: Path, etcd: Etcd, config: EtcdConfig) -> None:
    key = key_of(config.prefix, "job")
    etcd.put(key, b"somebody's")
    ended = run(tmp_path, etcd.endpoints, f"etcd_prefix={config.prefix}")
    assert is_one_line_with(ended.err, key, "was not written by Rallypoint", "another etcd_prefix")
    assert etcd.keys(config.prefix) == {key: b"somebody's"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """Knows `root`, `user`, who may use /rallypoint, and two who may use nothing,
    and `reader`; the password of
    each is its name."""
    with Etcd(tmp_path_factory.mktemp("guarded")) as etcd:
        add_users(etcd, user="READWRITE", other="", idle="", reader="READ")
        yield etcd


@pytest.mark.parametrize(
    ("user", "password", "says"),
    [
        ("", "", "etcd wants a user (etcdserver: user name is empty): give user=NAME"),
        ("user", "wrong", "'user' with this password: see what is in password_file=/"),
        ("user", "", "etcd does not know the user 'user' without a password: give password_file="),
        ("nobody", "user", "etcd does not know the user 'nobody' with this password"),
        ("idle", "idle", "the user 'idle' may not use the keys under /rallypoint: grant it"),
        ("reader", "reader", "grant it a role with read and write permission there"),
    ],
)
def test_a_user_that_etcd_refuses_is_one_line(
    tmp_path: Path, guarded: Etcd, user: str, password: str, says: str
) -> None:
    file = tmp_path / "password"
    file.write_text(password + "\n")
    conf = f"user={user}" if user else ""
    if password:
        conf += f",password_file={file}"
    assert is_one_line_with(run(tmp_path, guarded.endpoints, conf).err, says)


def test_a_user_that_etcd_knows_leads_and_its_password_is_shown_to_nobody(
    tmp_path: Path, guarded: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a file, or by a variable, which workers do not get."""
    file = tmp_path / "password"
    file.write_text("user\n")
    run(tmp_path / "file", guarded.endpoints, f"user=user,password_file={file}", code=0)
    words = ["--rdzv-backend=etcd", "--rdzv-id=other", "--local-addr=127.0.0.1"]
    words += [f"--rdzv-endpoint={guarded.endpoints}", "--rdzv-conf=user=user"]
    (tmp_path / "variable").mkdir()
    given = {"RALLYPOINT_ETCD_PASSWORD": "user"}
    with agent(tmp_path / "variable", *words, program=WORKER, env=given) as ended:
        assert ended.wait() == 0, ended.err
    assert "RALLYPOINT_ETCD_PASSWORD" not in ended.out


def test_a_password_may_be_changed_while_a_job_runs(tmp_path: Path, guarded: Etcd) -> None:
    """It is read again when what was shown before counts no more."""
    file = tmp_path / "password"
    file.write_text("other")
    root = guarded.call("/v3/auth/authenticate", {"name": "root", "password": "root"})["token"]
    guarded.call("/v3/auth/user/grant", {"user": "other", "role": "READWRITE"}, token=root)
    conf = {"user": "other", "password_file": str(file)}
    register = etcd_engine(read_etcd(guarded.endpoints, conf, str), "changed").open("changed", None)
    after = known(register.set_state(b"1"))
    change = {"name": "other", "password": "changed"}
    guarded.call("/v3/auth/user/changepw", change, token=root)
    with pytest.raises(RendezvousConnectionError, match="does not know the user 'other'"):
        register.get_state()
    file.write_text("changed\n")
    again = known(register.set_state(b"2", after[1]))
    assert again[2]


# TLS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Iterator[Etcd]:
    """By TLS alone, and only for who shows a certificate."""
    own = ("--cert-file", "server.pem", "--key-file", "server.key", "--trusted-ca-file", "ca.pem")
    words: Sequence[str] = [str(files / word) if "." in word else word for word in own]
    folder = tmp_path_factory.mktemp("secret")
    with Etcd(folder, 1, *words, "--client-cert-auth", scheme="https") as etcd:
        etcd.wait_listening()
        yield etcd


def test_a_job_by_tls(tmp_path: Path, secret: Etcd, files: Path) -> None:
    conf = f"protocol=https,cacert={files}/ca.pem,cert={files}/client.pem,key={files}/client.key"
    run(tmp_path, secret.endpoints, conf, code=0)


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ("protocol=https", "its certificate is not trusted: "),
        ("protocol=https,cacert={}/ca.pem", "TLS with it fails: "),
        ("protocol=https,cacert={}/none.pem", "none.pem: can't be used: No such file"),
        (
            "protocol=https,cacert={0}/ca.pem,cert={0}/client.pem,key={0}/server.key",
            "client.pem with key=",
        ),
    ],
    ids=["unknown", "no certificate", "no file", "another key"],
)
def test_tls_that_can_not_be_used_is_one_line(
    tmp_path: Path, secret: Etcd, files: Path, conf: str, says: str
) -> None:
    ended = run(tmp_path, secret.endpoints, conf.format(files))
    # A server that refuses a certificate may close the connection before it is heard to say so.
    last = ended.err.splitlines()[-1]
    assert is_one_line_with(last, f"--rdzv-endpoint {secret.endpoints}: ", says)


def test_tls_that_was_forgotten_is_hinted_at(tmp_path: Path, secret: Etcd) -> None:
    ended = run(tmp_path, secret.endpoints, "join_timeout=2", code=75)
    assert is_one_line_with(ended.err.splitlines()[-1], "(does it want protocol=https?)")


def test_tls_that_etcd_does_not_speak_is_hinted_at(tmp_path: Path, etcd: Etcd) -> None:
    ended = run(tmp_path, etcd.endpoints, "protocol=https,join_timeout=2", code=75)
    assert is_one_line_with(ended.err.splitlines()[-1], "(does it want protocol=http?)")
