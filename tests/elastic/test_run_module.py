"""`rallypoint.elastic.run`: what frameworks import from `torch.distributed.run`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.harness.plug_ins import install
from tests.harness.programs import run_python

from rallypoint.agent.output_files import logs_specs
from rallypoint.cli.main import main as command
from rallypoint.cli.options import parse_run
from rallypoint.config import AgentConfig, OutputConfig
from rallypoint.elastic.launcher.api import agent_config
from rallypoint.elastic.run import (
    LaunchConfig,
    Std,
    config_from_args,
    determine_local_world_size,
    get_args_parser,
    main,
    parse_args,
    parse_min_max_nnodes,
    run,
    run_script_path,
)
from rallypoint.errors import UsageError
from rallypoint.process.logs.specs import DefaultLogsSpecs

SCRIPT = ("--no-python", "true", "a", "--b")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("PET_", "RALLYPOINT_", "TORCH")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def asked(args: argparse.Namespace) -> AgentConfig:
    """The settings of the agent that `run(args)` starts."""
    config, command, arguments = config_from_args(args)
    return agent_config(config, command, arguments)


def same(config: AgentConfig, words: tuple[str, ...]) -> None:
    """But for where output goes, as a program's workers have its own, and for what is kept."""
    theirs = parse_run([*words, *SCRIPT])
    observe = replace(config.observe, keep_in="")
    ours = replace(config, output=OutputConfig(), notices=(), observe=observe)
    observe = replace(theirs.observe, keep_in="")
    theirs = replace(theirs, output=OutputConfig(), notices=(), observe=observe)
    if theirs.rendezvous.endpoint.port == 0 and "--rdzv-id=job" not in words:
        named = replace(theirs.rendezvous, run_id=ours.rendezvous.run_id)
        theirs = replace(theirs, rendezvous=named)
    assert ours == theirs


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--standalone", "--nproc_per_node=3", "--max-restarts=2"),
        ("--nnodes=2", "--rdzv-endpoint=node-a", "--rdzv-id=job", "--role=trainer"),
        ("--nnodes=1:4", "--rdzv_backend=c10d", "--rdzv_endpoint=node-a:1234", "--insecure"),
        ("--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port=29999"),
        ("--nnodes=2", "--node_rank=1", "--master_addr=node-a"),
        ("--nnodes=2", "--node-rank=0"),
        ("--nnodes=2", "--node-rank=1", "--rdzv-endpoint=node-a"),
        ("--nnodes=2", "--rdzv-endpoint=node-a", "--rdzv-conf=is_host=true,last_call_timeout=3"),
        ("--nnodes=2", "--rdzv-endpoint=node-a", "--lease=30", "--join-settle=4", "--topology=r7"),
        ("--nnodes=2", "--rdzv-endpoint=node-a", "--rdzv-conf=keep_alive_interval=2"),
        ("--hang-timeout=9", "--drain-deadline=8", "--signals-to-handle=SIGTERM,SIGUSR1"),
        ("--max-restarts=9", "--max-no-progress=3", "--history=told.jsonl"),
        ("--virtual-local-rank", "--numa-binding=node", "--local-addr=10.0.0.1"),
        ("--event-log-handler=console", "--duplicate-stdout-filters=a,,b,c", "--tee=3"),
        ("--nnodes=2", "--rdzv-endpoint=node-a", "--token-file=/secret"),
    ],
)
def test_a_job_is_the_one_of_the_command_line(words: tuple[str, ...]) -> None:
    same(asked(parse_args([*words, *SCRIPT])), words)
    same(asked(get_args_parser().parse_args([*words, *SCRIPT])), words)


def test_steps_are_read_in_the_output_as_the_options_say() -> None:
    made = asked(parse_args(["--progress-pattern=hf-trainer", *SCRIPT]))
    assert (made.output.progress_pattern, made.workers.unbuffered) == ("hf-trainer", True)


@pytest.mark.parametrize("more", [(), ("--port-range=5-6", "--lease=30"), ("--insecure",)])
def test_a_directory_that_nodes_share_is_the_job_s_register(more: tuple[str, ...]) -> None:
    words = ("--nnodes=2", "--rdzv-backend=file", "--rdzv-endpoint=jobs", "--rdzv-id=job", *more)
    ours, theirs = asked(parse_args([*words, *SCRIPT])), parse_run([*words, *SCRIPT])
    assert ours.rendezvous == theirs.rendezvous
    assert ours.access.insecure == theirs.access.insecure
    assert ours.rendezvous.register is not None


