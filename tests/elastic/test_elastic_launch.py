"""Jobs that a program launches: what it gets back, and what a person sees when it goes wrong."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import textwrap
from pathlib import Path

import pytest
from tests.harness.one_agent import OneAgent, agent, ended, environment, free_port
from tests.harness.own_program import LAUNCHER, last_line, program
from tests.harness.prepared import processes
from tests.harness.programs import run_program

TRAIN = """
def train(word):
    env = os.environ
    count = env["TORCHELASTIC_RESTART_COUNT"]
    tell("train", env["RANK"], env["WORLD_SIZE"], env["ROLE_NAME"], count)
    if word == "fail" and env["RANK"] == "1":
        raise ValueError("bad luck")
    if word == "once" and count == "0":
        raise ValueError("once")
    if word == "wait":
        time.sleep(600)
    return int(env["RANK"]) * 10, word
"""


@pytest.mark.executed
def test_ten_lines_give_the_values_of_all_workers_and_print_nothing(tmp_path: Path) -> None:
    text = f"{LAUNCHER}{TRAIN}---\n"
    text += "print('got', elastic_launch(LaunchConfig(1, 1, 2), train)('fine'))\n"
    run = ended(program(tmp_path, text), 0)
    assert run.told("got") == ["{0: (0, 'fine'), 1: (10, 'fine')}"]
    assert sorted(run.told("train")) == ["0 2 default_role 0", "1 2 default_role 0"]
    assert run.err == ""


def test_a_configuration_with_its_own_logs_specs_can_be_launched_again(tmp_path: Path) -> None:
    text = TRAIN + "---\nfrom rallypoint.elastic.multiprocessing import DefaultLogsSpecs\n"
    text += "config = LaunchConfig(1, 1, 1, logs_specs=DefaultLogsSpecs())\n"
    text += "for _ in range(2): print('got', elastic_launch(config, train)('fine'))\n"
    run = ended(program(tmp_path, text), 0)
    assert run.told("got") == ["{0: (0, 'fine')}"] * 2


def test_V7_a_launch_of_several_nodes_keeps_its_end_and_one_of_a_single_node_does_not(
    tmp_path: Path,
) -> None:
    conf = "rdzv_configs={'last_call_timeout': 0.1, 'insecure': True}"
    several = f"run_id='own', rdzv_endpoint='127.0.0.1:{free_port()}', {conf}"
    text = TRAIN + "---\n"
    for config in ("1, 1, 2", f"1, 2, 2, history='none', {several}", f"1, 2, 2, {several}"):
        text += f"try: elastic_launch(LaunchConfig({config}, max_restarts=0), train)('fail')\n"
        text += "except Exception as error: print('raised', type(error).__name__)\n"
    run = ended(program(tmp_path, text), 0)
    assert run.told("raised") == ["ChildFailedError"] * 3
    (kept,) = (tmp_path / ".local" / "state" / "rallypoint" / "kept").glob("*-*")
    assert run.err.count("is kept: ") == 1
    assert f"rallypoint: the end of job own is kept: rallypoint status {kept}\n" in run.err
    line = [sys.executable, "-m", "rallypoint", "status", str(kept)]
    shown = processes.run(line, env=environment(tmp_path, "look"), capture_output=True).stdout
    assert "job own: failed " in shown
    assert "ValueError: bad luck" in shown


@pytest.mark.parametrize("entrypoint", ["'echo'", "('echo', 'told')"])
def test_a_command_line_maps_to_none(tmp_path: Path, entrypoint: str) -> None:
    args = "('told', 3, 0.5)" if entrypoint == "'echo'" else "(3, 0.5)"
    text = f"---\nprint('got', elastic_launch(LaunchConfig(1, 1, 2), {entrypoint})(*{args}))\n"
    run = ended(program(tmp_path, text), 0)
    assert run.told("got") == ["{0: None, 1: None}"]
    assert run.told("told") == ["3 0.5"] * 2


def test_A7_the_one_line_of_a_command_that_failed_is_told_once(tmp_path: Path) -> None:
    command = "('-c', 'echo no data >&2; exit 3')"
    text = f"---\nelastic_launch(LaunchConfig(1, 1, 1, max_restarts=0), 'sh')(*{command})\n"
    run = ended(program(tmp_path, text), 1)
    told = run.err.partition("  traceback : ")[2]
    assert told.startswith("exit code 3; last line: no data\n")
    assert told.count("no data") == 1


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_launch_without_the_usual_guard_is_one_line(tmp_path: Path, method: str) -> None:
    config = f"LaunchConfig(1, 1, 2, start_method={method!r})"
    run = ended(
        program(tmp_path, f"{TRAIN}elastic_launch({config}, train)('fine')\n---\npass\n"), 1
    )
    line = "put the launch under `if __name__ == '__main__':`"
    assert run.said[0].startswith("rallypoint: workers import the program"), run.err
    assert run.said[0].endswith(line)
    assert "bootstrapping" not in run.err
    lines = [text for text in run.said if text.startswith("rallypoint: workers import")]
    assert 1 <= len(lines) <= 2, "a restart can't help"
    assert all(text.endswith(line) for text in lines)
    assert f"UnguardedLaunchError: {lines[0].removeprefix('rallypoint: ')}" in run.err
    assert run.told("train") == []


def test_a_job_that_gets_no_further_ends_and_its_history_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / "jobs"
    config = f"LaunchConfig(1, 1, 2, run_id='a', max_no_progress=2, history={f'{kept}/'!r})"
    ended(program(tmp_path, f"{TRAIN}---\nelastic_launch({config}, train)('fail')\n"), 1)
    lines = [json.loads(line) for line in (kept / "a.jsonl").read_text().splitlines()]
    (verdict,) = (line for line in lines if line.get("event") == "verdict")
    assert "the same failure 2 times, each within a minute of the start" in verdict["text"]


def test_A2_workers_restart_and_what_went_wrong_is_told(tmp_path: Path) -> None:
    text = TRAIN + "---\nprint('got', elastic_launch(LaunchConfig(1, 1, 1), train)('once'))\n"
    run = ended(program(tmp_path, text), 0)
    assert run.told("got") == ["{0: (0, 'once')}"]
    assert len(run.said) == 2, run.err
    assert run.said[0].endswith("exited with code 1")
    assert run.said[1].endswith("restart 1 of 3")


def test_A3_a_failure_is_raised_with_its_first_cause(tmp_path: Path) -> None:
    text = """---
