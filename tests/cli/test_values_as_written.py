"""Blanks, Windows line ends, `~` and addresses around values: one place takes them off, expands or
refuses them, for every option and its variable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.harness.command_line import MACHINE, refusal

from rallypoint.agent.environ import kept_jobs
from rallypoint.cli.main import main
from rallypoint.cli.options import RUN, parse_run
from rallypoint.cli.parser import Scanned, parse
from rallypoint.cli.values import given
from rallypoint.cli.watch.asking.find import read_job
from rallypoint.cli.watch.status import STATUS
from rallypoint.config import AgentConfig, RegisterConfig
from rallypoint.core.settings import FLAGS, Setting
from rallypoint.core.text import shown
from rallypoint.elastic.launcher import LaunchConfig
from rallypoint.elastic.launcher.api import agent_config
from rallypoint.errors import ParameterError, UsageError
from rallypoint.files import local_path
from rallypoint.process.logs.log_dir import LogDir

DIRTY = (" {}", "{} ", "{}\r", "\t{}\r\n", "\ufeff{}")
TEXTS = {"--log-line-prefix-template", "--duplicate-stdout-filters", "--duplicate-stderr-filters"}
TEXTS |= {"--progress-pattern"}
WITH_PATHS = [row for row in FLAGS.values() if row.kind in ("file", "path", "directory")]
NO_PATHS = ("s3://bucket/x", "gs://bucket/x", "http://host/x", "hdfs:///x", "file://other/x")
VALUES = {
    "--nnodes": "2:4",
    "--nproc-per-node": "auto",
    "--rdzv-backend": "c10d",
    "--rdzv-endpoint": "node-a:29400",
    "--rdzv-id": "mine",
    "--rdzv-conf": "timeout=3",
    "--max-restarts": "3",
    "--log-format": "json",
    "--event-log-handler": "jsonl:events",
    "--topology": "rack-7",
    "--drain-signal": "SIGUSR1",
    "--preempt-notice": "cmd:true",
    "--exit-code": "failed=17",
    "--no-restart-on": "3,4",
    "--store-allow": "10.0.0.0/8",
    "--logs-specs": "default",
    "--role": "trainer",
    "--output": "prefix",
    "--log-dir": "logs",
    "--redirects": "3",
    "--local-ranks-filter": "0",
    "--insecure": "1",
    "--quiet": "true",
}


def config(*words: str, **environ: str) -> AgentConfig:
    line = () if "--nnodes" in words or "PET_NNODES" in environ else ("--nnodes=2:4",)
    where = () if "--rdzv-endpoint" in words or "PET_RDZV_ENDPOINT" in environ else ("a",)
    added = [f"--rdzv-endpoint={each}" for each in where]
    return parse_run([*line, *added, *words, "train.py"], environ, MACHINE)


@pytest.mark.parametrize("flag", VALUES)
def test_blanks_and_windows_line_ends_around_a_value_are_none_of_it(flag: str) -> None:
    row, value = FLAGS[flag], VALUES[flag]
    clean = config(*([flag, value] if row.metavar else [flag]))
    for dirty in DIRTY:
        if row.metavar:
            assert config(flag, dirty.format(value)) == clean
        if row.env_name:
            assert config(**{row.env_name: dirty.format(value)}) == clean


@pytest.mark.parametrize("flag", sorted(TEXTS))
def test_blanks_belong_to_texts_but_line_ends_do_not(flag: str) -> None:
    assert given(FLAGS[flag], " a \r\n").text == " a "


def test_a_value_with_blanks_around_it_is_shown_in_quotes() -> None:
    line = "--rdzv-endpoint a train.py"
    assert refusal(line, PET_RDZV_BACKEND=" c11d\r").startswith(
        "PET_RDZV_BACKEND=' c11d\\r': known are"
    )
    with pytest.raises(UsageError, match=r"^--max-restarts '3 x ': needs a whole number"):
        parse_run(["--max-restarts", "3 x ", "train.py"], {}, MACHINE)
    assert [shown(text) for text in ("a b", "a ", " a", "")] == ["a b", "'a '", "' a'", ""]


@pytest.mark.parametrize("row", WITH_PATHS, ids=lambda row: row.flag)
def test_a_path_is_one_of_this_machine(row: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/users/me")
    for written, path in (
        ("~/x", "/users/me/x"),
        ("file:///data/x", "/data/x"),
        ("file:/data/x", "/data/x"),
        ("file://localhost/a%20b", "/a b"),
        ("FILE:///x", "/x"),
        ("x:y/z", "x:y/z"),
        ("./~", "./~"),
        (" /a b ", "/a b"),
    ):
        assert given(row, written).text == path
        assert given(row, written, by_variable=True).text == path
    for text in (*NO_PATHS, "$HOME/x", "${SCRATCH}/x"):
        with pytest.raises(UsageError) as caught:
            given(row, text)
        needs = "a directory" if row.kind == "directory" else "a file"
        assert str(caught.value).startswith(f"{row.flag} {text}: needs {needs}")


def test_all_that_takes_a_path_of_this_machine_is_known_by_its_kind() -> None:
    """A new option with such a word in its help needs a kind of path."""
    mixed = {"--rdzv-endpoint", "--preempt-notice"}
    named = {row.flag for row in FLAGS.values() if {"FILE", "DIR"} & {*_words(row.metavar)}}
    assert named - mixed == {row.flag for row in WITH_PATHS}


def _words(metavar: str) -> list[str]:
    return metavar.replace("|", " ").replace("/", " ").split()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "--event-log-handler jsonl:s3://b/x",
            "jsonl:s3://b/x: needs a file, and s3://... is none",
        ),
        ("--preempt-notice gs://b/x", "--preempt-notice gs://b/x: needs a file, and gs://... is"),
        ("--rdzv-backend file --rdzv-id j --rdzv-endpoint s3://b", "--rdzv-endpoint s3://b: needs"),
        (
            "--rdzv-backend etcd --rdzv-endpoint e --rdzv-id j --rdzv-conf cacert=s3://b",
            "s3://b: needs a file, and s3://",
        ),
    ],
)
def test_an_address_is_no_path_within_a_value(line: str, why: str) -> None:
    assert why in refusal(f"{line} train.py")


@pytest.mark.parametrize("text", ["file:///shared/jobs", "/shared/jobs", "~/jobs", "./jobs"])
def test_a_directory_without_its_back_end_is_told_which_one(text: str) -> None:
    assert refusal(f"--nnodes 2 --rdzv-endpoint {text} train.py") == (
        f"--rdzv-endpoint {text}: needs HOST:PORT; for a directory that all nodes share: "
        "--rdzv-backend file"
    )


def test_nodes_meet_in_the_same_directory_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/users/me")
    for written in ("file:///users/me/jobs", "~/jobs", "/users/me/jobs ", "/users/me/jobs\r"):
        words = ["--rdzv-backend=file", "--rdzv-endpoint", written, "--rdzv-id=j", "train.py"]
        assert parse_run(words, {}, MACHINE).rendezvous.register == RegisterConfig(
            "file", "/users/me/jobs"
        )


def test_a_program_meets_there_too(tmp_path: Path) -> None:
    def made(endpoint: str) -> AgentConfig:
        config = LaunchConfig(1, 2, 1, run_id="j", rdzv_backend="file", rdzv_endpoint=endpoint)
        return agent_config(config, "true", [])

    register = made(f"file://{tmp_path}/jobs").rendezvous.register
    assert register is not None
    assert register.where == f"{tmp_path}/jobs"
    with pytest.raises(ParameterError, match=r"^rdzv_endpoint='s3://b': needs a directory th"):
        made("s3://b")


def test_a_log_directory_is_no_address_in_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^--log-dir s3://b/logs: needs a directory"):
        LogDir.open("s3://b/logs", "job")
    assert not os.listdir(tmp_path)
    assert LogDir.open(f"file://{tmp_path}/logs", "job").root.startswith(f"{tmp_path}/logs/job_")


def test_a_job_is_found_in_a_directory_that_is_written_as_an_address(tmp_path: Path) -> None:
    words = [f" file://{tmp_path}", "--job", "j ", "--insecure"]
    scanned = parse(STATUS, words, {})
    (job,) = read_job(STATUS, scanned, given(FLAGS["--rdzv-endpoint"], scanned.words[0]))
    assert (job.run_id, job.register) == ("j", RegisterConfig("file", str(tmp_path)))


@pytest.mark.parametrize(
    ("conf", "why"),
    [
        ("rdzv_backend=c10d", "rdzv_backend is no key but an option: give --rdzv-backend c10d"),
        ("max-restarts=3", "max-restarts is no key but an option: give --max-restarts 3"),
        ("--lease=30", "--lease is no key but an option: give --lease 30"),
        ("insecure=1", "insecure is no key but an option: give --insecure"),
        ("backend=c10d", "backend is no key but an option: give --rdzv-backend c10d"),
        ("endpoint=a", "endpoint is no key but an option: give --rdzv-endpoint a"),
        ("id=7", "id is no key but an option: give --rdzv-id 7"),
        ("rdzv_timeout=900", "unknown key rdzv_timeout; did you mean timeout?"),
        ("joint_timeout=3", "unknown key joint_timeout; did you mean join_timeout?"),
    ],
)
def test_an_option_among_the_keys_of_rdzv_conf_is_told_how_to_be_given(conf: str, why: str) -> None:
    told = refusal(f"--nnodes 2 --rdzv-endpoint a --rdzv-conf timeout=3,{conf} train.py")
    assert told == f"--rdzv-conf timeout=3,{conf}: {why}"


@pytest.mark.parametrize("conf", ["timeout=3;join_timeout=4", "timeout=3 join_timeout=4"])
def test_keys_without_commas_between_them_are_told(conf: str) -> None:
    with pytest.raises(UsageError, match="needs commas between its keys: KEY=VALUE,KEY=VALUE"):
        parse_run(["--rdzv-endpoint=a", "--rdzv-conf", conf, "train.py"], {}, MACHINE)


def test_bytes_of_a_name_that_are_no_utf8_are_shown_as_a_shell_writes_them() -> None:
    with pytest.raises(UsageError, match=r"^--rdzv-id 'a\\xff': needs 1 to 255 bytes"):
        parse_run(["--rdzv-endpoint=a", "--rdzv-id", "a\udcff", "train.py"], {}, MACHINE)


def test_paths_of_other_machines_are_not_looked_up_in_this_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/users/me")
    assert given(FLAGS["--log-dir"], "~/x", elsewhere=True).text == "~/x"
    assert given(FLAGS["--token-file"], "~/x", elsewhere=True).text == "/users/me/x"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("~nobody-of-that-name/x", "~nobody-of-that-name is not a known home directory"),
        ("dbfs:/x", "dbfs:/... is none"),
        ("s3:/b/x", "s3:/... is none"),
        ("file:x", "file:///PATH, without a host"),
        ("$(pwd)/x", "the variable was not expanded by a shell"),
    ],
)
def test_no_directory_of_an_odd_name_is_made_for_what_is_no_path(text: str, why: str) -> None:
    assert why in refusal(f"--log-dir {text} train.py")


def test_a_path_stays_as_it_is_for_another_machine_and_with_a_colon_in_it() -> None:
    assert local_path("~/x", expand=False) == "~/x"
    assert local_path("~nobody-of-that-name/x", expand=False) == "~nobody-of-that-name/x"
    for path in ("a:b/c", "./s3:/b", "C:/x", "run:1"):
        assert local_path(path) == path


def test_blanks_behind_the_word_before_a_path_are_no_part_of_it() -> None:
    handler = parse_run(["--event-log-handler", "jsonl: e.jsonl\r", "train.py"], {}, MACHINE)
    assert handler.observe.event_log_handler == "jsonl:e.jsonl"


def test_an_endpoint_tells_that_no_shell_has_replaced_its_variable() -> None:
    for text in ("$HEAD:29400", "${HEAD}:29400", "$(hostname):29400"):
        assert refusal(f"--nnodes 2 --rdzv-endpoint {text} train.py").endswith(
            "needs a host name or an address: the variable was not expanded by a shell"
        )


@pytest.mark.parametrize("command", ["token --token-file", "verdict", "status --token-file"])
def test_a_command_that_reads_a_file_takes_its_path_as_run_does(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/users/me")
    where = ["localhost:1"] if command.startswith("status") else []
    assert main([*command.split(), "s3://bucket/x", *where]) == 2
    told = capsys.readouterr().err
    assert "s3://bucket/x: needs a file" in told
    assert "s3://... is none" in told
    assert main([*command.split(), " ~/none/x\r", *where]) == 2
    assert "/users/me/none/x" in capsys.readouterr().err


def test_a_program_of_a_variable_is_told_with_the_variable() -> None:
    with pytest.raises(UsageError, match=r"^PYTHON_EXEC=s3://p: needs a file of this machine"):
        parse_run(["train.py"], {"PYTHON_EXEC": "s3://p"}, MACHINE)


def test_the_state_directory_is_read_as_every_other_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/users/me")
    assert kept_jobs({"RALLYPOINT_STATE_DIR": " ~/s\r"}) == "/users/me/s/kept"
    with pytest.raises(UsageError, match=r"^RALLYPOINT_STATE_DIR=gs://s: needs a directory, and"):
        kept_jobs({"RALLYPOINT_STATE_DIR": "gs://s"})
    assert isinstance(parse(RUN, ["train.py"], {}), Scanned)
