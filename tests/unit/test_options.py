"""The command line: what it means, and the one line that each mistake gets."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rallypoint.cli.flags import FLAGS
from rallypoint.cli.help import help_text
from rallypoint.cli.options import Machine, parse_run
from rallypoint.cli.scan import HelpRequested
from rallypoint.config import Endpoint, LaunchConfig, OnJoin, OutputMode
from rallypoint.errors import UsageError

PYTHON = "/usr/bin/python3"
PROGRAMS = {"/usr/bin/python3", "/opt/py/bin/python", "echo"}
DEVICES = {"cpu": 6, "gpu": 0, "xpu": 2, "auto": 4}


def count_workers(word: str, interpreter: str, environ: Mapping[str, str]) -> int:
    assert interpreter in PROGRAMS
    return DEVICES[word]


MACHINE = Machine(
    count_workers=count_workers,
    find_program=lambda name: name if name in PROGRAMS else None,
    script_exists=lambda path: path in ("train.py", "./dir"),
    random_id=lambda: "job-abc",
    interpreter=PYTHON,
)


def parse(line: str, **environ: str) -> LaunchConfig:
    return parse_run(line.split(), environ, MACHINE)


def refusal(line: str, **environ: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(line, **environ)
    return str(caught.value)


def test_no_option_at_all_is_this_node_alone() -> None:
    config = parse("train.py")
    meeting = config.rendezvous
    assert (meeting.min_nodes, meeting.max_nodes, meeting.is_host) == (1, 1, True)
    assert meeting.endpoint == Endpoint("localhost", 0)
    assert not meeting.static
    assert meeting.run_id == "job-abc"
    assert config.workers.argv == (PYTHON, "-u", "train.py")
    assert config.workers.count == 1
    assert config.workers.omp_threads is None
    assert config.notices == ()


def test_an_explicit_run_id_is_kept_when_alone() -> None:
    assert parse("--rdzv-id mine train.py").rendezvous.run_id == "mine"
    assert parse("--standalone --rdzv-id mine train.py").rendezvous.run_id == "mine"


@pytest.mark.parametrize(
    "line",
    [
        "--nproc-per-node 2 train.py",
        "--nproc-per-node=2 train.py",
        "--nproc_per_node 2 train.py",
        "--nproc_per_node=2 train.py",
        "--nproc-per_node=2 train.py",
        "--nproc 2 train.py",
        "--nproc_per=2 train.py",
        "--np=2 train.py",
        "--nproc-per-node 7 --nproc_per_node 2 train.py",
        "--nproc-per-node 2 -- train.py",
    ],
)
def test_spellings_of_one_option(line: str) -> None:
    config = parse(line, OMP_NUM_THREADS="3")
    assert config.workers.count == 2
    assert config.workers.argv == (PYTHON, "-u", "train.py")


def test_a_prefix_that_names_one_torchrun_option_still_does() -> None:
    config = parse("--re 2 --max- 4 --log- logs train.py")
    assert (config.output.redirects, config.output.log_dir) == ("2", "logs")
    assert config.restart.max_restarts == 4


@pytest.mark.parametrize(
    ("line", "redirects", "tee"),
    [
        ("-r 3 -t 1 train.py", "3", "1"),
        ("-r3 -t=1 train.py", "3", "1"),
        ("--redirects 0:1,10:3 --tee=2 train.py", "0:1,10:3", "2"),
    ],
)
def test_short_options(line: str, redirects: str, tee: str) -> None:
    output = parse(line).output
    assert (output.redirects, output.tee) == (redirects, tee)


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("train.py --nnodes 9 --help", (PYTHON, "-u", "train.py", "--nnodes", "9", "--help")),
        ("train.py -- -m x", (PYTHON, "-u", "train.py", "--", "-m", "x")),
        ("-- train.py -- a", (PYTHON, "-u", "train.py", "--", "a")),
        ("./dir ${local_rank}", (PYTHON, "-u", "./dir", "${local_rank}")),
        ("-m pkg.mod --role x", (PYTHON, "-u", "-m", "pkg.mod", "--role", "x")),
        ("--module pkg", (PYTHON, "-u", "-m", "pkg")),
        ("-mr3 pkg", (PYTHON, "-u", "-m", "pkg")),
        ("--no-python echo -n $$", ("echo", "-n", "$$")),
        ("--no_python echo", ("echo",)),
    ],
)
def test_the_workers_command(line: str, argv: tuple[str, ...]) -> None:
    assert parse(line).workers.argv == argv


def test_run_path_needs_only_the_standard_library_and_wins_over_no_python() -> None:
    argv = parse("--no-python --run-path train.py -a").workers.argv
    assert argv[:3] == (PYTHON, "-u", "-c")
    assert argv[4:] == ("train.py", "-a")
    assert "rallypoint" not in argv[3]


def test_the_interpreter_can_be_chosen() -> None:
    assert parse("train.py", PYTHON_EXEC="/opt/py/bin/python").workers.argv[0] == (
        "/opt/py/bin/python"
    )


@pytest.mark.parametrize(
    ("line", "environ", "count"),
    [
        ("train.py", {"PET_NPROC_PER_NODE": "3"}, 3),
        ("--nproc-per-node 2 train.py", {"PET_NPROC_PER_NODE": "3"}, 2),
        ("train.py", {"PET_NPROC_PER_NODE": ""}, 1),
        ("--nproc-per-node cpu train.py", {}, 6),
        ("--nproc-per-node xpu train.py", {}, 2),
        ("--nproc-per-node auto train.py", {}, 4),
    ],
)
def test_how_many_workers(line: str, environ: dict[str, str], count: int) -> None:
    assert parse(line, **environ).workers.count == count


@pytest.mark.parametrize("word", ["1", "true", "True", "yes", "on", "7"])
def test_a_switch_in_the_environment_is_on(word: str) -> None:
    assert parse("pkg", PET_MODULE=word).workers.argv == (PYTHON, "-u", "-m", "pkg")


@pytest.mark.parametrize("word", ["0", "false", "No", "off", ""])
def test_a_switch_in_the_environment_is_off(word: str) -> None:
    assert parse("train.py", PET_MODULE=word).workers.argv == (PYTHON, "-u", "train.py")


def test_every_new_option_has_a_twin_in_the_environment() -> None:
    config = parse(
        "train.py",
        RALLYPOINT_LEASE="4",
        RALLYPOINT_ON_JOIN="hold",
        RALLYPOINT_RESTART_GRACE="0",
        RALLYPOINT_RESTART_WINDOW="60",
        RALLYPOINT_RESTART_BACKOFF="2.5",
        RALLYPOINT_NO_RESTART_ON="3,77",
        RALLYPOINT_RECONNECT_TIMEOUT="9",
        RALLYPOINT_JOIN_SETTLE="1",
        RALLYPOINT_MIN_GROWTH_INTERVAL="0",
        RALLYPOINT_MAX_NODE_LOSSES="5",
        RALLYPOINT_NODE_ID="n7",
        RALLYPOINT_TOPOLOGY="rack-1",
        RALLYPOINT_OUTPUT="prefix",
        RALLYPOINT_QUIET="true",
        RALLYPOINT_LOG_FORMAT="json",
        RALLYPOINT_EXIT_CODE="failed=4,infrastructure=99",
        RALLYPOINT_INSECURE="1",
    )
    meeting, restart = config.rendezvous, config.restart
    assert (meeting.lease_s, meeting.heartbeat_s) == (4.0, 0.8)
    assert meeting.on_join is OnJoin.HOLD
    assert meeting.reconnect_timeout_s == 9.0
    assert (meeting.join_settle_s, meeting.min_growth_interval_s) == (1.0, 0.0)
    assert (meeting.max_node_losses_per_hour, meeting.node_id) == (5, "n7")
    assert meeting.topology == "rack-1"
    assert (restart.window_s, restart.backoff_s) == (60.0, 2.5)
    assert restart.no_restart_exit_codes == (3, 77)
    assert config.stop.restart_grace_s == 0.0
    assert config.stop.exit_codes == (("failed", 4), ("infrastructure", 99))
    assert config.output.mode is OutputMode.PREFIX
    assert config.output.quiet
    assert config.output.log_format == "json"
    assert config.access.insecure
    assert parse("train.py", RALLYPOINT_TOKEN_FILE="t").access.token_file == "t"


def test_a_worker_that_starts_a_job_does_not_pass_on_its_nodes_id() -> None:
    inside = {"RALLYPOINT_NODE_ID": "n7", "RALLYPOINT_INCARNATION": "1"}
    assert parse("train.py", **inside).rendezvous.node_id is None
    assert parse("--node-id mine train.py", **inside).rendezvous.node_id == "mine"


def test_the_token_itself_is_kept_out_of_sight() -> None:
    config = parse("train.py", RALLYPOINT_TOKEN=" secret-secret \n")
    assert config.access.token_text == "secret-secret"
    assert "secret" not in repr(config)
    assert parse("train.py", RALLYPOINT_TOKEN=" ").access.token_text is None


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("node-a", Endpoint("node-a", 29400)),
        ("node-a:1", Endpoint("node-a", 1)),
        ("10.0.0.1:65535", Endpoint("10.0.0.1", 65535)),
        ("[::1]:29", Endpoint("::1", 29)),
        ("[fe80::1%eth0]", Endpoint("fe80::1%eth0", 29400)),
        ("fe80::1", Endpoint("fe80::1", 29400)),
        ("::1", Endpoint("::1", 29400)),
    ],
)
def test_endpoints(text: str, endpoint: Endpoint) -> None:
    assert parse(f"--nnodes 2 --rdzv-endpoint {text} train.py").rendezvous.endpoint == endpoint


def test_an_elastic_job() -> None:
    for backend in ("", "--rdzv-backend c10d ", "--rdzv-backend=tcp "):
        meeting = parse(f"--nnodes=2:4 {backend}--rdzv-endpoint a:1 train.py").rendezvous
        assert (meeting.min_nodes, meeting.max_nodes) == (2, 4)
        assert (meeting.static, meeting.node_rank, meeting.is_host) == (False, None, None)
        assert meeting.run_id == "none"


def test_master_port_alone_fixes_the_store_of_an_elastic_job() -> None:
    line = "--nnodes 2 --rdzv-endpoint a --master-port 29501 train.py"
    meeting = parse(line).rendezvous
    assert (meeting.static, meeting.store_port) == (False, 29501)
    assert meeting.endpoint == Endpoint("a", 29400)
    assert parse("--standalone --master-port 29501 train.py").rendezvous.store_port == 29501


def test_fixed_ranks() -> None:
    line = "--nnodes 3 --node-rank {} --master-addr a --master-port 5 train.py"
    first, last = parse(line.format(0)).rendezvous, parse(line.format(2)).rendezvous
    assert first.static
    assert last.static
    assert (first.node_rank, first.is_host, last.node_rank, last.is_host) == (0, True, 2, False)
    assert first.endpoint == last.endpoint == Endpoint("a", 5)
    assert (first.run_id, first.store_port) == ("none", 0)
    for short in ("--nnodes 2 --node-rank 0 train.py", "--nnodes 2 --rdzv-backend static train.py"):
        config = parse(short)
        assert config.rendezvous.static
        assert config.rendezvous.endpoint == Endpoint("127.0.0.1", 29500)
    elsewhere = parse("--nnodes 2 --node-rank 1 --rdzv-endpoint a:7 train.py").rendezvous
    assert elsewhere.static
    assert elsewhere.endpoint == Endpoint("a", 7)


def test_one_node_with_a_port_of_its_own_is_met_exactly_there() -> None:
    meeting = parse("--master-port 5 train.py").rendezvous
    assert meeting.static
    assert (meeting.endpoint, meeting.is_host) == (Endpoint("127.0.0.1", 5), True)


def test_one_node_that_names_only_itself_is_alone() -> None:
    config = parse("--nnodes 1 --node-rank 0 --master-addr localhost train.py")
    assert not config.rendezvous.static
    assert config.rendezvous.endpoint == Endpoint("localhost", 0)
    assert config.notices == (
        "--master-addr localhost has no effect on a job of one node without --master-port",
    )


def test_node_rank_of_an_elastic_job_says_only_who_hosts() -> None:
    line = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a --node-rank {} train.py"
    host, other = parse(line.format(0)), parse(line.format(1))
    assert (host.rendezvous.is_host, host.rendezvous.node_rank) == (True, None)
    assert (other.rendezvous.is_host, other.rendezvous.node_rank) == (False, None)
    assert other.notices == (
        "--node-rank 1 only says that another node hosts: the coordinator gives the ranks",
    )
    asked = parse(f"--rdzv-conf is_host=1 {line.format(1)}")
    assert asked.rendezvous.is_host is True


def test_rdzv_conf() -> None:
    line = "--nnodes 2 --rdzv-endpoint a --rdzv-conf {} train.py"
    meeting = parse(
        line.format(
            "join_timeout=7,last_call_timeout=2,is_host=no,keep_alive_interval=2,"
            "keep_alive_max_attempt=4,close_timeout=1,heartbeat_timeout=1,read_timeout=9,"
            "timeout=900,store_type=tcp"
        )
    ).rendezvous
    assert (meeting.join_timeout_s, meeting.last_call_s, meeting.is_host) == (7.0, 2.0, False)
    assert (meeting.lease_s, meeting.heartbeat_s) == (8.0, 1.0)
    assert parse(line.format("keep_alive_interval=2")).rendezvous.lease_s == 6.0
    assert parse(line.format("timeout=900")).rendezvous.join_timeout_s == 900.0
    both = parse("--lease 3 " + line.format("keep_alive_interval=2"))
    assert both.rendezvous.lease_s == 3.0
    blanks = parse_run(["--rdzv-conf", " is_host = true , ", "train.py"], {}, MACHINE)
    assert blanks.rendezvous.is_host is True


def test_the_rule_of_omp_num_threads() -> None:
    config = parse("--nproc-per-node 2 train.py")
    assert config.workers.omp_threads == 1
    assert config.notices == ("OMP_NUM_THREADS is not set: each of the 2 workers gets 1",)
    for kept in (
        parse("--nproc-per-node 2 train.py", OMP_NUM_THREADS="8"),
        parse("--nproc-per-node 1 train.py"),
    ):
        assert kept.workers.omp_threads is None
        assert kept.notices == ()


def test_grace_of_a_stop() -> None:
    legacy = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "11"}
    assert parse("train.py").stop.shutdown_grace_s == 25.0
    assert parse("train.py", **legacy).stop.shutdown_grace_s == 11.0
    assert parse("--shutdown-timeout 0 train.py", **legacy).stop.shutdown_grace_s == 0.0


def test_signals_and_log_level() -> None:
    config = parse("--signals-to-handle SIGUSR2,SIGTERM train.py", LOGLEVEL="warning")
    assert config.stop.signals == ("SIGUSR2", "SIGTERM")
    assert config.output.log_level == "WARNING"


def test_what_happens_anyway_may_be_asked_for() -> None:
    parse("--start-method spawn --event-log-handler null --logs-specs default train.py")
    parse("--monitor-interval 0.5 train.py", PET_VIRTUAL_LOCAL_RANK="0", PET_START_METHOD="spawn")


BAD: tuple[tuple[str, str], ...] = (
    ("--nnodes 4:2 train.py", "--nnodes 4:2: needs 1 <= MIN <= MAX <= 100000"),
    ("--nnodes 0 train.py", "--nnodes 0: needs 1 <= MIN <= MAX <= 100000"),
    ("--nnodes x train.py", "--nnodes x: needs N or MIN:MAX, for example 4 or 2:4"),
    ("--nnodes 1:2:3 train.py", "--nnodes 1:2:3: needs N or MIN:MAX, for example 4 or 2:4"),
    ("--nnodes= train.py", "--nnodes: needs N or MIN:MAX, for example 4 or 2:4"),
    ("--nnodes", "--nnodes: needs a value: --nnodes N|MIN:MAX"),
    ("--role --nnodes 2 train.py", "--role: needs a value: --role NAME"),
    ("--nproc-per-node 0 train.py", "--nproc-per-node 0: needs 1 or more workers"),
    ("--nproc-per-node -1 train.py", "--nproc-per-node -1: needs 1 or more workers"),
    ("--nproc-per-node 9999 train.py", "--nproc-per-node 9999: must be 1..4096 workers"),
    (
        "--nproc-per-node all train.py",
        "--nproc-per-node all: needs a number, or one of cpu, gpu, xpu, auto",
    ),
    (
        "--nproc-per-node gpu train.py",
        "--nproc-per-node gpu: no gpu is visible on this node; use cpu, or a number",
    ),
    ("--max-restarts -1 train.py", "--max-restarts -1: needs 0 or more"),
    ("--max-restarts 1.5 train.py", "--max-restarts 1.5: needs a whole number"),
    ("--lease 0 train.py", "--lease 0: needs a number of seconds, more than 0"),
    ("--lease nan train.py", "--lease nan: needs a number of seconds, more than 0"),
    ("--lease 5s train.py", "--lease 5s: needs a number of seconds"),
    ("--monitor-interval no train.py", "--monitor-interval no: needs a number of seconds"),
    ("--nnode5 2 train.py", "--nnode5: unknown option; did you mean --nnodes?"),
    ("--zzz train.py", "--zzz: unknown option"),
    ("-x train.py", "-x: unknown option"),
    ("--standalone=1 train.py", "--standalone=1: --standalone is a switch, it takes no value"),
    (
        "--rd tcp train.py",
        "--rd: could be any of --rdzv-endpoint, --rdzv-id, --rdzv-backend, --rdzv-conf",
    ),
    ("--standalone --nnodes 2 train.py", "--nnodes 2: --standalone is one node only"),
    (
        "--rdzv-backend tpc --rdzv-endpoint a train.py",
        "--rdzv-backend tpc: known are tcp, c10d, static; did you mean tcp?",
    ),
    (
        "--rdzv-backend etcd-v2 train.py",
        "--rdzv-backend etcd-v2: not yet; tcp needs no server, and is the default",
    ),
    ("--rdzv-endpoint a:b train.py", "--rdzv-endpoint a:b: b is no port, 1 to 65535"),
    ("--rdzv-endpoint a:0 train.py", "--rdzv-endpoint a:0: 0 is no port, 1 to 65535"),
    ("--rdzv-endpoint a: train.py", "--rdzv-endpoint a:: nothing is no port, 1 to 65535"),
    ("--rdzv-endpoint :5 train.py", "--rdzv-endpoint :5: needs a host name or an address"),
    (
        "--rdzv-endpoint tcp://a:5 train.py",
        "--rdzv-endpoint tcp://a:5: needs one HOST:PORT, without a scheme",
    ),
    (
        "--rdzv-endpoint ::1:29400 train.py",
        "--rdzv-endpoint ::1:29400: an IPv6 address with a port needs brackets: [::1]:29400",
    ),
    ("--rdzv-endpoint [::1 train.py", "--rdzv-endpoint [::1: needs [ADDRESS]:PORT"),
    ("--master-port 70000 train.py", "--master-port 70000: 70000 is no port, 1 to 65535"),
    (
        "--nnodes 2 --node-rank 2 train.py",
        "--node-rank 2: must be 0..1, as --nnodes is 2",
    ),
    (
        "--nnodes 1:2 --node-rank 0 train.py",
        (
            "--nnodes 1:2 with --node-rank: fixed ranks need a fixed number of nodes; "
            "use --rdzv-endpoint HOST:PORT for an elastic job"
        ),
    ),
    (
        "--rdzv-conf join_timout=3 train.py",
        "--rdzv-conf join_timout=3: unknown key join_timout; did you mean join_timeout?",
    ),
    ("--rdzv-conf is_host train.py", "--rdzv-conf is_host: 'is_host' is not KEY=VALUE"),
    (
        "--rdzv-conf is_host=maybe train.py",
        "--rdzv-conf is_host=maybe: needs 1 or 0, true or false",
    ),
    (
        "--rdzv-conf join_timeout=0 train.py",
        "--rdzv-conf join_timeout=0: needs a number of seconds, more than 0",
    ),
    (
        "--rdzv-conf store_type=file train.py",
        "--rdzv-conf store_type=file: not yet; leave it out to meet over TCP",
    ),
    ("--rdzv-conf rank=1 train.py", "--rdzv-conf rank=1: rank is given by --node-rank"),
    (
        "--redirects 4 train.py",
        "--redirects 4: needs 0 to 3, or LOCAL_RANK:0-3 with commas, for example 0:1,1:3",
    ),
    ("-t 1,2 train.py", "--tee 1,2: needs LOCAL_RANK:0-3 in each part, for example 0:1,1:3"),
    (
        "--signals-to-handle SIGTREM train.py",
        (
            "--signals-to-handle SIGTREM: SIGTREM is no signal that can be handled; "
            "did you mean SIGTERM?"
        ),
    ),
    ("--output loud train.py", "--output loud: needs one of auto, inherit, prefix"),
    ("--log-format yaml train.py", "--log-format yaml: needs one of text, json"),
    (
        "--exit-code failed=256 train.py",
        (
            "--exit-code failed=256: needs CLASS=N: one of success, failed, usage, infrastructure, "
            "and 0 to 255"
        ),
    ),
    (
        "--no-restart-on 0 train.py",
        "--no-restart-on 0: needs exit codes from 1 to 255, for example 3 or 3,77",
    ),
    ("--on-join at-checkpoint train.py", "--on-join at-checkpoint: not yet; use restart or hold"),
    ("--on-join never train.py", "--on-join never: needs one of restart, hold"),
    ("--virtual-local-rank train.py", "--virtual-local-rank: not yet"),
    ("--numa-binding node train.py", "--numa-binding node: not yet"),
    ("--local-ranks-filter 0 train.py", "--local-ranks-filter 0: not yet"),
    ("--duplicate-stdout-filters a train.py", "--duplicate-stdout-filters a: not yet"),
    ("--duplicate_stderr_filters a train.py", "--duplicate-stderr-filters a: not yet"),
    (
        "--start-method fork train.py",
        "--start-method fork: not yet; use spawn or leave it out",
    ),
    (
        "--event-log-handler x train.py",
        "--event-log-handler x: not yet; use null or leave it out",
    ),
    ("--logs-specs x train.py", "--logs-specs x: not yet; use default or leave it out"),
    (
        "--token-file f --insecure train.py",
        "--token-file f: has no effect with --insecure; give one of the two",
    ),
    ("", "the script is missing; for example: rallypoint run --nproc-per-node 2 train.py"),
    ("nosuch.py", "nosuch.py: no such file"),
    ("pkg.mod", "pkg.mod: no such file; it looks like a module: add -m"),
    ("--no-python nosuch", "nosuch: no such program; check its path, or PATH"),
    (
        "-m --no-python echo",
        "--module with --no-python: a module is run by Python's -m; give one of them",
    ),
)


@pytest.mark.parametrize(("line", "message"), BAD)
def test_each_mistake_gets_one_line(line: str, message: str) -> None:
    assert refusal(line) == message


BAD_ENVIRONMENT: tuple[tuple[str, str, str], ...] = (
    ("PET_NNODES", "4:2", "needs 1 <= MIN <= MAX <= 100000"),
    ("PET_STANDALONE", "maybe", "needs 1 or 0, true or false"),
    ("PET_VIRTUAL_LOCAL_RANK", "1", "not yet"),
    ("PET_START_METHOD", "forkserver", "not yet; use spawn or leave it out"),
    ("RALLYPOINT_LEASE", "soon", "needs a number of seconds"),
    ("LOGLEVEL", "loud", "needs one of DEBUG, INFO, WARNING, ERROR, CRITICAL"),
    ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "-1", "needs a number of seconds, 0 or more"),
    ("PYTHON_EXEC", "pyhton", "no such program"),
)


@pytest.mark.parametrize(("name", "text", "why"), BAD_ENVIRONMENT)
def test_a_mistake_in_the_environment_names_the_variable(name: str, text: str, why: str) -> None:
    assert refusal("train.py", **{name: text}) == f"{name}={text}: {why}"


def test_several_nodes_without_a_place_to_meet_are_shown_both_ways() -> None:
    assert refusal("--nnodes 2:4 --master-port 5 train.py") == (
        "--nnodes 2:4: the nodes need a place to meet; start each one with\n"
        "  rallypoint run --nnodes 2:4 --rdzv-endpoint HOST:29400 ...\n"
        "or, with ranks of your own (K is 0 on the node ADDRESS, then 1, 2, ...),\n"
        "  rallypoint run --nnodes 4 --node-rank K --master-addr ADDRESS ..."
    )


@pytest.mark.parametrize("line", ["--help", "-h", "--nnodes 2 --help train.py", "-mh"])
def test_help_may_be_asked_for_before_the_script(line: str) -> None:
    with pytest.raises(HelpRequested):
        parse(line)


def test_the_help_fits_a_terminal_and_names_every_option() -> None:
    text = help_text()
    assert max(len(line) for line in text.splitlines()) <= 80
    for name in FLAGS:
        assert name in text