@pytest.mark.parametrize(
    "words", [("-m", "train"), ("--run-path", "--start-method=forkserver", __file__)]
)
def test_modules_are_imported_beforehand(words: tuple[str, ...]) -> None:
    line = ["--preload=json,csv", *words]
    assert asked(parse_args(line)).workers == parse_run(line).workers


def test_what_nobody_gave_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "2:4")
    monkeypatch.setenv("PET_MAX_RESTARTS", "5")
    monkeypatch.setenv("PET_STANDALONE", "0")
    monkeypatch.setenv("RALLYPOINT_LEASE", "30")
    monkeypatch.setenv("RALLYPOINT_QUIET", "1")
    words = ("--rdzv-endpoint=node-a",)
    for args in (parse_args([*words, *SCRIPT]), get_args_parser().parse_args([*words, *SCRIPT])):
        assert (args.nnodes, args.max_restarts, args.standalone) == ("2:4", 5, False)
        args.max_restarts = 0
        config = asked(args)
        assert (config.rendezvous.max_nodes, config.rendezvous.max_restarts) == (4, 0)
        assert config.rendezvous.lease_s == 30


@pytest.mark.parametrize("flag", ["--nnodes", "--node-rank", "--rdzv-backend", "--tee"])
def test_an_option_that_needs_a_value_and_is_empty_is_refused_by_both_parsers(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for read in (parse_args, get_args_parser().parse_args):
        with pytest.raises(SystemExit) as ended:
            read([f"{flag}=", *SCRIPT])
        assert ended.value.code == 2
        assert f"{flag} is empty, as by a shell variable" in capsys.readouterr().err


def test_what_torch_takes_empty_is_not_given_by_both_parsers() -> None:
    words = ("--rdzv-endpoint=", "--master-port=", "--role=", "--signals-to-handle=", "--log-dir=")
    for read in (parse_args, get_args_parser().parse_args):
        made, usual = asked(read([*words, *SCRIPT])), asked(read([*SCRIPT]))
        assert (made.workers, made.stop) == (usual.workers, usual.stop)
        assert made.rendezvous.endpoint == usual.rendezvous.endpoint


def test_lines_are_filtered_and_have_the_prefix_that_the_options_say() -> None:
    words = ["--duplicate-stdout-filters=a,,b,c", "--duplicate-stderr-filters=d"]
    words += ["--log-line-prefix-template=<${rank}>", *SCRIPT]
    for args in (parse_args(words), get_args_parser().parse_args(words)):
        output = asked(args).output
        assert output.duplicate_stdout_filters == ("a,b", "c")
        assert output.duplicate_stderr_filters == ("d",)
        assert output.prefix_template == "<${rank}>"


def test_the_grace_of_the_options_is_that_of_every_stop() -> None:
    stop = asked(parse_args(["--shutdown-timeout=3", *SCRIPT])).stop
    assert (stop.shutdown_grace_s, stop.restart_grace_s) == (3, 3)
    stop = asked(parse_args([*SCRIPT])).stop
    assert (stop.shutdown_grace_s, stop.restart_grace_s) == (25, 5)


def test_a_namespace_has_numbers_texts_and_lists_of_its_own() -> None:
    words = ["--nnodes=2", "--node-rank=1", "--max-restarts=2", "--monitor-interval=3", *SCRIPT]
    for args in (parse_args(words), get_args_parser().parse_args(words)):
        found = (args.nnodes, args.node_rank, args.max_restarts, args.monitor_interval)
        assert found == ("2", 1, 2, 3.0)
        args.duplicate_stdout_filters.append("mine")
        assert config_from_args(args)[0].monitor_interval == 3
    assert parse_args(words).duplicate_stdout_filters == []


def test_output_goes_where_the_options_say() -> None:
    words = ["--log-dir=/logs", "-r", "0:1,1:2", "--tee=3", "--local-ranks-filter=1"]
    words += ["--nproc-per-node=2", *SCRIPT]
    config, command, arguments = config_from_args(parse_args(words))
    assert isinstance(config, LaunchConfig)
    assert (command, arguments) == ("true", ["a", "--b"])
    assert config.logs_specs.root_log_dir == "/logs"
    assert config.logs_specs._redirects == {0: Std.OUT, 1: Std.ERR}
    assert config.logs_specs._local_ranks_filter == {1}
    assert vars(config.logs_specs) == vars(logs_specs(parse_run(words)))


def test_output_without_a_directory_goes_below_tmpdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    config, _, _ = config_from_args(parse_args(["--tee=3", *SCRIPT]))
    made = config.logs_specs.open("job")
    assert Path(made.root).parent == tmp_path
    made.close(keep=False)


def test_a_package_places_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "from rallypoint.elastic.multiprocessing import DefaultLogsSpecs\n"
        "class Mine(DefaultLogsSpecs): pass\n"
    )
    install(tmp_path, {"rallypoint.logs_specs": ["mine = archive:Mine"]}, archive=text)
    monkeypatch.syspath_prepend(tmp_path)
    args = parse_args(["--logs-specs=mine", "--log-dir=/logs", "--tee=1", *SCRIPT])
    specs = config_from_args(args)[0].logs_specs
    assert type(specs).__name__ == "Mine"
    assert vars(specs) == vars(DefaultLogsSpecs("/logs", Std.NONE, Std.OUT))


