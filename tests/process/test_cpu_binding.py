"""Which CPUs each worker gets on machines of many shapes (`--numa-binding`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.harness.sysfs_machines import make_machine

from rallypoint.config import AffinityMode, NumaOptions
from rallypoint.core.cpu_binding import BindingImpossible, parse_cpu_list
from rallypoint.errors import UsageError
from rallypoint.process.affinity import Hardware, read_cpus, worker_cpus
from rallypoint.process.devices import Gpu

EIGHT_GPUS = {f"0000:{bus:02x}:00.0": bus // 4 for bus in range(8)}
"""Four on each of two nodes."""


def cpus(
    sys: str,
    mode: str,
    workers: int,
    *,
    gpus: Sequence[str] = (),
    visible: str | None = None,
    allowed: str = "0-1023",
    fall_back: bool = False,
) -> tuple[list[str], str]:
    """The CPUs of each worker in the kernel's form, and the remark."""
    bound, notice = worker_cpus(
        workers,
        NumaOptions(AffinityMode(mode), fall_back),
        visible,
        Hardware(
            gpus=lambda: [Gpu(f"GPU-{n}", address) for n, address in enumerate(gpus)],
            allowed=lambda: parse_cpu_list(allowed),
            sys=sys,
        ),
    )
    return [",".join(map(str, sorted(of_worker))) for of_worker in bound], notice


def listed(text: str) -> str:
    return ",".join(map(str, sorted(parse_cpu_list(text))))