from rallypoint.errors import ChildFailedError
try:
    elastic_launch(LaunchConfig(1, 1, 2, max_restarts=0), train)("fail")
except ChildFailedError as error:
    rank, failure = error.get_first_failure()
    what = failure.message["message"]
    tell("first", error.name, rank, failure.local_rank, failure.exitcode, what)
    raise
"""
    run = ended(program(tmp_path, text, before=TRAIN), 1)
    assert run.told("first") == ["train 1 1 1 ValueError: bad luck"]
    assert "Root Cause (first observed failure):" in run.err
    assert "ValueError: bad luck" in run.err
    assert "/agent/" not in run.err, "the way through this package helps nobody"


@pytest.mark.parametrize("logs", ["None", "DefaultLogsSpecs(log_dir=sys.argv[1])"])
def test_P7_what_a_worker_has_written_is_passed_on_by_record_around_the_launch(
    tmp_path: Path, logs: str
) -> None:
    text = f"""---
from rallypoint.elastic.multiprocessing import ChildFailedError, DefaultLogsSpecs, record
os.environ["TORCHELASTIC_ERROR_FILE"] = sys.argv[2]
config = LaunchConfig(1, 1, 2, max_restarts=0, logs_specs={logs})
try:
    record(elastic_launch(config, train))("fail")
except ChildFailedError as error:
    rank, failure = error.get_first_failure()
    tell("data", failure.error_file_data == dict(message=failure.message), failure.exitcode)
    tell("own code", "errorCode" in failure.message)
    tell("file", failure.error_file)
    tell("there", os.path.isfile(failure.error_file))
