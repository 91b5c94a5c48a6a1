"""Jobs that frameworks start through `rallypoint.elastic.run`, as by `torch.distributed.run`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.one_agent import ended, environment, free_port
from tests.harness.own_program import program

WORKER = "echo told $RANK $WORLD_SIZE $ROLE_NAME"


def test_lightning_calls_main_with_words(tmp_path: Path) -> None:
    """Two nodes' options, of which only one is there: the words of its command line."""
    words = ["--nproc_per_node=2", "--nnodes=1", "--node_rank=0", "--master_addr=127.0.0.1"]
    words += [f"--master_port={free_port()}", "--no-python", "sh", "-c", WORKER]
    text = f"---\nimport rallypoint.elastic.run as torchrun\nprint('got', torchrun.main({words}))\n"
    run = ended(program(tmp_path, text), 0)
    assert sorted(run.told("told")) == ["0 2 default", "1 2 default"]
    assert run.told("got") == ["None"]


def test_accelerate_runs_a_namespace_and_catches_the_failure(tmp_path: Path) -> None:
    text = """
    ---
    import rallypoint.elastic.run as distrib_run
    args = distrib_run.parse_args(["--nproc-per-node=2", "--no-python", "sh"])
    args.training_script_args = ["-c", "exit $((3 * RANK))"]
    try:
        distrib_run.run(args)
    except Exception as error:
        print("got", type(error).__name__, error.get_first_failure()[1].exitcode)
    """
    run = ended(program(tmp_path, text), 0)
    assert run.told("got") == ["ChildFailedError 3"]


def test_a_launcher_makes_the_configuration_its_own(tmp_path: Path) -> None:
    text = """
    ---
    from rallypoint.elastic.run import config_from_args, elastic_launch, parse_args
    config, command, arguments = config_from_args(
        parse_args(["--standalone", "--no-python", "sh", "-c", sys.argv[1]]))
    config.nproc_per_node, config.role = 3, "mine"
    print("got", elastic_launch(config, command)(*arguments))
    """
    run = ended(program(tmp_path, text, WORKER), 0)
    assert sorted(run.told("told")) == [f"{rank} 3 mine" for rank in range(3)]
    assert run.told("got") == ["{0: None, 1: None, 2: None}"]


def test_a_failure_leaves_main_as_an_exception(tmp_path: Path) -> None:
    text = """
    ---
    from rallypoint.elastic.run import main
    main(["--no-python", "sh", "-c", "exit 7"])
    """
    run = ended(program(tmp_path, text), 1)
    assert "ChildFailedError" in run.err
    assert "exitcode  : 7" in run.err


def test_main_passes_on_what_a_worker_has_told(tmp_path: Path) -> None:
    script, there = tmp_path / "train.py", tmp_path / "error.json"
    script.write_text(
        "from rallypoint.worker import record\n"
        "@record\ndef train(): raise ValueError('bad luck')\ntrain()\n"
    )
    text = f"""
    ---
    os.environ["TORCHELASTIC_ERROR_FILE"] = {str(there)!r}
    from rallypoint.elastic.run import main
    main([{str(script)!r}])
    """
    ended(program(tmp_path / "home", text), 1)
    assert "bad luck" in json.loads(there.read_text())["message"]["message"]


@pytest.mark.executed
def test_the_module_is_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rallypoint.elastic.run", "--quiet", "--json-summary"]
    command += [str(tmp_path / "summary"), "--no-python", "sh", "-c", "exit 7"]
    ran = subprocess.run(command, env=environment(tmp_path, "none"), capture_output=True, text=True)
    assert ran.returncode == 1, ran.stderr
    assert "Traceback" not in ran.stderr
    assert json.loads((tmp_path / "summary").read_text())["exit_code"] == 1
