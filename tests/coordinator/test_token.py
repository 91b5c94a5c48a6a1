"""F8: where the token comes from. Real files in a temporary directory; no clock, no network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.harness.narrowed import known, of_kind

from rallypoint.cli import token as token_command
from rallypoint.cli.access import with_own_token_only
from rallypoint.cli.main import main
from rallypoint.config import AccessConfig, AgentConfig, RendezvousConfig, WorkerConfig
from rallypoint.coordinator.client.token import (
    JobToken,
    find_or_make_token,
    find_token,
    no_token_error,
    parse_token,
    read_token,
)
from rallypoint.errors import AccessError, ExitClass, UsageError

SECRET = "0123456789abcdef" * 4


def _write(path: Path, text: str = SECRET + "\n", mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def _user_file(home: Path) -> Path:
    return home / ".config" / "rallypoint" / "token"


def _refused(home: Path | None, token_file: str | None = None, create: bool = False) -> str:
    with pytest.raises(AccessError) as caught:
        find_token(token_file, None, home, create)
    line = str(caught.value)
    assert line.isprintable()
    assert SECRET[:8] not in line
    assert caught.value.exit_class is ExitClass.USAGE
    return line


def test_F8_the_search_order_is_flag_environment_home(tmp_path: Path) -> None:
    flagged = _write(tmp_path / "flagged", "aa" * 32)
    _write(_user_file(tmp_path), "cc" * 32)
    found = [
        find_token(str(flagged), "bb" * 32, tmp_path, create=False),
        find_token(None, "bb" * 32, tmp_path, create=False),
        find_token(None, "", tmp_path, create=False),
        find_token(None, None, tmp_path, create=False),
    ]
    values = [token.value[:1].hex() for token in found if token is not None]
    assert values == ["aa", "bb", "cc", "cc"]
    assert known(found[1]).source == "RALLYPOINT_TOKEN"


def test_F8_settings_say_that_there_is_a_token_and_never_which() -> None:
    access = AccessConfig(token_text=SECRET)
    launch = AgentConfig(
        rendezvous=RendezvousConfig(run_id="job"),
        workers=WorkerConfig(argv=("true",)),
        access=access,
    )
    assert repr(access) == "AccessConfig(token_file=None, token_text=given, insecure=False)"
    for shown in (str(access), repr(launch), str(launch), f"{[access]}"):
        assert "token_text=given" in shown
        assert SECRET[:8] not in shown
    assert "token_text=none" in repr(AccessConfig(token_file="/run/token"))


def test_F8_a_joiner_finds_nothing_and_makes_nothing(tmp_path: Path) -> None:
    assert find_token(None, None, tmp_path, create=False) is None
    assert list(tmp_path.iterdir()) == []
    line = str(no_token_error("node-a:29400"))
    assert "rallypoint token" in line
    assert "--token-file" in line


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("name", ["absent", "no folder/token", "broken\nname", "caf\udce9"])
def test_F8_a_named_file_that_does_not_exist_is_never_made(
    tmp_path: Path, create: bool, name: str
) -> None:
    """A mistyped name would give every node a token of its own."""
    _write(_user_file(tmp_path))
    line = _refused(tmp_path, str(tmp_path / name), create)
    assert "there is no such file" in line
    assert "`rallypoint token --token-file " in line
    assert [entry.name for entry in tmp_path.iterdir()] == [".config"]


def test_F8_the_first_node_makes_a_private_token_that_others_find(tmp_path: Path) -> None:
    made = find_token(None, None, tmp_path, create=True)
    path = _user_file(tmp_path)
    assert made is not None
    assert len(made.value) == 32
    assert path.stat().st_mode & 0o7777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["token"]
    assert path.stat().st_nlink == 1
    assert find_token(None, None, tmp_path, create=True) == made
    assert find_token(None, None, tmp_path, create=False) == made


def test_F8_a_token_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        find_or_make_token(str(tmp_path / "token"))
    finally:
        os.umask(before)
    assert (tmp_path / "token").stat().st_mode & 0o7777 == 0o600


def test_F8_no_two_tokens_are_equal(tmp_path: Path) -> None:
    tokens = [find_or_make_token(str(tmp_path / name)) for name in "abc"]
    assert len({token.value for token in tokens}) == 3


def test_F8_eight_processes_that_race_agree_on_one_token(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from rallypoint.coordinator.client.token import find_token\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(find_token(None, None, Path(sys.argv[1]), create=True).text())\n"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    try:
        for racer in racers:
            assert known(racer.stdout).readline() == "ready\n"
        for racer in racers:
            known(racer.stdin).write("go\n")
            known(racer.stdin).flush()
        said = {racer.communicate(timeout=60)[0] for racer in racers}
        assert [racer.returncode for racer in racers] == [0] * 8
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    assert len(said) == 1
    assert said == {_user_file(tmp_path).read_text()}
    assert [entry.name for entry in _user_file(tmp_path).parent.iterdir()] == ["token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o666])
def test_F8_a_token_open_to_others_is_refused_with_the_chmod(tmp_path: Path, mode: int) -> None:
    path = _write(_user_file(tmp_path), mode=mode)
    line = _refused(tmp_path)
    assert f"mode {mode:04o}" in line
    assert f"chmod 600 {path}" in line


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_F8_a_private_token_is_taken(tmp_path: Path, mode: int) -> None:
    path = _write(tmp_path / "token", mode=mode)
    assert find_token(str(path), None, None, create=False) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_F8_a_token_of_somebody_else_is_refused_with_the_chown(tmp_path: Path) -> None:
    path = _write(_user_file(tmp_path))
    os.chown(path, 12345, -1)
    line = _refused(tmp_path)
    assert "belongs to user 12345, not to you (user 0)" in line
    assert f"chown 0 {path}" in line


def test_F8_a_pipe_or_a_directory_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    assert "not a regular file" in _refused(None, str(pipe))
    assert "not a regular file" in _refused(None, str(tmp_path))


def test_F8_a_missing_home_is_one_line_with_the_fix(tmp_path: Path) -> None:
    for home in (tmp_path / "nowhere", None):
        for create in (True, False):
            line = _refused(home, create=create)
            assert "no home directory" in line
            assert "RALLYPOINT_TOKEN" in line
    assert list(tmp_path.iterdir()) == [], "a home directory is never made"


def test_F8_a_home_that_can_not_be_written_is_one_line_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / ".config").write_text("a file in the way, which stops root too")
    line = _refused(tmp_path, create=True)
    assert f"can't create {tmp_path}/.config/rallypoint" in line
    assert "--token-file" in line


def test_F8_a_token_file_in_a_missing_folder_is_one_line_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(AccessError) as caught:
        find_or_make_token(str(tmp_path / "absent" / "token"))
    line = str(caught.value)
    assert "No such file or directory" in line
    assert "RALLYPOINT_TOKEN" in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not hexadecimal"),
        ("correct horse battery staple", "not hexadecimal"),
        ("g" * 64, "not hexadecimal"),
        ("a" * 63, "not hexadecimal"),
        ("ab " * 32, "not hexadecimal"),
        ("job-", "not hexadecimal"),
        ("ab" * 15, "has 120 bits, but at least 128"),
        ("job-" + "ab" * 15, "has 120 bits, but at least 128"),
    ],
)
def test_F8_a_weak_or_malformed_token_is_refused_unseen(text: str, says: str) -> None:
    with pytest.raises(AccessError, match=says) as caught:
        parse_token(text, "RALLYPOINT_TOKEN")
    assert "RALLYPOINT_TOKEN" in str(caught.value)
    assert not text or text not in str(caught.value)


def test_F8_tokens_of_128_bits_and_in_capitals_are_taken() -> None:
    assert parse_token("AB" * 16, "x").value == b"\xab" * 16


def test_F8_a_token_never_prints_itself() -> None:
    token = parse_token(SECRET, "RALLYPOINT_TOKEN")
    for shown in (repr(token), str(token), f"{token}", f"{[token]}"):
        assert "RALLYPOINT_TOKEN" in shown
        assert SECRET not in shown
        assert repr(token.value) not in shown


def test_F8_a_jobs_token_opens_what_the_users_token_opens_for_that_job() -> None:
    mine = parse_token(SECRET, "mine")
    given = of_kind(JobToken, parse_token(mine.text_for_job("a"), "given"))
    assert given.opens_one_job
    assert given.for_job("a") == mine.for_job("a")
    assert given.for_job("b") != mine.for_job("b")
    assert mine.value not in (mine.for_job("a"), mine.for_job("b"))
    assert SECRET not in mine.text_for_job("a")


def descriptor_with(content: bytes) -> int:
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    return read


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_F8_a_token_is_read_from_a_descriptor_which_is_closed_then() -> None:
    fd = descriptor_with(SECRET.encode() + b"\n")
    assert read_token(fd) == JobToken(f"--token-fd {fd}", bytes.fromhex(SECRET))
    assert not is_open(fd)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty: write the output of `rallypoint token` to it"),
        (b"\n", "it is empty"),
        (b"no token", "is not hexadecimal"),
        (b"\xff\x00", "is not hexadecimal"),
        (b"ab", "has 8 bits"),
        (b"ab" * 600, "more than 1024 bytes: this is not a token"),
    ],
)
def test_F8_a_descriptor_without_a_token_is_told_in_one_line(content: bytes, says: str) -> None:
    fd = descriptor_with(content)
    with pytest.raises(AccessError) as caught:
        read_token(fd)
    assert f"--token-fd {fd}" in str(caught.value)
    assert says in str(caught.value)
    assert str(caught.value).isprintable()
    assert not is_open(fd)


def test_F8_a_descriptor_that_can_not_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    closed = os.dup(folder)
    os.close(closed)
    says = {folder: "Is a directory", closed: "Bad file descriptor", -1: "needs 0, or", 2: "from 3"}
    for fd, why in {**says, 2**31: "needs 0, or", 2**80: "needs 0, or"}.items():
        with pytest.raises(AccessError, match=f"--token-fd {fd}: .*{why}"):
            read_token(fd)
    assert is_open(2)


def test_the_token_command_derives_from_a_descriptors_token(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fd = descriptor_with(SECRET.encode())
    assert token_command.run(["--token-fd", str(fd), "--run-id", "a"]) == 0
    assert capsys.readouterr().out == parse_token(SECRET, "x").text_for_job("a") + "\n"


def test_F8_an_agent_of_the_command_line_gets_the_token_of_its_job_alone() -> None:
    def access(**given: Any) -> AccessConfig:
        rendezvous, workers = RendezvousConfig(run_id="a"), WorkerConfig(argv=("w",))
        config = AgentConfig(rendezvous=rendezvous, workers=workers, access=AccessConfig(**given))
        return with_own_token_only(config).access

    of_job = {text: parse_token(text, "x").text_for_job("a") for text in (SECRET, "cd" * 32)}
    fd = descriptor_with(b"cd" * 32)
    assert access(token_text=SECRET) == AccessConfig(token_text=of_job[SECRET])
    assert access(token_text=SECRET, token_fd=fd) == AccessConfig(token_text=of_job["cd" * 32])
    assert access(token_text="none", insecure=True) == AccessConfig(insecure=True)
    assert access(token_text=SECRET, token_file="f") == AccessConfig(token_file="f")


def test_the_token_command_prints_and_creates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "token"
    assert token_command.run(["--token-file", str(path)]) == 0
    text = capsys.readouterr().out
    assert text == path.read_text()
    assert token_command.run(["--token-file", str(path), "--run-id", "a"]) == 0
    of_job = capsys.readouterr().out
    assert of_job == parse_token(text, "x").text_for_job("a") + "\n"
    assert of_job != text


def test_the_token_command_takes_the_environments_token(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RALLYPOINT_TOKEN", SECRET)
    assert token_command.run([]) == 0
    assert capsys.readouterr().out == SECRET + "\n"


def test_the_token_command_does_not_derive_from_a_jobs_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RALLYPOINT_TOKEN", "job-" + SECRET)
    with pytest.raises(UsageError, match="already valid for one job only"):
        token_command.run(["--run-id", "b"])


def test_the_token_commands_help_says_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "--help"]) == 0
    said = capsys.readouterr().out
    for word in ("--run-id", "--token-file", "password", "0600"):
        assert word in said
