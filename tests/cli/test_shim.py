"""`rallypoint shim COMMAND`: torchrun is Rallypoint for one command, however that starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.harness.one_agent import OneAgent, ended, started

from rallypoint.cli.shim import environ as surroundings

pytestmark = pytest.mark.executed

TELL = """
import json, os, sys
names = ("PATH", "PYTHONPATH", "RALLYPOINT_SHIM", "RANK", "WORLD_SIZE")
with open("/proc/self/environ") as file:  # As it was started, whatever it has removed.
    environ = dict(each.split("=", 1) for each in file.read().split("\\0") if "=" in each)
told = {name: environ.get(name) for name in names} | {"python": sys.executable}
told |= {"words": sys.argv[1:], "path": sys.path, "round": os.environ.get("RALLYPOINT_ROUND")}
told |= {"custom": getattr(sys.modules.get("sitecustomize"), "CUSTOM", None)}
os.write(1, ("told " + json.dumps(told) + "\\n").encode())
"""
TORCH = {
    "__init__.py": "import os\nopen(os.environ['TORCH_WAS_IMPORTED'], 'w').close()\n",
    "distributed/__init__.py": "",
    "distributed/elastic/__init__.py": "",
    "distributed/elastic/multiprocessing/__init__.py": "",
    "distributed/elastic/multiprocessing/errors.py": "class ChildFailedError(Exception): pass\n",
    "distributed/launcher/__init__.py": "from torch.distributed.launcher.api import who\n",
    "distributed/launcher/api.py": "who = 'torch'\n",
    "distributed/run.py": """
import json, os, sys
from torch.distributed.launcher import who
def main(args=None):
    words = sys.argv[1:] if args is None else args
    shim = [name for name in os.environ if name == "RALLYPOINT_SHIM"]
    os.write(1, ("torchs " + json.dumps([who, words, shim]) + "\\n").encode())
if __name__ == "__main__":
    main()