"""
    own, root = tmp_path / "own.json", tmp_path / "logs"
    root.mkdir()
    run = ended(program(tmp_path, text, str(root), str(own), before=TRAIN), 0)
    assert run.told("data") == ["True 1"], run.err
    assert run.told("own code") == ["False"], "that is for the file which is written"
    message = json.loads(own.read_text())["message"]
    assert (message["message"], message["errorCode"]) == ("ValueError: bad luck", 1)
    (named,) = run.told("file")
    assert run.told("there") == ["True"]
    if logs == "None":
        assert not Path(named).exists(), "nobody asked for it"
    else:
        theirs = json.loads(Path(named).read_text())
        assert theirs == {"message": {k: v for k, v in message.items() if k != "errorCode"}}


def test_what_a_worker_left_beside_its_error_file_is_there_until_the_program_ends(
    tmp_path: Path,
) -> None:
    """As with torch: a program may look for more than the error file."""
    text = """
        def train(flag):
            place = os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"])
            open(os.path.join(place, flag), "w").close()
            raise ValueError("try again")

        def flagged(flag):
            config = LaunchConfig(1, 1, 1, max_restarts=0, run_id="j")
            try:
                elastic_launch(config, train)(flag)
            except ChildFailedError as error:
                return os.path.join(
                    os.path.dirname(error.get_first_failure()[1].error_file), flag
                )

        from rallypoint.elastic.multiprocessing import ChildFailedError
        ---
        first = flagged("first")
        tell("first", os.path.exists(first))
        tell("beside", *os.listdir(os.environ["TMPDIR"] + "/" + first.split("/")[-5]))
        second = flagged("second")
        tell("both", os.path.exists(first), os.path.exists(second))
        if not os.fork():
            sys.exit()
        os.wait()
        tell("after a child", os.path.exists(first))
        from multiprocessing import get_context
        with get_context("fork").Pool(1) as pool:
            tell("in a pool", os.path.exists(pool.apply(flagged, ("third",))))
            pool.close()
            pool.join()
    """
    run = ended(program(tmp_path, text), 0)
    assert run.told("first") == ["True"], run.err
    (beside,) = run.told("beside")
    assert {name.split("-")[0] for name in beside.split()} == {"kept", "rallypoint"}, (
        "rallypoint status takes what is there for a job that runs"
    )
    assert run.told("both") == ["True True"]
    assert run.told("after a child") == ["True"]
    assert run.told("in a pool") == ["True"]


def test_P7_a_traceback_on_stderr_is_passed_on_among_what_else_is_there(tmp_path: Path) -> None:
    worker = """
        import atexit, sys
        def load():
            raise KeyError("weights")
        print("a warning", file=sys.stderr)
        atexit.register(print, "good bye", file=sys.stderr)
        try:
            load()
        except KeyError as error:
            raise ValueError("no checkpoint") from error
    """
    text = f"""
---
from rallypoint.elastic.multiprocessing import ChildFailedError, DefaultLogsSpecs, Std, record
os.environ["TORCHELASTIC_ERROR_FILE"] = sys.argv[2]
logs = DefaultLogsSpecs(log_dir=sys.argv[1], redirects=Std.ERR)
launch = elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0, logs_specs=logs), sys.executable)
try:
    record(launch)("-c", {textwrap.dedent(worker)!r})
except ChildFailedError as error:
    tell("message", error.get_first_failure()[1].message["message"])
"""
    own, root = tmp_path / "own.json", tmp_path / "logs"
    root.mkdir()
    run = ended(program(tmp_path, text, str(root), str(own)), 0)
    assert run.told("message") == ["ValueError: no checkpoint"], run.err
    message = json.loads(own.read_text())["message"]
    assert message["message"] == "ValueError: no checkpoint"
    callstack = message["extraInfo"]["py_callstack"]
    assert callstack.startswith("Traceback (most recent call last):")
    assert "KeyError: 'weights'\n\nThe above exception" in callstack


def test_P7_more_that_a_worker_has_written_itself_is_told(tmp_path: Path) -> None:
    text = """---
from rallypoint.elastic.launcher import LaunchConfig, elastic_launch
from rallypoint.elastic.multiprocessing import ChildFailedError
written = '{"message": {"message": "mine", "extraInfo": {"timestamp": "1", "disk": "sda"}}}'
words = "-c", f"echo '{written}' > $TORCHELASTIC_ERROR_FILE; exit 3"
try:
    elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0), "sh")(*words)
except ChildFailedError as error:
    tell("file", error.get_first_failure()[1].error_file_data["message"]["extraInfo"]["disk"])
"""
    run = ended(program(tmp_path, text), 0)
    assert run.told("file") == ["sda"]


NODE = (
    TRAIN
    + """---
from rallypoint.errors import ChildFailedError
port, nproc, word = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
config = LaunchConfig(
    2, 2, nproc, run_id="job", rdzv_endpoint=f"127.0.0.1:{port}", max_restarts=0,
    rdzv_configs={"token": "0123456789abcdef" * 4},
)
try:
    print("got", elastic_launch(config, train)(word))
except ChildFailedError as error:
    rank, failure = error.get_first_failure()
    tell("first", rank, failure.exitcode, failure.message["message"])
    tell("data", failure.error_file_data == {"message": failure.message})
