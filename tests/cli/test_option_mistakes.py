"""The one line that each mistake of the command line gets."""

from __future__ import annotations

import pytest
from tests.harness.command_line import MACHINE, refusal

from rallypoint.cli.options import parse_run
from rallypoint.core.settings import FLAGS, Setting
from rallypoint.errors import UsageError

ONE_OPTION: tuple[tuple[str, str], ...] = (
    ("--nnodes 4:2", "needs 1 <= MIN <= MAX <= 100000"),
    ("--nnodes 0", "needs 1 <= MIN <= MAX <= 100000"),
    ("--nnodes x", "needs N or MIN:MAX, for example 4 or 2:4"),
    ("--nnodes 1:2:3", "needs N or MIN:MAX, for example 4 or 2:4"),
    ("--nproc-per-node 0", "needs 1 or more workers"),
    ("--nproc-per-node -1", "needs 1 or more workers"),
    ("--nproc-per-node 9999", "must be 1..4096 workers"),
    ("--nproc-per-node all", "needs a number, or one of cpu, gpu, xpu, auto"),
    ("--nproc-per-node gpu", "no gpu is visible on this node; use cpu, or a number"),
    ("--max-restarts -1", "needs 0 or more"),
    ("--max-restarts 1.5", "needs a whole number"),
    ("--lease 0", "needs a number of seconds, more than 0"),
    ("--reset-grace -1", "needs a number of seconds, 0 or more"),
    ("--reconnect-grace 1s", "needs a number of seconds"),
    ("--lease nan", "needs a number of seconds, more than 0"),
    ("--restart-grace 90000", "must be 0 to 86400"),
    ("--max-restarts 3000000000", "must be 0 to 2147483647"),
    ("--lease 5s", "needs a number of seconds"),
    ("--monitor-interval no", "needs a number of seconds"),
    ("--zzz", "unknown option"),
    ("-x", "unknown option"),
    ("--standalone=1", "--standalone is a switch, it takes no value"),
    ("--rdzv-backend file", "needs --rdzv-endpoint DIR, a directory that all nodes share"),
    ("--rdzv-backend etcd-v2", "give --rdzv-backend etcd, with the same endpoint (it is API v3)"),
    ("--rdzv-endpoint a:b", "b is not a valid port (1..65535)"),
    ("--rdzv-endpoint a:", "the port is missing (1..65535)"),
    ("--rdzv-endpoint :5", "needs a host name or an address"),
    ("--rdzv-endpoint tcp://a:5", "needs one HOST:PORT, without a scheme"),
    ("--rdzv-endpoint ::1:29400", "an IPv6 address with a port needs brackets: [::1]:29400"),
    ("--rdzv-endpoint [::1", "needs [ADDRESS]:PORT"),
    ("--master-port 70000", "70000 is not a valid port (0..65535)"),
    ("--rdzv-conf join_timout=3", "unknown key join_timout; did you mean join_timeout?"),
    (
        "--rdzv-conf foo=1",
        (
            "unknown key foo; known are close_timeout, heartbeat_timeout, hold, host_timeout, "
            "is_host, join_timeout, keep_alive_interval, keep_alive_max_attempt, "
            "last_call_timeout, read_timeout, store_type, timeout"
        ),
    ),
    ("--rdzv-conf is_host", "'is_host' is not KEY=VALUE"),
    ("--rdzv-conf is_host=maybe", "needs 1 or 0, true or false"),
    ("--rdzv-conf join_timeout=0", "needs a number of seconds, more than 0"),
    ("--redirects 4", "needs 0 to 3, or LOCAL_RANK:0-3 with commas, for example 0:1,1:3"),
    (
        "--signals-to-handle SIGTREM",
        "SIGTREM is not a signal that can be handled; did you mean SIGTERM?",
    ),
    ("--output loud", "needs one of auto, inherit, prefix"),
    ("--log-format yaml", "needs one of text, json"),
    (
        "--exit-code failed=256",
        (
            "needs CLASS=N: one of success, failed, usage, infrastructure, out-of-time, "
            "already-succeeded, no-progress, and 0 to 255"
        ),
    ),
    (
        "--max-no-progress 1",
        "needs 2 or more: to end the job at its first failure: --max-restarts 0",
    ),
    ("--max-no-progress -3", "needs 0 or more"),
    ("--no-restart-on 0", "needs exit codes from 1 to 255, for example 3 or 3,77"),
    ("--drain-deadline soon", "needs a number of seconds"),
    ("--drain-signal SIGFOO", "SIGFOO is not a signal that can be handled; did you mean SIGIO?"),
    ("--drain-signal USR1,USR2", "needs one signal, for example SIGUSR1"),
    ("--preempt-notice cmd:", "needs a file, or cmd:COMMAND"),
    ("--on-join never", "needs one of restart, hold, at-checkpoint"),
    ("--local-ranks-filter 0,x", "needs local ranks, for example 0,2, or global ones, as in g12"),
    ("--duplicate-stdout-filters a,", "an empty text matches every line; ,, stands for a comma"),
    (
        "--log-max-bytes 10X",
        "needs a number of bytes, with K, M or G if you like, for example 100M",
    ),
    ("--log-max-bytes 0", "needs a number of bytes, with K, M or G if you like, for example 100M"),
    ("--log-layout round", "needs one of torchrun, rounds; did you mean rounds?"),
    ("--numa-binding near", "needs one of node, socket, exclusive, core-complex"),
    ("--start-method thread", "needs one of spawn, forkserver, fork"),
    (
        "--env-style jax,pytorch",
        "needs one of torch, jax, tensorflow, mpi, deepspeed; did you mean torch?",
    ),
    ("--keep-env A=1", "needs names of variables, for example SLURM_PROCID or 'SLURM_*'"),
    ("--preload a,my-b", "my-b is not the name of a module; for example: --preload torch,numpy"),
    ("--event-log-handler x", "there is no such handler; there are: console, jsonl:FILE, null"),
    ("--logs-specs x", "no package offers it; there are: default"),
    (
        "--progress-pattern (?P<step>x)(",
        "not a valid regular expression: missing ), unterminated subpattern at position 11",
    ),
    (
        "--progress-pattern step",
        (
            "there is no such profile; there are: accelerate, hf-trainer, lightning, megatron, "
            "torchtitan (an expression needs a group (?P<step>...), for example 'step "
            "(?P<step>[0-9]+)')"
        ),
    ),
)
"""An option that is refused by itself, and what its line says of it."""
OTHERS: tuple[tuple[str, str], ...] = (
    ("--nnodes", "--nnodes: needs a value: --nnodes N|MIN:MAX"),
    ("--role --nnodes 2 train.py", "--role: needs a value: --role NAME"),
    ("--lease 1e300 train.py", "--lease 1e300: must be 0.001 to 1000000000 seconds"),
    ("--drain-deadline 1e9 train.py", "--drain-deadline 1e9: must be 0 to 86400"),
    ("--stop-patience 1e10 train.py", "--stop-patience 1e10: must be 0 to 1000000000"),
    ("--nnode5 2 train.py", "--nnode5: unknown option; did you mean --nnodes?"),
    (
        "--rd tcp train.py",
        "--rd: could be any of --rdzv-endpoint, --rdzv-id, --rdzv-backend, --rdzv-conf",
    ),
    ("--standalone --nnodes 2 train.py", "--nnodes 2: --standalone runs one node only"),
    (
        "--rdzv-backend tpc --rdzv-endpoint a train.py",
        (
            "--rdzv-backend tpc: known are tcp, c10d, static, file, etcd, kubernetes, theirs; "
            "did you mean tcp?"
        ),
    ),
    (
        "--rdzv-backend file --rdzv-endpoint d train.py",
        (
            "--rdzv-backend file: a directory may hold many jobs: give --rdzv-id, the same "
            "for all nodes of this job, like --rdzv-id my-job-1"
        ),
    ),
    (
        "--rdzv-backend file --rdzv-endpoint a:29400 --rdzv-id mine train.py",
        (
            "--rdzv-endpoint a:29400: --rdzv-backend file needs a directory that all nodes "
            "share, and this looks like an address: leave --rdzv-backend out, or give the "
            "directory as ./a:29400"
        ),
    ),
    (
        "--nnodes 2 --node-rank 2 --rdzv-backend static --rdzv-endpoint d train.py",
        "--node-rank 2: must be 0..1, as --nnodes is 2",
    ),
    (
        "--rdzv-backend file --rdzv-endpoint d --rdzv-id m --port-range 9-5 train.py",
        "--port-range 9-5: needs FIRST-LAST, from 1 to 65535, for example 29400-29409",
    ),
    (
        "--rdzv-backend file --rdzv-endpoint d --rdzv-id m --port-range 0-5 train.py",
        "--port-range 0-5: needs FIRST-LAST, from 1 to 65535, for example 29400-29409",
    ),
    (
        "--nnodes 2 --rdzv-endpoint a:0 train.py",
        (
            "--rdzv-endpoint a:0: port 0 is any free port, which other nodes can't know: give "
            "one, 1 to 65535"
        ),
    ),
    (
        "--nnodes 2 --node-rank 0 --master-port 0 train.py",
        (
            "--master-port 0: port 0 is any free port, which other nodes can't know: give one, 1 "
            "to 65535"
        ),
    ),
    (
        "--nnodes 2 --rdzv-endpoint a --rdzv-conf read_timeout=1e300 train.py",
        "--rdzv-conf read_timeout=1e300: must be 0.001 to 1000000000 seconds",
    ),
    (
        "--nnodes 2 --rdzv-endpoint a,b train.py",
        (
            "--rdzv-endpoint a,b: needs one HOST:PORT: nodes find the one of several "
            "coordinators that leads by --rdzv-backend file, etcd or kubernetes"
        ),
    ),
    ("--nnodes 2 --node-rank 2 train.py", "--node-rank 2: must be 0..1, as --nnodes is 2"),
    (
        "--nnodes 1:2 --node-rank 0 train.py",
        (
            "--nnodes 1:2 with --node-rank: fixed ranks need a fixed number of nodes; use "
            "--rdzv-endpoint HOST:PORT for an elastic job"
        ),
    ),
    ("-t 1,2 train.py", "--tee 1,2: needs LOCAL_RANK:0-3 in each part, for example 0:1,1:3"),
    (
        "--local-ranks-filter 0,2 --nproc-per-node 2 train.py",
        (
            "--local-ranks-filter 0,2: there is no local rank 2: this node runs 2 workers, local "
            "ranks count from 0; g2 is the global rank 2"
        ),
    ),
    (
        "--preload torch --no-python echo",
        "--preload torch: has no effect with --no-python: a program imports for itself",
    ),
    (
        "--preload torch --run-path --start-method fork train.py",
        "--preload torch with the start method fork: only forkserver imports modules beforehand",
    ),
    (
        "--token-file f --insecure train.py",
        "--token-file f: has no effect with --insecure; give one of the two",
    ),
    ("", "the script is missing; for example: rallypoint run --nproc-per-node 2 train.py"),
    ("nosuch.py", "nosuch.py: no such file"),
    ("pkg.mod", "pkg.mod: no such file; if it is a module, add -m"),
    ("--no-python nosuch", "nosuch: no such program; check its path, or PATH"),
    (
        "-m --no-python echo",
        "--module with --no-python: a module is run by Python's -m; give one of them",
    ),
)
"""What stands before the script, or in place of it, and the whole line."""


