"""Stacks of many workers in few words."""

from __future__ import annotations

from rallypoint.cli.watch.stacks import stacks_lines
from rallypoint.core.watch.names import rank_names
from rallypoint.core.watch.stack_groups import StackFrame, Thread, fold_stacks, threads_of

LOADER = """\
Thread 0x{0:016x} [pin_memory] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/x/torch/utils/data/_utils/pin_memory.py", line 40 in do_one_step"""
WATCHER = """\
Thread 0x{0:016x} (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 468 in select"""
MAIN = """\
Current thread 0x{0:016x} (most recent call first):
  File "{1}", line {2} in all_reduce
  File "train.py", line 9 in <module>"""
LONG = "/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def stack(rank: int, *, line: int = 2501, swapped: bool = False) -> str:
    others = [LOADER.format(0x7F00 + rank), WATCHER.format(0x8F00 + rank)]
    main = MAIN.format(0x9F00 + rank, LONG, line)
    return "\n\n".join([*(reversed(others) if swapped else others), main])


def test_equal_stacks_are_one_group_whatever_their_addresses_and_the_order_of_their_threads() -> (
    None
):
    stacks = {rank: stack(rank, swapped=rank % 2 == 1) for rank in range(64)}
    stacks[31] = stack(31, line=77)
    odd, most = fold_stacks(stacks)
    assert odd.ranks == (31,)
    assert most.ranks == (*range(31), *range(32, 64))
    assert odd.threads[0] == Thread(
        "", (StackFrame("all_reduce", f"{LONG}:77"), StackFrame("<module>", "train.py:9"))
    ), "the main thread is the first"
    assert [thread.name for thread in odd.threads] == ["", "", "pin_memory"]


def test_the_main_thread_is_told_from_another_one_that_does_the_same() -> None:
    waits, works = WATCHER.format(1), MAIN.format(2, "a.py", 1)
    assert len(fold_stacks({0: f"{waits}\n\n{works}", 1: f"{works}\n\n{waits}"})) == 2


def test_what_the_kernel_says_is_one_group_too() -> None:
    text = "process {} (sleep) is sleeping in hrtimer_nanosleep"
    (group,) = fold_stacks({rank: text.format(4000 + rank) for rank in range(3)})
    assert group.ranks == (0, 1, 2)
    assert group.threads == (Thread("process 4000 (sleep) is sleeping in hrtimer_nanosleep", ()),)
    assert stacks_lines({7: text.format(1)}, {7: "n3"}) == [
        "rank 7 (n3): process 1 (sleep) is sleeping in hrtimer_nanosleep"
    ]
    assert stacks_lines({rank: text.format(rank) for rank in (7, 8)}, {7: "n3", 8: "n3"}) == [
        "ranks 7-8 (n3): sleep is sleeping in hrtimer_nanosleep"
    ]


def test_where_python_shows_no_stacks_a_line_says_what_the_script_needs() -> None:
    text = "process {} (python3) is sleeping in hrtimer_nanosleep"
    lines = stacks_lines({rank: text.format(rank) for rank in (7, 8)}, {7: "n3", 8: "n3"})
    assert lines == [
        "ranks 7-8 (n3): python3 is sleeping in hrtimer_nanosleep",
        "a worker that imports rallypoint.worker can show Python's stacks",
    ]


def test_anything_may_come_as_a_stack() -> None:
    for text in (
        "",
        "\n\n\n",
        "x" * 30_000,
        'File "',
        "Thread (most recent call first):\n\n  File",
    ):
        assert stacks_lines({0: text}, {}, 80)
        assert all(len(line) <= 80 for line in stacks_lines({0: text}, {}, 80))
    assert threads_of("") == ()


def test_ranks_are_named_briefly() -> None:
    assert rank_names([5, 1, 2, 0, 7, 8]) == "0-2,5,7-8"
    assert rank_names([]) == ""


def test_a_page_has_the_odd_ones_first_and_at_most_24_lines_each_as_wide_as_the_terminal() -> None:
    stacks = {rank: stack(rank) for rank in range(512)}
    for rank in range(100, 120):
        stacks[rank] = stack(rank, line=rank)
    nodes = {rank: f"gpu-{rank // 8}" for rank in stacks}
    for width in (80, 200):
        lines = stacks_lines(stacks, nodes, width)
        assert len(lines) == 24
        assert max(map(len, lines)) <= width
        assert lines[0] == "rank 100 (gpu-12):"
        assert lines[1].startswith("    all_reduce ")
        assert lines[1].endswith("distributed_c10d.py:100")
        assert lines[-1] == "... 65 more lines and 501 more ranks with 10 other stacks: --all"
    whole = stacks_lines(stacks, nodes, 80, most=1_000_000)
    assert len(whole) == 21 * 8
    assert whole[-8] == "ranks 0-99, 120-511 (gpu-[0-12,15-63]):"


def test_what_fits_is_shown_whole_and_few_groups_share_the_page() -> None:
    two = {0: stack(0), 1: stack(1), 2: stack(2, line=3)}
    assert len(stacks_lines(two, {})) == 16
    deep = "\n".join([stack(0), *(f'  File "a.py", line {n} in f' for n in range(60))])
    lines = stacks_lines({0: deep, 1: stack(1), 2: stack(2)}, {})
    assert len(lines) == 24
    assert lines[0] == "rank 0:"
    assert lines[-1].startswith("... ")
    assert "ranks 1-2:" in lines
    assert stacks_lines({}, {}) == ["no workers run"]