"""
)


def two_nodes(folder: Path, text: str, first: int, second: int, word: str) -> list[OneAgent]:
    """Two programs with so many workers that have ended well, each with a home of its own."""
    port = str(free_port())
    with (
        program(folder / "a", text, port, str(first), word) as a,
        program(folder / "b", text, port, str(second), word) as b,
    ):
        assert [run.wait() for run in (a, b)] == [0, 0], a.err + b.err
        return [a, b]


@pytest.mark.parametrize("word", ["fine", "fail"])
def test_two_programs_are_two_nodes_of_one_job(tmp_path: Path, word: str) -> None:
    a, b = two_nodes(tmp_path, NODE, 1, 2, word)
    if word == "fail":
        first = ["1 1 ValueError: bad luck"]
        assert [run.told("first") for run in (a, b)] == [first, first], "A3: on whichever node"
        assert [run.told("data") for run in (a, b)] == [["True"], ["True"]]
        return
    lines = [run.told("got")[0] for run in (a, b)]
    assert sum(line.count("fine") for line in lines) == 3
    for rank in range(3):
        assert sum(f"{rank}: ({rank * 10}, 'fine')" in line for line in lines) == 1


def test_F8_a_program_takes_the_token_from_the_variable_as_the_command_line_does(
    tmp_path: Path,
) -> None:
    """The nodes have homes of their own, so that no file is the same for both."""
    token = 'rdzv_configs={"token": "0123456789abcdef" * 4},'
    assert token in NODE
    text = NODE.replace(token, "").replace(
        "---\n", "---\nos.environ['RALLYPOINT_TOKEN'] = '0123456789abcdef' * 4\n"
    )
    two_nodes(tmp_path, text, 1, 1, "fine")


def test_R7_a_program_and_a_command_line_meet(tmp_path: Path) -> None:
    """What all nodes must agree on has the same defaults, but for torch's 3 restarts."""
    port, token = str(free_port()), "0123456789abcdef" * 4
    (tmp_path / "b").mkdir()
    options = (f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job", "--nnodes=2")
    with (
        program(tmp_path / "a", NODE, port, "1", "fine") as a,
        agent(
            tmp_path / "b",
            *options,
            program="import os; tell('rank', os.environ['WORLD_SIZE'])",
            env={"RALLYPOINT_TOKEN": token},
        ) as b,
    ):
        assert [run.wait() for run in (a, b)] == [0, 0], a.err + b.err
    assert b.told("rank") == ["2"]


def test_a_node_that_waits_for_others_says_so(tmp_path: Path) -> None:
    with program(tmp_path, NODE, str(free_port()), "1", "fine") as run:
        run.wait_said("waiting for 1 more node (1 of 2 joined)")
        run.send(signal.SIGINT)
        assert run.wait() == -signal.SIGINT
    assert run.told("train") == []


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("LaunchConfig(1, 1, 1), lambda: 3", "define it at the top level of a module"),
        ("LaunchConfig(1, 1, 1), None", "the entrypoint None: needs a function, a program, or"),
        (
            "LaunchConfig(1, 1, 1), 'no-such-program'",
            "program 'no-such-program': there is none",
        ),
        ("LaunchConfig(1, 1, 0), train", "nproc_per_node=0: needs 1 or more workers"),
        ("LaunchConfig(1, 1, 'gpu'), train", "nproc_per_node='gpu': needs a number"),
        ("LaunchConfig(2, 1, 1), train", "min_nodes=2, max_nodes=1: needs 1 <= MIN <= MAX"),
        ("LaunchConfig(1, 2, 1), train", "max_nodes=2 without an rdzv_endpoint"),
        ("LaunchConfig(1, 1, 1, rdzv_backend='zookeeper'), train", "known are tcp, c10d, static"),
        ("LaunchConfig(1, 1, 1, rdzv_configs={'joins': 1}), train", "unknown key joins"),
        ("LaunchConfig(1, 1, 1, start_method='clone'), train", "needs one of spawn, forkserver"),
        ("LaunchConfig(1, 1, 1, max_restarts=-1), train", "max_restarts=-1: needs 0 or more"),
        ("LaunchConfig(1, 1, 1, history='/no/h'), train", "history /no/h: can't be written: No "),
        (
            "LaunchConfig(2, 2, 1, rdzv_backend='static', rdzv_endpoint='127.0.0.1:1'), train",
            "needs rdzv_configs={'rank': K}",
        ),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path: Path, call: str, says: str) -> None:
    run = ended(program(tmp_path, TRAIN + f"---\nelastic_launch({call})(*sys.argv[1:])\n"), 1)
    assert says in last_line(run)
    assert last_line(run).startswith("rallypoint.errors.")
    assert run.err.count("Traceback") == 1, "no chain of what has led to it"
    assert run.told("train") == []


