"""`--nproc-per-node gpu|auto` asks NVIDIA's library: here one made for the test, of four GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.harness.one_agent import agent, ended
from tests.harness.programs import run_python

from rallypoint.cli.machine import cpu_count

# Five places, one of whose GPUs has fallen off the bus (error 15). As in NVIDIA's own, nothing
# works before the start (1), nor with too little room (7); without a driver the start fails (9).
LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define PLACES 5
#define LOST 2
static int started, devices[PLACES];
int nvmlInit_v2(void) {
    if (getenv("NVML_TEST_NO_DRIVER")) return 9;
    return started = 1, 0;
}
int nvmlShutdown(void) { return started ? (started = 0) : 1; }
int nvmlDeviceGetCount_v2(unsigned *count) { return started ? (*count = PLACES, 0) : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (!started || index >= PLACES) return 1;
    return index == LOST ? 15 : (*device = &devices[index], 0);
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    unsigned place = (int *) device - devices;
    if (!started || place >= PLACES) return 1;
    if (length < 41) return 7;
    return snprintf(text, length, "GPU-%08x-0000-4000-8000-0123456789ab", 0xaaa1 + place) < 0;
}
struct pci { char legacy[16]; unsigned domain, bus, device, ids[2]; char text[32]; };
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) {
    unsigned place = (int *) device - devices;
    if (!started || place >= PLACES) return 1;
    memset(pci, 0x55, sizeof *pci);
    pci->domain = 0x10000, pci->bus = 0x1b + place, pci->device = place;
    return 0;
}
"""
WORKER = """
import os
tell("world", os.environ["WORLD_SIZE"])
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine that has this library."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed: there is nothing to make a libnvidia-ml with")
    folder = tmp_path_factory.mktemp("driver")
    source = folder / "nvml.c"
    source.write_text(LIBRARY)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


@pytest.mark.parametrize(
    ("word", "visible", "workers"),
    [
        ("gpu", None, 4),
        ("gpu", "3,0", 2),
        ("gpu", "0,4,1", 1),
        ("gpu", "GPU-0000aaa4", 1),
        ("gpu", "GPU-0000aaa5-0000-4000-8000-0123456789ab,0,GPU-0000aaa2", 3),
        ("gpu", "GPU-0000aaa3,0", 0),
        ("gpu", "-1", 0),
        ("auto", "3,0", 2),
        ("auto", "-1", 0),
    ],
)
def test_there_is_a_worker_for_every_gpu_that_cuda_would_show(
    driver: dict[str, str], tmp_path: Path, word: str, visible: str | None, workers: int
) -> None:
    env = driver if visible is None else driver | {"CUDA_VISIBLE_DEVICES": visible}
    with agent(tmp_path, f"--nproc-per-node={word}", program=WORKER, env=env) as run:
        code = run.wait()
    if word == "gpu" and workers == 0:
        assert code == 2, run.err
        (line,) = run.said
        assert "--nproc-per-node gpu" in line
        assert run.told("world") == []
    else:
        expected = workers or cpu_count()
        assert code == 0, run.err
        assert run.told("world") == [str(expected)] * expected


def test_where_the_gpus_sit_is_told_as_sys_names_it(driver: dict[str, str]) -> None:
    ask = (
        "from rallypoint.process.devices import nvml_gpus\n"
        "for gpu in nvml_gpus(): print(gpu.uuid[:12], gpu.pci_address)"
    )
    done = run_python(ask, env=os.environ | driver)
    assert done.stdout.splitlines() == [
        "GPU-0000aaa1 10000:1b:00.0",
        "GPU-0000aaa2 10000:1c:01.0",
        "GPU-0000aaa4 10000:1e:03.0",
        "GPU-0000aaa5 10000:1f:04.0",
    ], done.stderr


def test_binding_asks_for_a_gpu_for_each_worker(driver: dict[str, str], tmp_path: Path) -> None:
    options = ("--numa-binding=node", "--nproc-per-node=5", "--quiet")
    run = ended(agent(tmp_path, *options, program=WORKER, env=driver), 2)
    (line,) = run.said
    assert "--numa-binding node: 5 workers, but 4 GPUs visible" in line


def test_a_library_without_its_driver_leaves_the_question_to_torch(
    driver: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("class cuda:\n    device_count = lambda: 3\n")
    env = driver | {"NVML_TEST_NO_DRIVER": "1"}
    run = ended(agent(tmp_path, "--nproc-per-node=gpu", program=WORKER, env=env), 0)
    assert run.told("world") == ["3"] * 3
    assert (
        "asking torch for the devices, which takes seconds: NVIDIA's library can't reach its"
        in run.err
    )
