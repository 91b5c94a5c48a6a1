"""The command line: what it means."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.command_line import MACHINE, PYTHON, parse
from tests.harness.engines import read_by_etcd, read_by_kubernetes

from rallypoint.cli.options import RUN, default_of, parse_run
from rallypoint.cli.parser import HelpRequested, help_text
from rallypoint.config import (
    AffinityMode,
    Endpoint,
    HandlerConfig,
    NumaOptions,
    OnJoin,
    OutputMode,
    RegisterConfig,
    StartMethod,
)
from rallypoint.core.settings import FLAGS
from rallypoint.errors import UsageError
from rallypoint.register.etcd.parameters import EtcdConfig
from rallypoint.register.kubernetes.parameters import KubernetesConfig, pod_server

BY_REGISTER = "--rdzv-backend file --rdzv-endpoint /shared/jobs --rdzv-id mine"
EMPTY_FOR_TORCHRUN = frozenset(
    {"--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--local-addr", "--master-addr", "--role"}
    | {"--log-dir", "--local-ranks-filter", "--signals-to-handle"}
    | {"--duplicate-stdout-filters", "--duplicate-stderr-filters", "--log-line-prefix-template"}
)
"""Those with which torchrun (2.14 for the template) runs a job of one node when they are empty."""


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


def test_A14_devices_are_counted_for_the_one_worker_of_a_node_with_jax_alone() -> None:
    lines = ("--env-style jax", "--env-style jax --nproc-per-node 2", "--env-style mpi", "")
    assert [parse(f"{line} train.py").workers.devices for line in lines] == [4, 0, 0, 0]


def test_an_empty_log_dir_is_none_as_for_torchrun() -> None:
    assert parse("--log-dir= --redirects 3 train.py").output.log_dir is None
    assert parse("train.py", PET_LOG_DIR="").output.log_dir is None


def test_a_prefix_that_names_one_torchrun_option_still_does() -> None:
    config = parse("--re 2 --max- 4 --log-d logs train.py")
    assert (config.output.redirects, config.output.log_dir) == ("2", "logs")
    assert config.rendezvous.max_restarts == 4


@pytest.mark.parametrize(
    ("line", "redirects", "tee"),
    [
        ("-r 3 -t 1 train.py", "3", "1"),
        ("-r3 -t=1 train.py", "3", "1"),
        ("--redirects 0:1,10:3 --tee=2 --nproc-per-node 11 train.py", "0:1,10:3", "2"),
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
    meeting = restart = config.rendezvous
    assert (meeting.lease_s, meeting.heartbeat_s) == (4.0, 0.8)
    assert meeting.on_join is OnJoin.HOLD
    assert meeting.reconnect_timeout_s == 9.0
    assert (meeting.join_settle_s, meeting.min_growth_interval_s) == (1.0, 0.0)
    assert (meeting.max_node_losses_per_hour, meeting.node_id) == (5, "n7")
    assert meeting.topology == "rack-1"
    assert (restart.restart_window_s, restart.restart_backoff_s) == (60.0, 2.5)
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


def test_a_worker_that_starts_a_job_takes_neither_its_agents_port_nor_its_summary() -> None:
    given = {"RALLYPOINT_METRICS_PORT": "9400", "RALLYPOINT_JSON_SUMMARY": "s.json"}
    watched = parse("train.py", **given, PET_EVENT_LOG_HANDLER="jsonl:e").observe
    assert (str(watched.metrics), watched.json_summary) == ("127.0.0.1:9400", "s.json")
    assert watched.event_log_handler == "jsonl:e"
    inside = parse("train.py", **given, RALLYPOINT_INCARNATION="1").observe
    assert (inside.metrics, inside.json_summary) == (None, None)


def test_a_descriptor_with_the_token_is_the_agents_own() -> None:
    given = {"RALLYPOINT_TOKEN_FD": "3"}
    assert parse("train.py", **given).access.token_fd == 3
    assert parse("train.py", RALLYPOINT_INCARNATION="1", **given).access.token_fd is None


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


@pytest.mark.parametrize("line", ["--rdzv-endpoint a:0", "--master-port 0", "--nnodes 1:1"])
def test_any_port_will_do_for_one_node(line: str) -> None:
    meeting = parse(f"{line} train.py").rendezvous
    assert (meeting.endpoint.port, meeting.is_host, meeting.static) == (0, True, False)


def test_an_elastic_job() -> None:
    for backend in ("", "--rdzv-backend c10d ", "--rdzv-backend=tcp "):
        meeting = parse(f"--nnodes=2:4 {backend}--rdzv-endpoint a:1 train.py").rendezvous
        assert (meeting.min_nodes, meeting.max_nodes) == (2, 4)
        assert (meeting.static, meeting.node_rank, meeting.is_host) == (False, None, None)
        assert meeting.run_id == "none"


def test_a_directory_means_that_any_node_may_lead() -> None:
    line = f"{BY_REGISTER} --nnodes 2:4 train.py"
    config = parse(line)
    meeting = config.rendezvous
    assert meeting.register == RegisterConfig("file", "/shared/jobs", ports=(0, 0))
    assert (meeting.handler, meeting.is_host, meeting.static) == (None, None, False)
    assert (meeting.min_nodes, meeting.max_nodes, meeting.run_id) == (2, 4, "mine")
    assert not config.access.insecure
    assert config.notices == ()
    assert parse(f"--port-range 29400-29409 {line}").rendezvous.register == RegisterConfig(
        "file", "/shared/jobs", ports=(29400, 29409)
    )
    assert parse(line, RALLYPOINT_PORT_RANGE="5").rendezvous.register == RegisterConfig(
        "file", "/shared/jobs", ports=(5, 5)
    )


def test_an_etcd_means_that_any_node_may_lead() -> None:
    """With the keys of either of torch's backends; the others mean what they always do."""
    line = "--rdzv-backend etcd --rdzv-endpoint e1,e2:5,[::1]:6 --rdzv-id mine --nnodes 2:4"
    config = parse(f"{line} --port-range 5-6 train.py")
    register = config.rendezvous.register
    assert register == RegisterConfig("etcd", "e1,e2:5,[::1]:6", ports=(5, 6))
    assert read_by_etcd(register) == EtcdConfig(("e1:2379", "e2:5", "[::1]:6"))
    assert (config.rendezvous.handler, config.rendezvous.is_host) == (None, None)
    assert config.notices == ()
    expected = EtcdConfig(
        ("e1:2379", "e2:5", "[::1]:6"),
        protocol="https",
        prefix="/a/b",
        user="u",
        password_file="/where/i/am/p",
        cacert="/ca",
        cert="/where/i/am/c",
        key="/where/i/am/k",
    )
    conf = "protocol=https,etcd_prefix=/a/b/,user=u,password_file=p,join_timeout=5"
    for files in ("cacert=/ca,cert=c,key=k", "ca_cert=/ca,ssl_cert=c,ssl_cert_key=k"):
        meeting = parse(f"{line} --rdzv-conf {conf},{files} train.py").rendezvous
        assert read_by_etcd(meeting.register) == expected
        assert meeting.join_timeout_s == 5
    (notice,) = parse(f"{line} --node-rank 1 train.py").notices
    assert notice == (
        "--node-rank 1 has no effect with --rdzv-backend etcd: only fixed ranks use it "
        "(--rdzv-backend static)"
    )


