"""`--hang-timeout` with phases, `--signal-scope`, `--export-run-id`, and `store_type=file`."""

from __future__ import annotations

import pytest
from tests.harness.command_line import parse, refusal

from rallypoint.agent.environ import tracked_run_id
from rallypoint.config import RegisterConfig
from rallypoint.core.settings import SETTINGS_UNCOUNTED
from rallypoint.core.text import settings_unknown
from rallypoint.elastic.launcher.api import LaunchConfig, agent_config

PHASES = (("evaluation", 3600.0), ("start", 1800.0))


@pytest.mark.parametrize(
    ("given", "usual", "phases"),
    [
        ("300", 300.0, ()),
        ("300,start=1800,evaluation=3600", 300.0, PHASES),
        (" 300 , evaluation=3600, start=1.8e3,", 300.0, PHASES),
        ("300,start=1,start=2", 300.0, (("start", 2.0),)),
    ],
)
def test_A15_limits_of_phases_stand_behind_the_usual_one_in_any_order(
    given: str, usual: float, phases: tuple[tuple[str, float], ...]
) -> None:
    """On the command line, in the environment, and in a program."""
    for config in (
        parse("train.py", RALLYPOINT_HANG_TIMEOUT=given),
        agent_config(LaunchConfig(1, 1, 1, hang_timeout=given), "true", ()),
    ):
        assert config.rendezvous.hang_timeout_s == usual
        assert config.rendezvous.hang_phases == phases


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("start=1800", "needs SECONDS first, for all other phases: 300,start=1800"),
        ("300,start", "'start' is not KEY=VALUE"),
        ("300,600", "'600' is not KEY=VALUE"),
        ("300,start=soon", "needs a number of seconds"),
        ("300,start=0", "needs a number of seconds, more than 0"),
        ("300,a.b=5", "a.b is no phase: 1 to 24 letters, digits, _ or -"),
        ("x,start=5", "needs a number of seconds"),
        (",start=5", "needs a number of seconds"),
    ],
)
def test_A15_limits_of_phases_are_refused_with_the_whole_value(given: str, says: str) -> None:
    assert refusal(f"--hang-timeout {given} train.py") == f"--hang-timeout {given}: {says}"


def test_R7_A15_an_older_coordinator_that_would_ignore_the_limits_of_phases_is_refused() -> None:
    usual = parse("--hang-timeout 300 train.py").rendezvous.shared()
    phases = parse("--hang-timeout 300,start=1800 train.py").rendezvous.shared()
    assert settings_unknown(usual, SETTINGS_UNCOUNTED) == ""
    assert "ignores --hang-timeout: leave it out" in settings_unknown(phases, SETTINGS_UNCOUNTED)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--signal-scope group", "--signal-scope group: needs one of session, worker"),
        ("--export-run-id wandb,neptune", "--export-run-id wandb,neptune: needs one of wandb, "),
        (
            "--export-run-id wandb --nnodes 2 --rdzv-endpoint a",
            "--export-run-id wandb: needs --rdzv-id: without it, all jobs would log to one run",
        ),
        ("--rdzv-conf store_type=shm", "--rdzv-conf store_type=shm: needs one of tcp, file"),
        (
            "--nnodes 2 --rdzv-conf store_type=file",
            "store_type=file: needs --rdzv-endpoint PATH, the same on all nodes",
        ),
        (
            "--nnodes 2 --rdzv-conf store_type=file --rdzv-endpoint a:29400",
            "--rdzv-endpoint a:29400: store_type=file needs a path: as a file, this is ./a:29400",
        ),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(line: str, message: str) -> None:
    assert refusal(f"{line} train.py").startswith(message)


def test_R1_by_the_path_of_a_file_a_job_has_a_record_beside_it() -> None:
    by_path = "--rdzv-backend c10d --nnodes 2 --rdzv-endpoint jobs/x --rdzv-conf store_type=file"
    config = parse(f"{by_path},join_timeout=9 train.py")
    assert config.rendezvous.register == RegisterConfig("file", "/where/i/am/jobs/x.rallypoint")
    assert (config.rendezvous.run_id, config.rendezvous.join_timeout_s) == ("none", 9.0)
    assert config.notices == ()
    named = parse(f"{by_path} --rdzv-id mine train.py")
    assert named.rendezvous.run_id == "mine"
    program = LaunchConfig(
        *(2, 2, 1),
        rdzv_backend="c10d",
        rdzv_endpoint="/jobs/x",
        rdzv_configs={"store_type": "file"},
    )
    made = agent_config(program, "true", ()).rendezvous.register
    assert made == RegisterConfig("file", "/jobs/x.rallypoint")
    alone = parse("--rdzv-backend c10d --rdzv-conf store_type=file train.py").rendezvous
    assert (alone.register, alone.endpoint.port) == (None, 0)


@pytest.mark.parametrize(
    ("run_id", "tracked"),
    [
        ("llama-7b_2", "llama-7b_2"),
        ("x" * 64, "x" * 64),
        ("a/b", "a-b-"),
        ("a:b", "a-b-"),
        ("größe", "gr--e-"),
        ("x" * 65, "x" * 55 + "-"),
    ],
)
def test_A16_every_run_id_becomes_one_that_trackers_take_and_no_two_are_one(
    run_id: str, tracked: str
) -> None:
    found = tracked_run_id(run_id)
    assert found.startswith(tracked)
    assert len(found) <= 64
    assert found == run_id or len(found) == len(tracked) + 8
    assert tracked_run_id("a/b") != tracked_run_id("a:b")