@pytest.mark.parametrize(("option", "why"), ONE_OPTION)
def test_each_option_that_is_wrong_gets_one_line_that_begins_with_it(option: str, why: str) -> None:
    assert refusal(f"{option} train.py") == f"{option}: {why}"


@pytest.mark.parametrize(("line", "message"), OTHERS)
def test_each_mistake_gets_one_line(line: str, message: str) -> None:
    assert refusal(line) == message


BAD_ENVIRONMENT: tuple[tuple[str, str, str], ...] = (
    ("PET_NNODES", "4:2", "needs 1 <= MIN <= MAX <= 100000"),
    ("PET_STANDALONE", "maybe", "needs 1 or 0, true or false"),
    ("PET_START_METHOD", "thread", "needs one of spawn, forkserver, fork"),
    (
        "RALLYPOINT_PRELOAD",
        "a/b",
        "a/b is not the name of a module; for example: --preload torch,numpy",
    ),
    ("RALLYPOINT_LEASE", "soon", "needs a number of seconds"),
    ("LOGLEVEL", "loud", "needs one of DEBUG, INFO, WARNING, ERROR, CRITICAL"),
    ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "-1", "needs a number of seconds, 0 or more"),
    ("PYTHON_EXEC", "pyhton", "no such program"),
    (
        "RALLYPOINT_PROGRESS_PATTERN",
        "step (?P<step>[0-9]+",
        "not a valid regular expression: missing ), unterminated subpattern at position 5",
    ),
)