def test_kubernetes_means_that_any_node_may_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pod nothing else needs to be said."""
    line = "--rdzv-backend kubernetes --rdzv-id mine --nnodes 2:4"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    config = parse(f"{line} train.py")
    assert config.rendezvous.register == RegisterConfig("kubernetes")
    expected = KubernetesConfig("https://10.0.0.1:443")
    assert read_by_kubernetes(config.rendezvous.register) == expected
    assert (config.rendezvous.handler, config.rendezvous.is_host) == (None, None)
    assert config.notices == ()
    conf = "server=http://h:80/k8s/,service_account=sa,join_timeout=5,hold=5"
    line = f"{line} --rdzv-endpoint training --port-range 5-6 --rdzv-conf {conf} train.py"
    meeting = parse(line).rendezvous
    expected = KubernetesConfig("http://h:80/k8s", "training", "/where/i/am/sa")
    assert meeting.register is not None
    assert (meeting.register.ports, meeting.register.hold_s) == ((5, 6), 5)
    assert read_by_kubernetes(meeting.register) == expected
    assert meeting.join_timeout_s == 5


@pytest.mark.parametrize(
    ("environ", "server"),
    [
        ({"HOST": "10.0.0.1", "PORT": "443"}, "https://10.0.0.1:443"),
        ({"HOST": "fd00::1", "PORT": "6443"}, "https://[fd00::1]:6443"),
        ({"PORT": "443"}, ""),
    ],
)
def test_a_pod_is_told_where_its_api_server_is(environ: dict[str, str], server: str) -> None:
    found = {f"KUBERNETES_SERVICE_{name}": value for name, value in environ.items()}
    assert pod_server(found) == server


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("jobs", "/where/i/am/jobs"),
        ("./c:1", "/where/i/am/./c:1"),
        ("./a:b/c:1", "/where/i/am/./a:b/c:1"),
    ],
)
def test_a_relative_directory_is_one_of_the_current_directory(given: str, path: str) -> None:
    line = f"--rdzv-backend file --rdzv-endpoint {given} --rdzv-id mine train.py"
    assert parse(line).rendezvous.register == RegisterConfig("file", path)


def test_with_a_directory_the_coordinator_has_all_its_options() -> None:
    """Each of them says the same as with an address."""
    given = (
        "--nnodes 2:4 --lease 30 --hang-timeout 60 --on-join hold --topology rack --insecure "
        "--rdzv-conf join_timeout=5 --local-addr a --store-port 7 --node-id n --rdzv-id mine"
    )
    by_register = parse(f"{given} {BY_REGISTER} train.py")
    by_address = parse(f"{given} --rdzv-endpoint a train.py")
    assert by_register.notices == ()
    alike = replace(by_register.rendezvous, register=None, endpoint=by_address.rendezvous.endpoint)
    assert replace(by_register, rendezvous=alike) == by_address


def test_with_a_directory_no_node_is_named_that_hosts() -> None:
    config = parse(f"--nnodes 2 {BY_REGISTER} --rdzv-conf is_host=1,host_timeout=5 train.py")
    usual = parse(f"--nnodes 2 {BY_REGISTER} train.py")
    assert config.rendezvous == usual.rendezvous
    assert config.notices == tuple(
        f"--rdzv-conf {each} has no effect with --rdzv-backend file: any node may host the job"
        for each in ("is_host=1", "host_timeout=5")
    )


OPERATORS = {"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "b", "PET_MASTER_PORT": "29400"}


@pytest.mark.parametrize(
    "how",
    [
        "--rdzv-backend c10d --rdzv-endpoint a",
        "--rdzv-backend=tcp --rdzv-endpoint=a --spares 1",
        "--rdzv-backend file --rdzv-endpoint /shared/jobs --rdzv-id mine",
        "--rdzv-backend etcd --rdzv-endpoint e1 --rdzv-id mine",
    ],
)
def test_what_operators_set_for_fixed_ranks_changes_no_elastic_job(how: str) -> None:
    """The port is that of the coordinator: no store of the workers may want it, too."""
    config, usual = (parse(f"--nnodes 4 {how} train.py", **each) for each in (OPERATORS, {}))
    assert config.rendezvous == usual.rendezvous
    assert not config.rendezvous.static
    backend = how.split()[0] if "=" in how else " ".join(how.split()[:2])
    assert config.notices == (
        (
            "PET_NODE_RANK=1, PET_MASTER_ADDR=b and PET_MASTER_PORT=29400 have no effect with "
            f"{backend.replace('=', ' ')}: only fixed ranks use them (--rdzv-backend static); "
            "--store-port is the port of the workers' store"
        ),
    )


def test_what_operators_set_for_fixed_ranks_changes_no_elastic_job_of_one_node() -> None:
    for given in ("--master-port 5", "--master-addr a"):
        config = parse(f"--rdzv-backend c10d {given} train.py")
        assert (config.rendezvous.endpoint, config.rendezvous.static) == (
            Endpoint("localhost", 0),
            False,
        )
        assert config.notices[0].startswith(f"{given} has no effect with --rdzv-backend c10d: ")


def test_an_endpoint_wins_over_another_address_of_fixed_ranks_and_that_is_said() -> None:
    line = "--nnodes 2 --node-rank 1 --rdzv-endpoint a:7 --master-addr {} --master-port {} train.py"
    same, other = parse(line.format("a", 7)), parse(line.format("b", 8))
    assert same.rendezvous == other.rendezvous
    assert same.notices == ()
    assert other.notices == (
        "--master-addr b has no effect with --rdzv-endpoint a:7",
        "--master-port 8 has no effect with --rdzv-endpoint a:7",
    )


def test_standalone_wins_over_a_directory() -> None:
    config = parse(f"--standalone {BY_REGISTER} train.py")
    assert (config.rendezvous.register, config.rendezvous.is_host) == (None, True)
    assert config.notices == ("--rdzv-endpoint /shared/jobs has no effect with --standalone",)


def test_a_range_of_ports_is_of_no_use_without_a_directory() -> None:
    for line in ("--rdzv-endpoint a", "--standalone", ""):
        assert parse(f"{line} --port-range 5-6 train.py").notices == (
            "--port-range 5-6 has no effect without --rdzv-backend file, etcd or kubernetes",
        )


def test_a_handler_gets_what_is_its_own_as_it_was_written() -> None:
    conf = "--rdzv-conf join_timeout=5,colour=blue"
    backend = "--rdzv-backend theirs"
    line = f"--nnodes 1:3 {backend} --rdzv-endpoint /shared/x {conf} train.py"
    meeting = parse(line).rendezvous
    given = (("join_timeout", "5"), ("colour", "blue"))
    assert meeting.handler == HandlerConfig("theirs", "/shared/x", given)
    assert (meeting.min_nodes, meeting.max_nodes, meeting.run_id) == (1, 3, "none")
    ranked = parse(f"--node-rank 1 --topology rack --port-range 5 --env-style jax {line}")
    assert ranked.rendezvous.handler is not None
    assert ranked.rendezvous.env_styles == ("jax",)
    assert ("rank", "1") in ranked.rendezvous.handler.conf
    assert ranked.notices == (
        "--port-range 5 has no effect with --rdzv-backend theirs",
        "--topology rack has no effect with --rdzv-backend theirs",
    )
    assert parse("--standalone --rdzv-backend theirs train.py").rendezvous.handler is None


def test_a_backend_of_another_package_is_known_by_its_name() -> None:
    given = parse("--rdzv-backend theirs --insecure train.py")
    assert given.rendezvous.handler == HandlerConfig("theirs")
    assert given.notices == ("--insecure has no effect with --rdzv-backend theirs",)


def test_the_port_of_the_workers_store_may_be_chosen() -> None:
    for how in ("--nnodes 2 --rdzv-endpoint a", f"--nnodes 2 {BY_REGISTER}", "--standalone"):
        assert parse(f"{how} --store-port 29501 train.py").rendezvous.store.port == 29501
    assert parse("--rdzv-backend theirs --store-port 5 train.py").rendezvous.store.port == 5
    config = parse("--nnodes 2 --node-rank 0 --master-addr a --store-port 5 train.py")
    assert config.rendezvous.store.port == 0
    assert config.notices == (
        "--store-port 5 has no effect with fixed ranks: the store is at a:29500",
    )
    with pytest.raises(UsageError, match="the coordinator has that port"):
        parse("--nnodes 2 --rdzv-endpoint a --store-port 29400 train.py")


def test_a_port_of_fixed_ranks_is_none_of_a_job_alone() -> None:
    config = parse("--standalone --master-port 29501 --node-rank 1 train.py")
    assert config.rendezvous.store.port == 0
    assert config.notices == (
        (
            "--node-rank 1 and --master-port 29501 have no effect with --standalone: only fixed "
            "ranks use them (--rdzv-backend static); --store-port is the port of the workers' store"
        ),
    )


def test_fixed_ranks() -> None:
    line = "--nnodes 3 --node-rank {} --master-addr a --master-port 5 train.py"
    first, last = parse(line.format(0)).rendezvous, parse(line.format(2)).rendezvous
    assert first.static
    assert last.static
    assert (first.node_rank, first.is_host, last.node_rank, last.is_host) == (0, True, 2, False)
    assert first.endpoint == last.endpoint == Endpoint("a", 5)
    assert (first.run_id, first.store.port) == ("none", 0)
    for short in ("--nnodes 2 --node-rank 0 train.py", "--nnodes 2 --rdzv-backend static train.py"):
        config = parse(short)
        assert config.rendezvous.static
        assert config.rendezvous.endpoint == Endpoint("127.0.0.1", 29500)
    elsewhere = parse("--nnodes 2 --node-rank 1 --rdzv-endpoint a:7 train.py").rendezvous
    assert elsewhere.static
    assert elsewhere.endpoint == Endpoint("a", 7)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--node-rank 1", "without --master-addr: each node looks for node rank 0 on its own"),
        ("--rdzv-backend static", "without --master-addr: each node looks for node rank 0 on"),
        ("--node-rank 0 --master-addr localhost", "--master-addr localhost: each node looks"),
        ("--node-rank 0 --master-addr 127.0.1.1", "--master-addr 127.0.1.1: each node looks"),
        ("--node-rank 0 --rdzv-endpoint [::1]:9", "--rdzv-endpoint [::1]:9: each node looks"),
    ],
)
def test_fixed_ranks_that_look_for_rank_0_on_their_own_machine_are_told_so(
    words: str, said: str
) -> None:
    (notice,) = parse(f"--nnodes 2 {words} train.py").notices
    assert notice.startswith(said)
    flag = "--rdzv-endpoint HOST:PORT" if "--rdzv-endpoint" in words else "--master-addr HOST"
    assert notice.endswith(f"give all of them {flag}, the host of node rank 0")


@pytest.mark.parametrize(
    "words",
    [
        "--nnodes 2 --node-rank 1 --master-addr node-a",
        "--nnodes 2 --node-rank 1 --master-addr 10.0.0.1",
        "--nnodes 1 --node-rank 0 --master-port 5",
        "--nnodes 2 --rdzv-endpoint localhost",
    ],
)
def test_other_nodes_are_not_told_so(words: str) -> None:
    assert not parse(f"{words} train.py").notices


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train.py 1 --nproc-per-node 2", "--nproc-per-node stands behind train.py, so it belongs"),
        ("train.py --nnodes=2 --rdzv_id a", "--nnodes and --rdzv-id stand behind train.py, so"),
        ("--nnodes 1 -m train --nproc_per_node 2", "--nproc-per-node stands behind train, so it"),
    ],
)
def test_options_behind_the_script_are_said_to_be_the_scripts(line: str, said: str) -> None:
    config = parse(line)
    (notice,) = config.notices
    assert notice.startswith(said)
    assert notice.endswith(" to the script: options of rallypoint run stand before it")
    assert config.workers.count == 1


@pytest.mark.parametrize(
    "line",
    [
        "train.py --lr 1 --log-dir logs --output o --role r --job j",
        "--nnodes 1 train.py --nnodes 2",
        "-- train.py --nnodes 2",
        "train.py --lr 1 -- --nnodes 2",
        "--no-python echo --nnodes 2 other",
        "train.py --nproc-per-node 2 other.py",
        "-m torch.distributed.run --nproc-per-node 2 -m other",
    ],
)
def test_what_a_script_may_have_itself_is_not_remarked(line: str) -> None:
    assert not parse(line).notices


def test_a_variable_counts_as_given_before_the_script() -> None:
    assert not parse("train.py --nnodes 2", PET_NNODES="1").notices


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


def test_who_hosts_an_elastic_job_does_not_depend_on_the_rank_of_a_node() -> None:
    line = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a --node-rank {} train.py"
    for rank in (0, 1):
        meeting = parse(line.format(rank)).rendezvous
        assert (meeting.is_host, meeting.node_rank) == (None, None)
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
    assert (both.rendezvous.reconnect_grace_s, both.rendezvous.reset_grace_s) == (1.0, 1.0)
    graces = parse("--reconnect-grace 0 --reset-grace 7 train.py").rendezvous
    assert (graces.reconnect_grace_s, graces.reset_grace_s) == (0.0, 7.0)
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


def test_virtual_local_ranks_need_a_device_for_each_worker() -> None:
    words = "--virtual-local-rank --nproc-per-node 2 train.py"
    assert parse(words).workers.virtual_local_rank is True
    assert parse(words, CUDA_VISIBLE_DEVICES="4,7").workers.virtual_local_rank is True
    assert parse("train.py", PET_VIRTUAL_LOCAL_RANK="1").workers.virtual_local_rank is True
    assert parse("train.py", PET_VIRTUAL_LOCAL_RANK="0").workers.virtual_local_rank is False
    assert parse("train.py", CUDA_VISIBLE_DEVICES="").workers.virtual_local_rank is False
    with pytest.raises(UsageError) as caught:
        parse(words, CUDA_VISIBLE_DEVICES="4")
    assert str(caught.value) == (
        "--virtual-local-rank: CUDA_VISIBLE_DEVICES=4 names 1 device for 2 workers; "
        "name one device for each, or start fewer workers"
    )


def test_every_mode_of_torchs_numa_binding() -> None:
    assert parse("train.py").workers.numa is None
    for mode in AffinityMode:
        assert parse(f"--numa_binding={mode} train.py").workers.numa == NumaOptions(mode)


def test_what_is_imported_beforehand() -> None:
    assert parse("--preload torch,numpy.linalg,torch train.py").workers.preload == (
        "torch",
        "numpy.linalg",
    )
    assert parse("train.py", RALLYPOINT_PRELOAD="torch").workers.method is StartMethod.FORKSERVER
    assert parse("train.py").workers.method is StartMethod.SPAWN


@pytest.mark.parametrize("method", StartMethod)
def test_the_start_method_is_that_of_run_path(method: StartMethod) -> None:
    chosen = f"--start-method {method.value}"
    assert parse(f"{chosen} --run-path train.py").workers.method is method
    assert parse(f"{chosen} train.py").workers.method is StartMethod.SPAWN


def test_exit_codes_are_a_set_on_which_all_nodes_agree() -> None:
    written = parse("--no-restart-on 77,3,77 train.py").rendezvous.no_restart_exit_codes
    assert written == parse("--no-restart-on 3,77 train.py").rendezvous.no_restart_exit_codes
    everything = ",".join(str(code) for code in range(1, 256))
    restart = parse(f"--no-restart-on {everything},255 train.py").rendezvous
    assert restart.no_restart_exit_codes == tuple(range(1, 256))


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


@pytest.mark.parametrize("line", ["--help", "-h", "--nnodes 2 --help train.py", "-mh"])
def test_help_may_be_asked_for_before_the_script(line: str) -> None:
    with pytest.raises(HelpRequested):
        parse(line)


def test_the_help_fits_a_terminal_and_names_every_option() -> None:
    text = help_text(RUN, default_of)
    assert max(len(line) for line in text.splitlines()) <= 80
    for name in FLAGS:
        assert name in text


def test_networks_that_may_use_the_store_are_checked() -> None:
    config = parse_run(
        ["--store-allow", "10.0.0.0/8,fd00::/8", "--store-allow=192.0.2.1", "train.py"],
        {},
        MACHINE,
    )
    assert config.access.store_networks == ("10.0.0.0/8", "fd00::/8", "192.0.2.1/32")
    with pytest.raises(UsageError, match=r"--store-allow 10\.0\.0\.1/8: needs networks"):
        parse_run(["--store-allow", "10.0.0.1/8", "train.py"], {}, MACHINE)


def test_output_is_filtered_copied_rotated_and_placed() -> None:
    line = (
        "--nproc-per-node 3 --tee 0:1,g12:3 --local-ranks-filter 0,2,g12 "
        "--duplicate-stdout-filters loss,a,,b --duplicate-stderr-filters ,, "
        "--log-layout rounds --log-max-bytes 10m train.py"
    )
    config = parse(line, OMP_NUM_THREADS="1")
    assert config.output.local_ranks_filter == (0, 2, "g12")
    assert config.output.duplicate_stdout_filters == ("loss", "a,b")
    assert config.output.duplicate_stderr_filters == (",",)
    assert (config.output.log_layout, config.output.log_max_bytes) == ("rounds", 10 << 20)
    assert config.notices == ()
    by_variables = parse(
        "train.py",
        PET_TEE="1",
        PET_LOCAL_RANKS_FILTER="",
        PET_DUPLICATE_STDOUT_FILTERS="loss",
        RALLYPOINT_LOG_LAYOUT="rounds",
        RALLYPOINT_LOG_MAX_BYTES="512",
    ).output
    assert by_variables.local_ranks_filter is None
    assert by_variables.duplicate_stdout_filters == ("loss",)
    assert (by_variables.log_layout, by_variables.log_max_bytes) == ("rounds", 512)


def test_the_prefix_of_teed_lines_is_a_flag_and_two_variables() -> None:
    variables = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<old> "}
    assert parse("train.py").output.prefix_template is None
    assert parse("train.py", **variables).output.prefix_template == "<old> "
    variables["PET_LOG_LINE_PREFIX_TEMPLATE"] = "<${hostname}> "
    assert parse("train.py", **variables).output.prefix_template == "<${hostname}> "
    for flag in ("--log-line-prefix-template", "--log_line_prefix_template"):
        found = parse(f"{flag}=<${{rank}}> train.py", **variables)
        assert found.output.prefix_template == "<${rank}>"


def test_an_empty_template_is_none_as_for_torchrun() -> None:
    variables = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<old> "}
    empty = "--log-line-prefix-template= train.py"
    assert parse(empty, **variables).output.prefix_template == "<old> "
    assert parse(empty).output.prefix_template is None
    assert parse("train.py", PET_LOG_LINE_PREFIX_TEMPLATE=" ").output.prefix_template == " "


def test_what_would_have_no_effect_is_remarked() -> None:
    config = parse("--duplicate-stderr-filters x --log-max-bytes 1G --redirects 0 train.py")
    assert config.notices == (
        "--duplicate-stderr-filters copies teed lines, and --tee is not given",
        "--log-max-bytes is about files, and neither --redirects nor --tee is given",
    )


@pytest.mark.parametrize("flag", sorted(flag for flag, row in FLAGS.items() if row.metavar))
def test_each_option_that_a_shell_variable_leaves_empty_is_not_given_or_refused_by_name(
    flag: str,
) -> None:
    if flag in EMPTY_FOR_TORCHRUN | {"--master-port", "--machine-id", "--topology", "--preload"}:
        made, usual = parse(f"{flag}= train.py"), parse("train.py")
        assert replace(made, rendezvous=usual.rendezvous) == usual
    else:
        with pytest.raises(UsageError) as raised:
            parse(f"{flag}= train.py")
        assert str(raised.value) == (
            f"{flag} is empty, as by a shell variable that is not set: give it a value, or leave "
            "it out"
        )


@pytest.mark.parametrize("more", ["", "--node-rank=1", "--rdzv-backend=file"])
def test_an_endpoint_of_several_nodes_that_is_empty_is_said_to_be_so(more: str) -> None:
    with pytest.raises(UsageError, match=r"^--rdzv-endpoint is empty, as by a shell variable"):
        parse(f"--nnodes=2 --rdzv-endpoint= {more} train.py")
    assert parse("--nnodes=2 --rdzv-endpoint= --master-addr=a train.py").rendezvous.static


def test_what_an_unset_shell_variable_leaves_empty_counts_as_not_given() -> None:
    line = "--rdzv-endpoint= --rdzv-id= --local-addr= --master-addr= --master-port= train.py"
    made, usual = parse(line).rendezvous, parse("train.py").rendezvous
    assert made.shared().differences(usual.shared()) == ()
    assert (made.endpoint, made.is_host) == (usual.endpoint, True)
    several = parse("--nnodes=2 --rdzv-endpoint=a:29400 --rdzv-id= train.py").rendezvous
    assert several.run_id == "none"
    with pytest.raises(UsageError, match="several nodes need an endpoint"):
        parse("--nnodes=2 --rdzv-endpoint= train.py")
    with pytest.raises(UsageError, match="--master-addr is empty"):
        parse("--nnodes=2 --node-rank=1 --master-addr= train.py")
    for free in ("--rdzv-endpoint=localhost:0", "--master-port=0"):
        assert parse(f"{free} train.py").rendezvous.endpoint.port == 0


def test_events_on_the_console_are_said_to_come_beside_the_agent_s_lines() -> None:
    (notice,) = parse("--event-log-handler console train.py").notices
    assert notice.startswith("--event-log-handler console prints each event as JSON, beside ")
    assert parse("--event-log-handler null train.py").notices == ()