def test_a_script_and_a_module_are_run_by_this_interpreter(tmp_path: Any) -> None:
    script = tmp_path / "train.py"
    script.touch()
    _, command, arguments = config_from_args(parse_args([str(script), "--lr", "1"]))
    assert (command, arguments) == (sys.executable, ["-u", str(script), "--lr", "1"])
    _, command, arguments = config_from_args(parse_args(["-m", "train", "x"]))
    assert (command, arguments) == (sys.executable, ["-u", "-m", "train", "x"])


def test_accelerate_fills_a_namespace_of_its_own() -> None:
    """It asks the parser with two words that are no options, then sets what it knows itself."""
    asked_for: list[Any] = ["--training_script", "true", "--training_script_args", []]
    args, _ = get_args_parser().parse_known_args(asked_for)
    own = {"nproc_per_node": "2", "nnodes": "2", "node_rank": 0, "master_addr": "127.0.0.1"}
    own |= {"master_port": "29999", "rdzv_backend": "static", "max_restarts": 0, "no_python": True}
    own |= {"monitor_interval": 0.1, "rdzv_conf": "", "training_script": "true", "module": False}
    for name, value in {**own, "training_script_args": ["a", "--b"]}.items():
        setattr(args, name, value)
    words = ("--nnodes=2", "--node-rank=0", "--master-port=29999", "--nproc-per-node=2")
    same(asked(args), words)


def test_torchtune_takes_the_options_into_a_parser_of_its_own() -> None:
    commands = argparse.ArgumentParser().add_subparsers()
    parser = commands.add_parser("run")
    for action in get_args_parser()._actions:
        if action.dest == "training_script":
            action.dest = "recipe"
        elif action.dest == "training_script_args":
            action.dest = "recipe_args"
        if action.dest != "help":
            parser._add_action(action)
    args = parser.parse_args(["--nproc-per-node", "2", "--no-python", "true", "a", "--b"])
    args.training_script, args.training_script_args = args.recipe, args.recipe_args
    same(asked(args), ("--nproc-per-node=2",))


def test_a_namespace_needs_no_option() -> None:
    same(
        asked(
            argparse.Namespace(
                training_script="true", training_script_args=["a", "--b"], no_python=True
            )
        ),
        (),
    )


def test_a_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "k" * 43
    monkeypatch.setenv("RALLYPOINT_TOKEN", secret)
    config, *_ = config_from_args(parse_args(["--nnodes=2", "--rdzv-endpoint=node-a", *SCRIPT]))
    assert secret not in repr(config)
    assert config.rdzv_configs["token"] == secret


def test_several_workers_share_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    config_from_args(parse_args(["--nproc-per-node=2", *SCRIPT]))
    assert os.environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--nprocs=2", "x"], "--nprocs: unknown option; did you mean --nproc-per-node?"),
        (["--max-restarts", "x", "y"], "--max-restarts x: needs a whole number"),
        (["--nnodes", "2", "x.py"], "--nnodes 2: several nodes need an endpoint"),
        ([], "the script is missing"),
        (["--quiet", "x"], "--quiet: only the command `rallypoint run` has this option"),
        (["--tee=7", *SCRIPT], "--tee 7: needs 0 to 3"),
        (["no-such.py"], "no-such.py: no such file"),
    ],
)
def test_a_wrong_command_line_ends_with_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"rallypoint.elastic.run: {told}")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("nnodes", "many", "--nnodes many: needs N or MIN:MAX"),
        ("nproc_per_node", "many", "--nproc-per-node many: needs a number"),
        ("rdzv_conf", "key", "--rdzv-conf key: 'key' is not KEY=VALUE"),
        ("local_ranks_filter", "x", "--local-ranks-filter"),
        ("redirects", "7", "--redirects 7: needs 0 to 3"),
        ("tee", "0:9", "--tee 0:9: needs 0 to 3"),
        ("logs_specs", "nope", "--logs-specs nope: "),
        ("numa_binding", "nope", "--numa-binding nope: needs one of"),
        ("module", True, "--module with --no-python"),
        ("training_script", None, "training_script=None"),
    ],
)
def test_a_wrong_namespace_is_a_value_error_as_with_torch(
    name: str, value: object, told: str
) -> None:
    args = parse_args([*SCRIPT])
    setattr(args, name, value)
    for refusing in (config_from_args, run):
        with pytest.raises(ValueError) as refused:
            refusing(args)
        assert isinstance(refused.value, UsageError)
        assert str(refused.value).startswith(told)