""",
}
"""Stands for torch: enough of it to see who runs a job, and whether it was imported at all."""
OF_TORCH = "{python}\nimport sys\nfrom torch.distributed.run import main\nsys.exit(main())\n"
LAUNCHES = {
    "torchrun in PATH": ["torchrun"],
    "torchrun by its path": ["{bin}/torchrun"],
    "the module": [sys.executable, "-m", "torch.distributed.run"],
    "the module, without a blank": [sys.executable, "-u", "-mtorch.distributed.run"],
    "in a shell": ["sh", "-c", 'torchrun "$@"', "sh"],
    "a Python that runs the file of PATH": [
        *("sh", "-c", f'{sys.executable} $(which torchrun) "$@"', "sh"),
    ],
    "a program that runs a program": [
        *(sys.executable, "-c"),
        "import subprocess, sys; sys.exit(subprocess.call(['torchrun', *sys.argv[1:]]))",
    ],
}


class Place:
    """A directory with a worker, a torch and its torchrun."""

    def __init__(self, home: Path) -> None:
        self.home, self.marker = home, home / "imported"
        (home / "worker.py").write_text(TELL)
        self.bin, self.packages = home / "bin", home / "packages"
        for name, text in TORCH.items():
            path = self.packages / "torch" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.bin.mkdir()
        torchrun = self.bin / "torchrun"
        torchrun.write_text(OF_TORCH.format(python=f"#!{sys.executable}"))
        torchrun.chmod(0o755)
        self.path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"

    def shim(self, words: Sequence[str], code: int = 0, **env: str) -> OneAgent:
        """The end of a command under the shim."""
        usual = {"PATH": self.path, "PYTHONPATH": str(self.packages)}
        usual["TORCH_WAS_IMPORTED"] = str(self.marker)
        line = [sys.executable, "-P", "-m", "rallypoint", "shim", *words]
        return ended(started(self.home, line, **usual | env), code)

    def program(self, text: str, *arguments: str, code: int = 0) -> OneAgent:
        """The same for a program of Python."""
        (self.home / "program.py").write_text(text)
        return self.shim([sys.executable, "program.py", *arguments], code)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def workers(run: OneAgent) -> list[dict[str, object]]:
    """What the workers of a job of Rallypoint have told, in the order of their ranks."""
    told = [json.loads(text) for text in run.told("told")]
    assert all(each["round"] == "0" for each in told), run.out
    return sorted(told, key=lambda each: str(each["RANK"]))


@pytest.mark.parametrize("how", LAUNCHES)
def test_a_job_of_torchrun_is_one_of_rallypoint_and_its_workers_do_not_see_the_shim(
    how: str, place: Place
) -> None:
    words = [word.format(bin=place.bin) for word in LAUNCHES[how]]
    run = place.shim([*words, "--nproc_per_node=2", "worker.py", "--lr", "1"])
    found = workers(run)
    assert [each["RANK"] for each in found] == ["0", "1"]
    for each in found:
        assert each["words"] == ["--lr", "1"]
        assert (each["PATH"], each["PYTHONPATH"]) == (place.path, str(place.packages))
        assert each["RALLYPOINT_SHIM"] is None
        assert surroundings.ENTRIES not in str(each["path"])
    assert not place.marker.exists(), "the launcher has imported torch"


def test_the_older_module_tells_workers_their_local_rank(place: Place) -> None:
    module = [sys.executable, "-m", "torch.distributed.launch", "--nproc-per-node=2"]
    told = workers(place.shim([*module, "worker.py", "--lr", "1"]))
    assert [each["words"] for each in told] == [[f"--local-rank={n}", "--lr", "1"] for n in (0, 1)]
    (told_by_environ,) = workers(place.shim([*module[:3], "--use_env", "worker.py", "--lr"]))
    assert told_by_environ["words"] == ["--lr"]


def test_a_command_keeps_its_exit_code_and_its_process(place: Place) -> None:
    run = place.shim(["sh", "-c", "echo pid $$; exit 7"], 7)
    assert run.told("pid") == [str(run.pid)]
    place.shim(["torchrun", "--no-python", "sh", "-c", "exit 9"], 1)


def test_an_option_that_only_torch_can_know_hands_over_to_the_next_torchrun(place: Place) -> None:
    run = place.shim(["torchrun", "--from-2030", "3", "worker.py"])
    assert run.told("torchs") == [json.dumps(["torch", ["--from-2030", "3", "worker.py"], []])]
    assert run.err == (
        "rallypoint shim: --from-2030: rallypoint run has no such option: "
        f"{place.bin}/torchrun runs this job\n"
    )


def test_so_does_one_of_the_module(place: Place) -> None:
    run = place.shim([sys.executable, "-m", "torch.distributed.run", "--from-2030", "worker.py"])
    assert run.told("torchs") == [json.dumps(["torch", ["--from-2030", "worker.py"], []])]
    assert run.err.endswith(f"{sys.executable} -m torch.distributed.run runs this job\n")


def test_without_another_torchrun_the_option_is_named(place: Place) -> None:
    (place.bin / "torchrun").unlink()
    path = f"{Path(sys.executable).parent.parent / 'none'}{os.pathsep}/usr/bin{os.pathsep}/bin"
    run = place.shim(["torchrun", "--from-2030", "worker.py"], 2, PATH=path)
    assert run.err == (
        "rallypoint shim: --from-2030: unknown option; and PATH has no other torchrun that may "
        "know it\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "rallypoint shim: the command is missing; for example: rallypoint shim bash"),
        (["nobody-has-this"], 2, "rallypoint shim: nobody-has-this: no such program; check its"),
        (["./worker.py"], 2, "rallypoint shim: ./worker.py: can't be run: Permission denied\n"),
        (["--lease", "3", "ls"], 2, "rallypoint shim: --lease: unknown option (see rallypoint sh"),
        (["torchrun"], 2, "rallypoint run: the script is missing; for example: rallypoint run"),
        (["torchrun", "--nnodes=0", "worker.py"], 2, "rallypoint run: --nnodes 0: needs 1 <= "),
        (["torchrun", "none.py"], 2, "rallypoint run: none.py: no such file"),
    ],
)
def test_what_goes_wrong_is_one_line(words: list[str], code: int, says: str, place: Place) -> None:
    run = place.shim(words, code)
    assert run.err.startswith(says)
    assert run.err.count("\n") == 1
    assert not place.marker.exists()


def test_a_script_that_sets_pythonpath_anew_still_has_the_torchrun(place: Place) -> None:
    line = f"PYTHONPATH={place.packages} torchrun worker.py"
    (told,) = workers(place.shim(["sh", "-c", line]))
    assert (told["PATH"], told["RALLYPOINT_SHIM"]) == (place.path, None)
    assert told["PYTHONPATH"] == str(place.packages)


def test_the_sitecustomize_of_before_is_imported_everywhere(place: Place) -> None:
    (place.packages / "sitecustomize.py").write_text("CUSTOM = 'mine'\n")
    tell = "import sitecustomize, sys; print('custom', sitecustomize.CUSTOM, len(sys.meta_path))"
    run = place.shim(["sh", "-c", f'{sys.executable} -c "{tell}"; torchrun worker.py'])
    assert run.told("custom")[0].startswith("mine ")
    assert [each["custom"] for each in workers(run)] == ["mine"]


def test_workers_of_another_launcher_are_left_alone(place: Place) -> None:
    line = f"{sys.executable} -m torch.distributed.run x"
    run = place.shim(["sh", "-c", f"TORCHELASTIC_RUN_ID=1 {line}"])
    assert run.told("torchs") == [json.dumps(["torch", ["x"], []])]


def test_rallypoint_itself_leaves_the_shim(place: Place) -> None:
    line = [sys.executable, "-m", "rallypoint"]
    (told,) = workers(place.shim([*line, "run", "worker.py"]))
    (again,) = workers(place.shim([*line, "shim", "torchrun", "worker.py"]))
    for each in (told, again):
        assert (each["PATH"], each["RALLYPOINT_SHIM"]) == (place.path, None)


def test_a_python_without_rallypoint_runs_the_workers_and_keeps_torchs_own_modules(
    place: Place,
) -> None:
    other = place.home / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", other], check=True)
    python = f"{other}/bin/python"
    (told,) = workers(place.shim([python, "-m", "torch.distributed.run", "worker.py"]))
    assert told["python"] == python
    torchrun = place.bin / "torchrun"
    torchrun.write_text(OF_TORCH.format(python=f"#!{python}"))
    (told,) = workers(place.shim(["torchrun", "worker.py"]))
    assert told["python"] == python
    run = place.shim([python, "-c", "from torch.distributed.run import main; main(['x'])"])
    assert run.told("torchs") == [json.dumps(["torch", ["x"], ["RALLYPOINT_SHIM"]])]
    assert run.err == (
        "rallypoint shim: torch.distributed.run is torch's own in this program: "
        f"{python} has no rallypoint (No module named 'rallypoint')\n"
    )


IN_PROCESS = {
    "main": "from torch.distributed.run import main\nmain(words)\n",
    "run": "import torch.distributed.run as r\nr.run(r.get_args_parser().parse_args(words))\n",
    "the launcher": (
        "from torch.distributed.launcher import LaunchConfig, elastic_launch\n"
        "elastic_launch(LaunchConfig(1, 1, 2), sys.executable)('worker.py', '--lr')\n"
    ),
    "its module": (
        "from torch.distributed.launcher.api import LaunchConfig, launch_agent\n"
        "launch_agent(LaunchConfig(1, 1, 2), sys.executable, ['worker.py', '--lr'])\n"
    ),
}


@pytest.mark.parametrize("how", IN_PROCESS)
def test_a_program_that_calls_torchs_launcher_runs_a_job_of_rallypoint(
    how: str, place: Place
) -> None:
    text = (
        "import os, sys\nwords = ['--nproc-per-node=2', 'worker.py', '--lr']\nstarted = dict(os.e"
    )
    text += f"nviron)\n{IN_PROCESS[how]}assert dict(os.environ)['PATH'] == started['PATH']\n"
    text += "assert 'RALLYPOINT_SHIM' in os.environ\nprint('after')\n"
    run = place.program(text)
    found = workers(run)
    assert [each["words"] for each in found] == [["--lr"], ["--lr"]]
    for each in found:
        assert (each["PATH"], each["PYTHONPATH"]) == (place.path, str(place.packages))
        assert each["RALLYPOINT_SHIM"] is None
    assert run.told("after") == [""]


def test_its_older_module_tells_workers_their_local_rank(place: Place) -> None:
    text = "from torch.distributed.launch import main\nmain(['worker.py', '--lr'])\n"
    (told,) = workers(place.program(text))
    assert told["words"] == ["--local-rank=0", "--lr"]


def test_a_failure_can_be_caught_by_torchs_name(place: Place) -> None:
    text = """