@pytest.fixture(scope="module")
def two_sockets(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two sockets of two nodes, each of 8 cores with 2 threads, 4 cores to a cache; 8 GPUs on the
    second and the last node. It is only read."""
    gpus = {address: 1 if node == 0 else 3 for address, node in EIGHT_GPUS.items()}
    return make_machine(
        tmp_path_factory.mktemp("sys"),
        sockets=2,
        nodes_per_socket=2,
        cores_per_node=8,
        threads=2,
        cores_per_cache=4,
        gpus=gpus,
    )


@pytest.mark.parametrize("text", ["", "\n", "0", "0-3,8,10-11\n"])
def test_lists_of_cpus(text: str) -> None:
    known = {"": set(), "0": {0}, "0-3,8,10-11": {0, 1, 2, 3, 8, 10, 11}}
    assert parse_cpu_list(text) == known[text.strip()]


def test_node_is_all_of_the_gpus_node(two_sockets: str) -> None:
    found, notice = cpus(two_sockets, "node", 8, gpus=[*EIGHT_GPUS])
    assert found == [listed("8-15,40-47")] * 4 + [listed("24-31,56-63")] * 4
    assert notice == ""


def test_socket_is_all_nodes_of_the_gpus_socket(two_sockets: str) -> None:
    found, _ = cpus(two_sockets, "socket", 8, gpus=[*EIGHT_GPUS])
    assert found == [listed("0-15,32-47")] * 4 + [listed("16-31,48-63")] * 4


def test_exclusive_is_a_share_of_whole_cores(two_sockets: str) -> None:
    found, _ = cpus(two_sockets, "exclusive", 8, gpus=[*EIGHT_GPUS])
    assert found[:4] == [listed(f"{a}-{a + 1},{a + 32}-{a + 33}") for a in (8, 10, 12, 14)]
    assert found[4:] == [listed(f"{a}-{a + 1},{a + 32}-{a + 33}") for a in (24, 26, 28, 30)]


def test_exclusive_gives_what_does_not_divide_to_the_first(two_sockets: str) -> None:
    found, _ = cpus(two_sockets, "exclusive", 3, gpus=[*EIGHT_GPUS], visible="0,1,2")
    assert found == [listed("8-10,40-42"), listed("11-13,43-45"), listed("14-15,46-47")]


def test_exclusive_leaves_the_share_of_a_visible_gpu_without_a_worker(two_sockets: str) -> None:
    found, _ = cpus(two_sockets, "exclusive", 2, gpus=[*EIGHT_GPUS])
    assert found == [listed("8-9,40-41"), listed("10-11,42-43")]


def test_core_complex_is_another_cache_for_each_then_they_are_shared(two_sockets: str) -> None:
    found, _ = cpus(two_sockets, "core-complex", 4, gpus=[*EIGHT_GPUS])
    first, second = listed("8-11,40-43"), listed("12-15,44-47")
    assert found == [first, second, first, second]


def test_core_complex_takes_one_that_is_cut_down_last(two_sockets: str) -> None:
    found, _ = cpus(two_sockets, "core-complex", 2, gpus=[*EIGHT_GPUS], allowed="9-15")
    assert found == [listed("12-15"), listed("9-11")]


def test_the_gpus_are_those_that_are_visible_in_that_order(two_sockets: str) -> None:
    found, _ = cpus(two_sockets, "node", 2, gpus=[*EIGHT_GPUS], visible="GPU-5,1")
    assert found == [listed("24-31,56-63"), listed("8-15,40-47")]


def test_cpus_that_are_offline_or_not_allowed_are_nobodys(tmp_path: Path) -> None:
    sys = make_machine(tmp_path, sockets=2, threads=2, offline=frozenset({1, 12}))
    assert cpus(sys, "node", 2, allowed="0-2,4-15")[0] == [listed("0,2,8-11"), listed("4-7,13-15")]
    found, _ = cpus(sys, "exclusive", 4, allowed="0-2,4-15")
    assert found == ["0,8,9", "2,10,11", "4,5,13", "6,7,14,15"]


def test_without_gpus_workers_are_spread_over_the_cores(two_sockets: str) -> None:
    nodes = ["0-7,32-39", "8-15,40-47", "16-23,48-55", "24-31,56-63"]
    found, notice = cpus(two_sockets, "node", 4)
    assert found == [listed(node) for node in nodes]
    assert notice == (
        "--numa-binding node: no NVIDIA GPU is visible: the workers are spread over 4 NUMA nodes"
    )
    assert cpus(two_sockets, "node", 8)[0] == [listed(node) for node in nodes for _ in range(2)]
    assert cpus(two_sockets, "node", 2)[0] == [listed(nodes[1]), listed(nodes[3])]
    found, _ = cpus(two_sockets, "exclusive", 32)
    assert found == [f"{core},{core + 32}" for core in range(32)]
    hidden, _ = cpus(two_sockets, "node", 4, gpus=[*EIGHT_GPUS], visible="")
    assert hidden == [listed(node) for node in nodes]


def test_the_spread_follows_what_is_allowed(two_sockets: str) -> None:
    """A container with a quarter of its cores on the second node."""
    found, _ = cpus(two_sockets, "node", 4, allowed="0-5,8-9")
    assert found == [listed("0-5")] * 3 + [listed("8-9")]


def test_a_machine_without_numa_is_one_node(tmp_path: Path) -> None:
    sys = make_machine(tmp_path, cores_per_node=8, gpus={"0000:01:00.0": -1})
    for path in sorted((tmp_path / "devices/system/node").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "devices/system/node").rmdir()
    assert cpus(sys, "node", 2)[0] == [listed("0-7")] * 2
    assert cpus(sys, "core-complex", 1, gpus=["0000:01:00.0"])[0] == [listed("0-3")]


def test_without_caches_each_cpu_has_its_own(tmp_path: Path) -> None:
    sys = make_machine(tmp_path)
    for path in tmp_path.glob("devices/system/cpu/*/cache/*/*"):
        path.unlink()
    for path in tmp_path.glob("devices/system/cpu/*/cache/*"):
        path.rmdir()
    assert cpus(sys, "core-complex", 4)[0] == ["0", "1", "2", "3"]


def refusals(tmp_path: Path) -> list[tuple[str, tuple[list[str], str]]]:
    """What can't be done, told with the fallback: no CPUs, and the reason."""
    gpus = {"0000:01:00.0": 0, "0000:02:00.0": -1, "0000:03:00.0": 1}
    sys = make_machine(tmp_path / "a", sockets=2, gpus=gpus)
    addresses = [*gpus]
    small = make_machine(tmp_path / "b", cores_per_node=2)
    return [
        ("2 workers, but 1 GPU visible", cpus(sys, "node", 2, gpus=addresses[:1], fall_back=True)),
        ("node of GPU 1", cpus(sys, "node", 2, gpus=addresses, fall_back=True)),
        ("a MIG instance", cpus(sys, "node", 1, gpus=addresses, visible="MIG-1", fall_back=True)),
        ("node 1", cpus(sys, "node", 1, gpus=addresses, visible="2", allowed="0", fall_back=True)),
        ("too few for 3", cpus(small, "exclusive", 3, fall_back=True)),
        ("does not list", cpus(str(tmp_path / "nothing"), "node", 1, fall_back=True)),
        ("lists none", cpus(small, "node", 1, allowed="7", fall_back=True)),
    ]


def test_what_is_impossible_leaves_the_workers_unbound_where_that_was_asked(
    tmp_path: Path,
) -> None:
    for why, (bound, notice) in refusals(tmp_path):
        assert bound == []
        assert why in notice
        assert notice.endswith(": the workers run unbound")


def test_else_it_is_an_error_of_one_line(tmp_path: Path) -> None:
    sys = make_machine(tmp_path, cores_per_node=2)
    with pytest.raises(UsageError) as caught:
        cpus(sys, "exclusive", 3)
    assert str(caught.value) == (
        "--numa-binding exclusive: NUMA node 0 has 2 physical cores: too few for 3 exclusive "
        "shares; leave it out"
    )


def test_garbage_below_sys_is_told_not_raised(tmp_path: Path) -> None:
    sys = make_machine(tmp_path)
    (tmp_path / "devices/system/cpu/online").write_text("0-x\n")
    with pytest.raises(BindingImpossible, match="does not list the CPUs"):
        read_cpus(frozenset({0}), sys)