def test_the_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_args(["--help"])
    assert ended.value.code == 0
    assert "--nproc-per-node" in capsys.readouterr().out


def test_numbers_of_nodes_and_workers() -> None:
    assert parse_min_max_nnodes("3") == (3, 3)
    assert parse_min_max_nnodes("2:4") == (2, 4)
    with pytest.raises(ValueError, match=r"--nnodes 1:2:3: needs N or MIN:MAX"):
        parse_min_max_nnodes("1:2:3")
    assert determine_local_world_size("3") == 3
    assert determine_local_world_size("cpu") == len(os.sched_getaffinity(0))
    with pytest.raises(ValueError, match="--nproc-per-node many"):
        determine_local_world_size("many")


def test_a_script_is_run_in_this_interpreter(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "said.py"
    script.write_text("import sys, pathlib\npathlib.Path(sys.argv[1]).write_text(__name__)\n")
    monkeypatch.setattr(sys, "argv", ["before"])
    run_script_path(str(script), str(tmp_path / "said"))
    assert (tmp_path / "said").read_text() == "__main__"


def test_what_has_no_effect_is_said(caplog: pytest.LogCaptureFixture) -> None:
    words = ("--nnodes=2", "--rdzv-endpoint=node-a", "--master-port=29999", "--monitor-interval=3")
    config_from_args(parse_args([*words, *SCRIPT]))
    assert caplog.messages == [
        (
            "rallypoint: --master-port 29999 has no effect with --rdzv-endpoint node-a: only fixed "
            "ranks use it (--rdzv-backend static); --store-port is the port of the workers' store"
        ),
        "rallypoint: --monitor-interval 3.0 has no effect: exits are noticed at once",
    ]


@pytest.mark.parametrize(
    ("spelled", "shell"), [("--print-completion", "bash"), ("--print_completion", "zsh")]
)
def test_a_parser_prints_the_completions_that_the_command_prints(
    spelled: str, shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert get_args_parser().parse_args(["x.py"]).print_completion is None
    assert parse_args([sys.executable]).print_completion is None
    printed = []
    for reads in (get_args_parser().parse_args, parse_args):
        with pytest.raises(SystemExit) as ended:
            reads([spelled, shell])
        assert not ended.value.code
        printed.append(capsys.readouterr().out)
    assert command(["completion", shell]) == 0
    assert printed[0] == printed[1] == capsys.readouterr().out != ""


@pytest.mark.parametrize("nodes", ["1:2:3", "two", "2:1"])
def test_a_number_of_nodes_that_is_none_is_the_error_that_a_program_for_torch_catches(
    nodes: str, tmp_path: Path
) -> None:
    for kind in (ValueError, RuntimeError):
        with pytest.raises(kind, match=f"--nnodes {nodes}: needs"):
            parse_min_max_nnodes(nodes)
        for read in (parse_args, main):
            with pytest.raises(kind, match=f"--nnodes {nodes}: needs"):
                read(["--nnodes", nodes, *SCRIPT])


def test_a_wrong_command_line_that_nobody_catches_ends_the_program_after_one_line() -> None:
    program = "from rallypoint.elastic.run import main; main(['--nnodes', '1:2:3', 'a.py'])"
    ran = run_python(program)
    assert (ran.returncode, ran.stdout) == (2, "")
    line = "rallypoint.elastic.run: --nnodes 1:2:3: needs N or MIN:MAX, for example 4 or 2:4\n"
    assert ran.stderr == line


@pytest.mark.parametrize("words", [["no/such.py", "x"], ["--no-python", "no-such-program", "x"]])
def test_a_configuration_is_read_without_the_script_and_running_it_names_the_script(
    words: list[str],
) -> None:
    args = parse_args(words)
    _, command, arguments = config_from_args(args)
    assert [command, *arguments][-2:] == [words[-2], "x"]
    with pytest.raises(ValueError, match=f"{words[-2]}: no such"):
        run(args)