def test_a_port_that_another_program_has_is_named(tmp_path: Path) -> None:
    text = TRAIN + (
        "---\nelastic_launch(LaunchConfig(1, 1, 1, rdzv_endpoint=sys.argv[1], "
        "rdzv_configs={'is_host': True}), train)('fine')\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        run = ended(program(tmp_path, text, where), 1)
    assert f"this node must host the coordinator at {where}, but" in last_line(run)
    assert run.told("train") == []


@pytest.mark.parametrize(
    ("number", "exit_code", "says"),
    [
        (signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt"),
        (signal.SIGTERM, 1, "SignalException: this node left the job: it got SIGTERM"),
        (signal.SIGKILL, -signal.SIGKILL, ""),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else "",
)
def test_A6_a_signal_to_the_program_leaves_no_worker(
    tmp_path: Path, number: signal.Signals, exit_code: int, says: str
) -> None:
    text = TRAIN + "---\nelastic_launch(LaunchConfig(1, 1, 2), train)('wait')\n"
    with program(tmp_path, text) as run:
        run.wait_told("train", 2)
        run.send(number)
        assert run.process.wait(30) == exit_code, run.err
        run.wait_gone()
    assert says in last_line(run)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_A6_a_handler_of_the_program_may_raise_and_leaves_nothing(
    tmp_path: Path, method: str
) -> None:
    text = f"""
def late(number, frame):
    raise TimeoutError("too long")
---
import signal
signal.signal(signal.SIGUSR1, late)
before = os.listdir("/proc/self/fd")
try:
    elastic_launch(LaunchConfig(1, 1, 2, start_method={method!r}), train)("wait")
except TimeoutError as error:
    tell("raised", error)
with open(f"/proc/self/task/{{os.getpid()}}/children") as children:
    tell("left", children.read(), threading.active_count() - 1)
tell("files", os.listdir("/proc/self/fd") == before)
"""
    with program(tmp_path, text, before=TRAIN) as run:
        run.wait_told("train", 2)
        run.send(signal.SIGUSR1)
        assert run.wait() == 0, run.err
    assert run.told("raised") == ["too long"]
    assert run.told("left") == [" 0"]
    assert run.told("files") == ["True"]
    assert run.err == ""


def test_a_function_at_a_prompt_needs_fork(tmp_path: Path) -> None:
    text = """
from rallypoint.elastic.launcher import LaunchConfig, elastic_launch
def train(): return 7
try: elastic_launch(LaunchConfig(1, 1, 2), train)()
except ValueError as error: print(error)
print(elastic_launch(LaunchConfig(1, 1, 2, start_method="fork"), train)())
"""
    env = environment(tmp_path, "prompt")
    ran = run_program([sys.executable, "-"], input=text, env=env)
    refused, values = ran.stdout.splitlines()
    assert refused.startswith("the function train is defined in a notebook or at a prompt")
    assert refused.endswith("start_method='fork'")
    assert values == "{0: 7, 1: 7}"


NOTEBOOK = (
    TRAIN
    + """---
import asyncio
async def cell():
    config = LaunchConfig(1, 1, 2)
    print("got", elastic_launch(config, train)("fine"))
    try:
        elastic_launch(config, train)("wait")
    except KeyboardInterrupt:
        tell("interrupted")
loop = asyncio.new_event_loop()
loop.run_until_complete(cell())
"""
)


def test_a_notebook_has_a_loop_and_an_interrupt_button(tmp_path: Path) -> None:
    with program(tmp_path, NOTEBOOK) as run:
        run.wait_told("train", 4)
        run.send(signal.SIGINT)
        assert run.wait() == 0, run.err
    assert run.told("got") == ["{0: (0, 'fine'), 1: (10, 'fine')}"]
    assert "interrupted" in run.out


TWIN = (
    TRAIN
    + """---
import asyncio
from rallypoint.elastic.launcher import launch
async def main():
    ticks = 0
    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1
    ticking = asyncio.create_task(tick())
    print("got", await launch(LaunchConfig(1, 1, 2), train, "fine"))
    assert ticks > 10, "the loop went on"
    ticking.cancel()
    waiting = asyncio.create_task(launch(LaunchConfig(1, 1, 1), train, "wait"))
    while not os.path.exists("cancel"):
        await asyncio.sleep(0.01)
    waiting.cancel()
    try:
        await waiting
    except asyncio.CancelledError:
        tell("cancelled")
asyncio.run(main())
"""
)


def test_the_twin_for_a_running_loop_lets_it_go_on_and_can_be_cancelled(tmp_path: Path) -> None:
    with program(tmp_path, TWIN) as run:
        run.wait_told("train", 3)
        (tmp_path / "cancel").touch()
        assert run.wait() == 0, run.err
    assert run.told("got") == ["{0: (0, 'fine'), 1: (10, 'fine')}"]
    assert "cancelled" in run.out


@pytest.mark.parametrize("backend", ["c10d", "file", "static"])
def test_two_threads_of_one_program_are_two_nodes_that_meet_by(
    tmp_path: Path, backend: str
) -> None:
    text = """---
backend, where, got = sys.argv[1], sys.argv[2], {}
def node(rank):
    conf = {"rank": rank} if backend == "static" else {"last_call_timeout": 0.3}
    config = LaunchConfig(2, 2, 1, rdzv_backend=backend, rdzv_endpoint=where, rdzv_configs=conf,
                          run_id="job", local_addr="127.0.0.1" if backend == "file" else None,
                          role=("actor", "learner")[rank])
    got.update(elastic_launch(config, train)(str(rank)))
threads = [threading.Thread(target=node, args=(rank,)) for rank in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("got", sorted(got))
if backend == "static": assert [value[1] for _, value in sorted(got.items())] == ["0", "1"], got
"""
    where = str(tmp_path / "meet") if backend == "file" else f"127.0.0.1:{free_port()}"
    run = ended(program(tmp_path, text, backend, where, before=TRAIN), 0)
    assert run.told("got") == ["[0, 1]"]
    assert {line.split()[2] for line in run.told("train")} == {"actor", "learner"}


AGAIN = (
    TRAIN
    + """---
import asyncio, gc
from rallypoint.elastic.launcher import launch
def held():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), [thread.name for thread in threading.enumerate()]
def last_step(frame, event, _):
    code = frame.f_code
    if event == "return" and code.co_name == "run" and code.co_filename == threading.__file__:
        time.sleep(0.2)  # As where other processes run: a thread lives on after its last callback.
threading.setprofile(last_step)
config, seen = LaunchConfig(1, 1, 2), []
for _ in range(3):
    elastic_launch(config, train)("fine")
    elastic_launch(config, "true")()
    asyncio.run(launch(config, train, "fine"))
    seen.append(held())
tell("held", seen[0] == seen[1] == seen[2], seen)
"""
)


def test_a_program_that_launches_again_and_again_holds_nothing_of_it(tmp_path: Path) -> None:
    run = ended(program(tmp_path, AGAIN), 0)
    assert run.told("held")[0].startswith("True"), run.told("held")
    assert "['MainThread']" in run.told("held")[0]


def test_logs_specs_decide_on_files_and_the_environment_stays(tmp_path: Path) -> None:
    text = """---
import json, signal
from rallypoint.elastic.multiprocessing import DefaultLogsSpecs, Std
def state():
    return dict(os.environ), {n: str(signal.getsignal(n)) for n in signal.valid_signals()}
before = state()
specs = DefaultLogsSpecs(log_dir="logs", redirects=Std.ALL)
elastic_launch(LaunchConfig(1, 1, 2, logs_specs=specs), train)("fine")
tell("same", json.dumps(before == state()))
"""
    run = ended(program(tmp_path, text, before=TRAIN), 0)
    assert json.loads(run.told("same")[0])
    files = sorted((tmp_path / "logs").glob("*/attempt_0/*/stdout.log"))
    assert [file.read_text().split()[1] for file in files] == ["0", "1"]
    assert run.told("train") == []


def examples_of_the_page() -> list[str]:
    page = Path(__file__).parents[2] / "docs" / "agent.md"
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize(
    ("number", "says"), [(0, "rank 1 of 2 did 100"), (1, "hello"), (2, "1 of 2")]
)
def test_the_examples_of_the_page_run_as_they_are(tmp_path: Path, number: int, says: str) -> None:
    script = tmp_path / "example.py"
    script.write_text(examples_of_the_page()[number])
    env = environment(tmp_path, "example")
    ran = processes.run([sys.executable, str(script)], env=env, capture_output=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert says in ran.stdout
    assert list((tmp_path / "tmp").iterdir()) == []
