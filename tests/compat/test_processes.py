"""Processes of one node, started by torch's function and by ours, from the same arguments."""

from __future__ import annotations

import json
from pathlib import Path

from tests.compat.recordings import Recordings
from tests.harness.programs import run_program

PROGRAM = """
import json, sys
who, folder = sys.argv[1:]
if who == "torch":
    import torch.distributed.elastic.multiprocessing as package
else:
    import rallypoint.elastic.multiprocessing as package
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs as TorchsSpecs
from torch.distributed.elastic.multiprocessing import Std as TorchsStd

def run(name, scripts, specs):
    args = {n: ("-c", script, n) for n, script in enumerate(scripts)}
    envs = {n: {"MINE": str(n)} for n in args}
    context = package.start_processes(name, "sh", args, envs, specs)
    result = context.wait()
    context.close()
    return {
        "values": {str(n): value for n, value in result.return_values.items()},
        "failed": result.is_failed(),
        "failures": {n: f.exitcode for n, f in result.failures.items() if f.exitcode > 0},
        "out": [open(path).read() for _, path in sorted(result.stdouts.items()) if path],
        "err": [open(path).read() for _, path in sorted(result.stderrs.items()) if path],
    }

Std, Specs = package.Std, package.DefaultLogsSpecs
print(json.dumps([
    run("good", ["echo $0 $MINE; echo e >&2"] * 2, Specs(folder + "/1", redirects=Std.ALL)),
    run("mapped", ["echo a", "echo b"], Specs(folder + "/2", redirects={1: Std.OUT})),
    run("bad", ["exit 3", "sleep 600"], Specs(folder + "/3", redirects=Std.ALL)),
    run("teed", ["echo a", "echo b"], Specs(folder + "/4", tee={0: Std.OUT})),
    run("torchs", ["echo a >&2"], TorchsSpecs(folder + "/5", redirects=TorchsStd.ERR)),
]), file=sys.stderr)
"""


def told(who: str, folder: Path, python: str) -> list[object]:
    """The results, and the lines on the console."""
    folder.mkdir()
    done = run_program([python, "-c", PROGRAM, who, str(folder)], timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(done.stderr.splitlines()[-1]), sorted(done.stdout.splitlines())]


def test_P2_P6_P11_processes_end_and_write_as_torchs(
    tmp_path: Path, torch_said: Recordings, torch_python: str
) -> None:
    """Ours takes torch's own specs as well, so that its program has torch too."""
    theirs = torch_said(
        "processes", "results", lambda: told("torch", tmp_path / "torch", torch_python)
    )
    ours = told("ours", tmp_path / "ours", torch_python)
    assert ours == theirs
    lines = ours[1]
    assert isinstance(lines, list)
    assert "[teed0]:a" in lines
