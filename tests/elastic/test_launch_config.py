"""From torch's vocabulary of a launch to the settings of an agent."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.harness.engines import read_by_etcd, read_by_kubernetes
from tests.harness.refusals import refused_in_one_line

from rallypoint.cli.options import parse_run
from rallypoint.config import AgentConfig, Endpoint, HandlerConfig, RegisterConfig, StartMethod
from rallypoint.elastic.agent.embedded.entrypoint import entrypoint_name
from rallypoint.elastic.launcher import LaunchConfig
from rallypoint.elastic.launcher.api import agent_config
from rallypoint.elastic.rendezvous.api import RendezvousHandlerRegistry
from rallypoint.elastic.run import config_from_args, parse_args
from rallypoint.errors import ParameterError, UsageError
from rallypoint.register.etcd.parameters import EtcdConfig
from rallypoint.register.kubernetes.parameters import SERVICE_ACCOUNT, KubernetesConfig

AT = "127.0.0.1:29999"


def settings(least: int = 1, most: int = 1, **given: Any) -> AgentConfig:
    return agent_config(LaunchConfig(least, most, 2, **given), "true", ("a", 1))


def command_line(*words: str) -> AgentConfig:
    return parse_run([*words, "--nproc-per-node=2", "--no-python", "true"], {})


def test_one_node_alone_needs_nothing_and_is_nobody_elses() -> None:
    first, second = settings(), settings()
    assert first.rendezvous.endpoint == Endpoint("localhost", 0)
    assert first.rendezvous.is_host
    assert first.rendezvous.run_id != second.rendezvous.run_id
    assert settings(run_id="mine").rendezvous.run_id == "mine"
    assert first.workers.argv == ("true", "a", "1")
    assert first.workers.role == "default_role"
    assert first.rendezvous.max_restarts == 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ()),
        (
            {"rdzv_configs": {"last_call_timeout": 7, "keep_alive_interval": 2}},
            ("--rdzv-conf=last_call_timeout=7,keep_alive_interval=2",),
        ),
        ({"rdzv_timeout": 100}, ("--rdzv-conf=timeout=100",)),
        ({"rdzv_configs": {"rank": 1}}, ("--node-rank=1", "--rdzv-backend=c10d")),
        (
            {"rdzv_backend": "static", "rdzv_configs": {"rank": 1}},
            ("--rdzv-backend=static", "--node-rank=1"),
        ),
    ],
)
def test_R7_several_nodes_agree_with_those_of_the_command_line(
    given: dict[str, Any], words: tuple[str, ...]
) -> None:
    ours = settings(2, 2, rdzv_endpoint=AT, run_id="job", **given)
    theirs = command_line(
        f"--rdzv-endpoint={AT}", "--rdzv-id=job", "--nnodes=2", "--max-restarts=3", *words
    )
    assert ours.rendezvous.shared().differences(theirs.rendezvous.shared()) == ()
    assert ours.rendezvous.endpoint == theirs.rendezvous.endpoint
    assert ours.rendezvous.is_host == theirs.rendezvous.is_host
    assert ours.rendezvous.node_rank == theirs.rendezvous.node_rank
    assert ours.rendezvous.host_timeout_s == theirs.rendezvous.host_timeout_s


def test_R7_nodes_that_share_a_directory_agree_with_those_of_the_command_line() -> None:
    conf = {"join_timeout": 5, "lease": 30}
    ours = settings(
        *(2, 2),
        rdzv_backend="file",
        rdzv_endpoint="jobs",
        run_id="job",
        rdzv_configs=conf | {"rank": 1, "is_host": True},
        port_range=(5, 6),
    )
    theirs = command_line(
        *("--rdzv-backend=file", "--rdzv-endpoint=jobs", "--rdzv-id=job", "--nnodes=2"),
        *("--max-restarts=3", "--rdzv-conf=join_timeout=5", "--lease=30", "--port-range=5-6"),
    )
    assert ours.rendezvous.shared() == theirs.rendezvous.shared()
    assert ours.rendezvous.register == theirs.rendezvous.register
    assert (ours.rendezvous.endpoint, ours.rendezvous.is_host) == (Endpoint("localhost", 0), None)
    assert ours.rendezvous.register == RegisterConfig("file", os.path.abspath("jobs"), ports=(5, 6))
    assert not ours.access.insecure


def test_an_etcd_is_chosen_as_by_the_command_line() -> None:
    conf = {"join_timeout": 5, "protocol": "https", "cacert": "ca", "user": "u", "password": "p"}
    etcd = {"rdzv_backend": "etcd", "rdzv_endpoint": "e1,e2:5", "run_id": "job"}
    ours = settings(2, 2, **etcd, rdzv_configs=conf).rendezvous
    assert read_by_etcd(ours.register) == EtcdConfig(
        ("e1:2379", "e2:5"), "https", user="u", password="p", cacert=os.path.abspath("ca")
    )
    assert ours.join_timeout_s == 5
    assert "'p'" not in repr(ours.register)
    given = "join_timeout=5,protocol=https,cacert=ca,user=u,password_file=f"
    words = ("--rdzv-backend=etcd", "--rdzv-endpoint=e1,e2:5", "--rdzv-id=job", "--nnodes=2")
    args = parse_args([*words, f"--rdzv-conf={given}", "--no-python", "true"])
    made, *_ = config_from_args(args)
    theirs = command_line(*words, f"--rdzv-conf={given}").rendezvous
    assert settings_of(made).rendezvous.register == theirs.register


def settings_of(made: LaunchConfig) -> AgentConfig:
    """What a program of two nodes gets that takes over where a command line has nodes meet."""
    return settings(
        *(2, 2),
        rdzv_backend=made.rdzv_backend,
        rdzv_endpoint=made.rdzv_endpoint,
        run_id=made.run_id,
        rdzv_configs=made.rdzv_configs,
    )


def test_kubernetes_is_chosen_as_by_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    for given in ({}, {"server": "https://h:6443", "service_account": "sa"}):
        ours = settings(
            *(2, 2),
            rdzv_backend="kubernetes",
            rdzv_endpoint="training",
            run_id="job",
            rdzv_configs={**given, "join_timeout": 5},
        )
        words = ["--rdzv-backend=kubernetes", "--rdzv-endpoint=training", "--rdzv-id=job"]
        conf = ",".join(f"{key}={value}" for key, value in given.items())
        words += ["--nnodes=2", f"--rdzv-conf=join_timeout=5,{conf}"]
        made, *_ = config_from_args(parse_args([*words, "--no-python", "true"]))
        server = given.get("server", "https://10.0.0.1:443")
        account = os.path.abspath("sa") if given else SERVICE_ACCOUNT
        expected = KubernetesConfig(server, "training", account)
        for each in (ours, command_line(*words), settings_of(made)):
            assert read_by_kubernetes(each.rendezvous.register) == expected
            assert each.rendezvous.join_timeout_s == 5


def test_a_backend_that_the_program_has_registered_gets_its_configuration_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = RendezvousHandlerRegistry()
    registry.register("mine", lambda params: pytest.fail("made before the launch"))
    monkeypatch.setattr("rallypoint.elastic.rendezvous.api.rendezvous_handler_registry", registry)
    made = settings(rdzv_backend="mine", rdzv_endpoint="here")
    assert made.rendezvous.handler == HandlerConfig("mine", "here")
    several = settings(1, 2, rdzv_backend="mine", rdzv_endpoint="x", rdzv_configs={"a": 1})
    assert several.rendezvous.handler is not None
    assert (several.rendezvous.handler.backend, several.rendezvous.handler.endpoint) == (
        "mine",
        "x",
    )
    assert str(several.rendezvous.handler.conf) == "(('a', 1),)", "numbers stay numbers"
    args = parse_args(["--rdzv-backend=mine", "--rdzv-endpoint=here", "--no-python", "true"])
    config, *_ = config_from_args(args)
    assert (config.rdzv_backend, config.rdzv_endpoint) == ("mine", "here")


def test_one_grace_for_every_stop() -> None:
    usual, given = settings().stop, settings(shutdown_timeout=3).stop
    assert (usual.shutdown_grace_s, usual.restart_grace_s) == (25.0, 5.0)
    assert (given.shutdown_grace_s, given.restart_grace_s) == (3.0, 3.0)


def test_the_variable_of_torch_gives_the_grace_where_the_program_gives_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert LaunchConfig(1, 1, 1).shutdown_timeout == 25
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600")
    config = LaunchConfig(1, 1, 1)
    assert config.shutdown_timeout == 600
    for each in (config, replace(config, max_restarts=7)):
        stop = agent_config(each, "true", ()).stop
        assert (stop.shutdown_grace_s, stop.restart_grace_s) == (600.0, 5.0)
    assert settings(shutdown_timeout=3).stop.shutdown_grace_s == 3.0
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon")
    with pytest.raises(ParameterError) as refused:
        LaunchConfig(1, 1, 1)
    assert str(refused.value) == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT='soon': needs a number of seconds"
    assert LaunchConfig(1, 1, 1, shutdown_timeout=3).shutdown_timeout == 3


def test_a_drain_and_a_hang_have_the_times_of_the_command_line() -> None:
    usual, given = settings(), settings(drain_deadline=90, hang_timeout=300)
    assert (usual.stop.drain_deadline, usual.rendezvous.hang_timeout_s) == (25.0, 0.0)
    assert (given.stop.drain_deadline, given.rendezvous.hang_timeout_s) == (90.0, 300.0)


def test_progress_is_read_where_a_pattern_is_given() -> None:
    usual, given = settings(), settings(progress_pattern="hf-trainer")
    assert (usual.output.progress_pattern, usual.workers.unbuffered) == ("", False)
    assert (given.output.progress_pattern, given.workers.unbuffered) == ("hf-trainer", True)


def test_A13_variables_are_kept_by_their_names() -> None:
    given = settings(keep_env=["SLURM_PROCID", "PMI_*"])
    assert given.workers.keep_env == ("SLURM_PROCID", "PMI_*")
    assert settings().workers.keep_env == ()


def test_A14_styles_are_as_by_the_command_line() -> None:
    given = settings(env_style=["mpi", "jax", "torch"]).rendezvous
    assert given.env_styles == command_line("--env-style=jax,mpi").rendezvous.env_styles
    assert (given.env_styles, settings().rendezvous.env_styles) == (("jax", "mpi"), ())


def test_a_history_and_equal_failures_are_as_by_the_command_line(tmp_path: Path) -> None:
    given = settings(history=tmp_path / "jobs", max_no_progress=3)
    theirs = command_line(f"--history={tmp_path}/jobs", "--max-no-progress=3")
    assert given.observe.history == theirs.observe.history == f"{tmp_path}/jobs"
    assert given.rendezvous.max_no_progress == theirs.rendezvous.max_no_progress == 3
    usual = settings()
    assert (usual.observe.history, usual.rendezvous.max_no_progress) == (None, 0)


def test_the_type_of_store_is_torchs_default_however_it_is_written() -> None:
    given = {"rdzv_endpoint": AT, "rdzv_configs": {"store_type": " TCP"}}
    assert settings(2, 2, **given).rendezvous.endpoint == Endpoint("127.0.0.1", 29999)
    given = {"rdzv_endpoint": AT, "rdzv_configs": {"store_type": "file"}}
    with refused_in_one_line(ParameterError, f"rdzv_endpoint='{AT}': store_type=file needs a path"):
        settings(2, 2, **given)


def test_signals_are_a_list_of_names() -> None:
    assert settings(signals_to_handle="SIGTERM, SIGUSR1").stop.signals == ("SIGTERM", "SIGUSR1")


def test_functions_are_forked_from_a_prepared_process_unless_told_otherwise() -> None:
    def method(**given: Any) -> StartMethod:
        return agent_config(LaunchConfig(1, 1, 1, **given), print, ()).workers.method

    assert method() is StartMethod.FORKSERVER
    assert method(start_method="spawn") is StartMethod.SPAWN
    assert settings(start_method="fork").workers.method is StartMethod.SPAWN, "a command execs"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"shutdown_timeout": -1}, "shutdown_timeout=-1"),
        ({"hang_timeout": float("nan")}, "hang_timeout=nan"),
        ({"hang_timeout": "x"}, "hang_timeout='x': needs a number of seconds"),
        ({"drain_deadline": 1e9}, "drain_deadline=1000000000.0: must be 0 to 86400"),
        (
            {"most": 2, "rdzv_endpoint": "127.0.0.1:0"},
            "rdzv_endpoint='127.0.0.1:0': port 0 is any free port, which other nodes can't know",
        ),
        ({"drain_deadline": -5}, "drain_deadline=-5"),
        ({"progress_pattern": "step"}, "progress_pattern='step': there is no such profile; there"),
        ({"progress_pattern": 5}, "progress_pattern=5: "),
        ({"max_no_progress": -1}, "max_no_progress=-1: needs 0 or more"),
        ({"env_style": ["pytorch"]}, "env_style=['pytorch']: needs one of torch, jax, tensorflow"),
        ({"keep_env": "PMI_RANK"}, "keep_env='PMI_RANK': needs a list of names"),
        ({"keep_env": ["A=1"]}, "keep_env=['A=1']: needs names of variables, for example SLURM_PR"),
        ({"history": ""}, "history='': needs the name of a file"),
        ({"history": 5}, "history=5: needs a text"),
        ({"rdzv_backend": "etcd"}, "rdzv_backend='etcd': needs rdzv_endpoint HOST[:2379]"),
        ({"rdzv_backend": "kubernetes", "run_id": "job"}, "this is no pod (KUBERNETES_SERVICE"),
        (
            {"rdzv_backend": "kubernetes", "run_id": "job", "rdzv_endpoint": "a:5"},
            "a:5: is not the name of a namespace",
        ),
        ({"rdzv_backend": "file"}, "rdzv_backend='file': needs rdzv_endpoint DIR"),
        ({"rdzv_backend": "file", "rdzv_endpoint": "d"}, "rdzv_backend='file': a directory may"),
        (
            {"rdzv_backend": "file", "rdzv_endpoint": "d", "run_id": "j", "port_range": (9, 5)},
            "port_range=(9, 5): needs FIRST-LAST, from 1 to 65535",
        ),
        ({"rdzv_configs": {"rank": "first"}, "rdzv_endpoint": AT}, "'first'"),
        ({"rdzv_configs": {"join_timeout": "soon"}}, "join_timeout='soon'"),
        ({"rdzv_endpoint": "127.0.0.1:port"}, "port"),
        ({"numa_options": "moon"}, "numa_options='moon': needs a NumaOptions"),
        ({"role": ""}, "role '': needs 1 to 255 bytes"),
        ({"preload": "torch"}, "preload='torch': needs names of modules, as in preload=['torch']"),
        ({"preload": [5]}, "preload=[5]: needs"),
    ],
)
def test_a_mistake_is_one_line_with_the_value(given: dict[str, Any], says: str) -> None:
    with refused_in_one_line(UsageError, says):
        settings(**given)


def test_an_argument_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="the argument None of a command line"):
        agent_config(LaunchConfig(1, 1, 1), "true", (None,))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("/usr/bin/python3", "-u", "train.py", "x"), "train.py"),
        (("/usr/bin/python3", "-m", "package.train"), "package.train"),
        (("python3", "-c", "print()"), "python3 -c"),
        (("/opt/train", "x"), "train"),
    ],
)
def test_a_job_is_named_after_its_script(words: tuple[str, ...], name: str) -> None:
    assert entrypoint_name(words[0], words[1:]) == name
    assert entrypoint_name(words) == name


def test_health_checks_are_asked_for_by_torchs_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RALLYPOINT_INCARNATION", raising=False)
    assert settings().observe.health_port is None
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", "8080")
    assert settings().observe.health_port == 8080


@pytest.mark.parametrize("seconds", [-5, -0.1, float("nan")])
def test_a_grace_below_zero_is_refused_when_the_configuration_is_made(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"LaunchConfig\(shutdown_timeout=.*\): needs 0 or more"):
        LaunchConfig(1, 1, 1, shutdown_timeout=seconds)


def test_a_timeout_of_the_rendezvous_is_among_its_configuration_as_with_torch() -> None:
    given = {"timeout": 5, "read_timeout": 7}
    config = LaunchConfig(1, 1, 1, rdzv_timeout=9, rdzv_configs=given)
    assert config.rdzv_configs == {"timeout": 9, "read_timeout": 7}
    assert given["timeout"] == 5
    assert LaunchConfig(1, 1, 1).rdzv_configs == {}