import copy, pickle
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main
try:
    main(["--no-python", "sh", "-c", "exit 7"])
except ChildFailedError as error:
    told = pickle.loads(pickle.dumps(error)).get_first_failure()[1]
    print("got", told.exitcode, copy.copy(error).args == error.args)
"""
    assert place.program(text).told("got") == ["7 True"]


def test_a_main_with_an_option_that_only_torch_can_know_hands_over(place: Place) -> None:
    text = """
import torch.distributed.run, torch.distributed.launcher
torch.distributed.run.main(["--from-2030", "3", "worker.py"])
import torch.distributed.launcher
print("now", torch.distributed.launcher.who)
"""
    run = place.program(text)
    assert run.told("torchs") == [json.dumps(["torch", ["--from-2030", "3", "worker.py"], []])]
    assert run.told("now") == ["torch"]
    assert run.err == (
        "rallypoint shim: --from-2030: rallypoint run has no such option, so torch's own "
        "torch.distributed.run runs this job\n"
    )


def test_a_main_whose_words_are_wrong_says_so(place: Place) -> None:
    text = "from torch.distributed.run import main\nmain(['--nnodes=0', 'worker.py'])\n"
    run = place.program(text, code=2)
    assert run.err == "rallypoint.elastic.run: --nnodes 0: needs 1 <= MIN <= MAX <= 100000\n"


def test_an_environment_is_left_as_it_was() -> None:
    for before in (
        {"PATH": "/a:/b", "PYTHONPATH": "/c"},
        {"PATH": "/a"},
        {"HOME": "/root", "PATH": ""},
    ):
        inside = surroundings.enter(before, "/usr/bin/python3")
        assert inside["PATH"].split(":")[0] == inside["PYTHONPATH"].split(":")[0]
        assert surroundings.enter(inside, "/usr/bin/python3") == inside
        assert {**before, "PATH": inside["PATH"].partition(":")[2]} == surroundings.without_shim(
            inside
        )
    assert surroundings.without_shim({"PATH": "/a", "PYTHONPATH": ""}) == {
        "PATH": "/a",
        "PYTHONPATH": "",
    }