@pytest.mark.parametrize(("name", "text", "why"), BAD_ENVIRONMENT)
def test_a_mistake_in_the_environment_names_the_variable(name: str, text: str, why: str) -> None:
    assert refusal("train.py", **{name: text}) == f"{name}={text}: {why}"


FOREIGN = "a\nb\x1b[2J"
SHOWN = r"'a\nb\x1b[2J'"


@pytest.mark.parametrize("flag", [flag for flag in FLAGS.values() if flag.metavar])
def test_no_value_of_an_option_breaks_the_line_or_reaches_the_terminal(flag: Setting) -> None:
    said = []
    for words in ([flag.flag, FOREIGN], [f"{flag.flag}={FOREIGN}"], [flag.flag, "1" + FOREIGN]):
        try:
            parse_run([*words, "train.py"], {}, MACHINE)
        except UsageError as error:
            said.append(str(error))
    assert [ascii(text) for text in said if not text.isprintable()] == []


@pytest.mark.parametrize(
    "words",
    [
        [FOREIGN],
        ["--no-python", FOREIGN],
        ["--module", "--no-python", FOREIGN],
        [f"--{FOREIGN}"],
        [f"-{FOREIGN}"],
        [f"-q{FOREIGN}"],
        [f"--standalone={FOREIGN}"],
        [f"--rd{FOREIGN}"],
    ],
)
def test_no_other_word_does(words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_run([*words, "train.py"], {}, MACHINE)
    assert str(caught.value).isprintable(), ascii(str(caught.value))


@pytest.mark.parametrize("name", ["PYTHON_EXEC", "LOGLEVEL", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
def test_no_variable_does(name: str) -> None:
    why = refusal("train.py", **{name: FOREIGN})
    assert why.isprintable(), ascii(why)
    assert SHOWN in why


def test_no_list_of_devices_does() -> None:
    why = refusal("--virtual-local-rank --nproc-per-node 2 train.py", CUDA_VISIBLE_DEVICES=FOREIGN)
    assert why.startswith(f"--virtual-local-rank: CUDA_VISIBLE_DEVICES={SHOWN} names 1 device")


def test_several_nodes_without_a_place_to_meet_are_shown_both_ways() -> None:
    assert refusal("--nnodes 2:4 --master-port 5 train.py") == (
        "--nnodes 2:4: several nodes need an endpoint; start each one with\n"
        "  rallypoint run --nnodes 2:4 --rdzv-endpoint HOST:29400 ...\n"
        "or, with fixed ranks (K is 0 on the node ADDRESS, then 1, 2, ...),\n"
        "  rallypoint run --nnodes 4 --node-rank K --master-addr ADDRESS ..."
    )
