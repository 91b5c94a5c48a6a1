"""What `--progress-pattern` reads in what trainers print: `tests/printed` has real output of
transformers 5.24 (hf-trainer), accelerate 1.15 with tqdm 4.70, and Lightning 2.6; of Megatron-LM
and torchtitan, which need GPUs, lines in the form that their users show."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.process.relay.newest_lines import (
    HELD_BYTES,
    LINE_BYTES,
    MOST_LINES,
    NewestLines,
    UnmatchedNotice,
)
from rallypoint.process.relay.pattern import (
    PROFILES,
    PatternReading,
    PrintedProgress,
    ProgressPattern,
)

PRINTED = Path(__file__).parents[1] / "printed"


class Worker:
    """What is known of one, as its output comes in small pieces."""

    def __init__(self, pattern: str) -> None:
        self.pattern = ProgressPattern(pattern)
        self.printed = PrintedProgress(self.pattern.draws_bars)
        self.seen: list[tuple[int, int | None]] = []
        """Each step and total that it was seen at."""

    def reads(self, name: str, piece: int = 200) -> Worker:
        """It prints what is in the file."""
        lines, data = NewestLines(), (PRINTED / name).read_bytes()
        for begin in range(0, len(data), piece):
            lines.feed(data[begin : begin + piece], 0.0)
            taken = lines.take(0.0 if begin + piece < len(data) else inf)
            progress = self.printed.read(self.pattern.read(taken), 1.0)
            if progress.changes and self.seen[-1:] != [(progress.step, progress.total)]:
                self.seen.append((progress.step, progress.total))
        return self

    @property
    def told(self) -> tuple[int, int | None, float | None, int | None]:
        progress = self.printed.progress
        return progress.step, progress.total, progress.loss, progress.tokens


def test_hf_trainer_tells_steps_in_bars_and_the_rest_in_lines_and_evaluates_beside_them() -> None:
    worker = Worker("hf-trainer").reads("hf-trainer.stderr.txt")
    steps = [step for step, _ in worker.seen]
    assert {total for _, total in worker.seen} == {40}
    assert steps == sorted(steps)
    assert steps[-1] == 40
    assert worker.printed.progress.changes > len(steps), "a worker that evaluates is alive"
    assert worker.reads("hf-trainer.stdout.txt").told == (40, 40, 3.897, 1280)


def test_accelerate_tells_steps_in_a_bar_without_a_name_or_one_of_steps() -> None:
    worker = Worker("accelerate").reads("accelerate.txt", piece=60)
    assert worker.seen[0] == (0, 40)
    assert worker.told == (40, 40, 0.025, None)


def test_lightning_counts_the_steps_of_an_epoch_and_the_epochs_before() -> None:
    worker = Worker("lightning").reads("lightning.txt")
    steps = [step for step, _ in worker.seen]
    assert {5, 30, 60, 90} <= set(steps)
    assert steps[-1] == 90
    assert {total for _, total in worker.seen} == {None}
    assert worker.told[2] is not None
    assert Worker("lightning").reads("lightning-rich.txt").seen == [(90, None)]


def test_megatron_tells_iterations_and_an_evaluation_is_none() -> None:
    worker = Worker("megatron").reads("megatron.txt")
    assert worker.seen == [(10, 1000), (20, 1000)]
    assert worker.told == (20, 1000, 9.207733, 10485760)


def test_torchtitan_tells_steps_in_colours_and_with_commas() -> None:
    worker = Worker("torchtitan").reads("torchtitan.txt", piece=100)
    assert worker.seen == [(1, None), (1000, None)]
    assert worker.told == (1000, None, 3.54399, None)


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_a_profile_reads_nothing_in_what_the_others_print_before_they_begin(profile: str) -> None:
    lines = [
        "Map: 100%|██████████| 1000/1000 [00:01<00:00, 999.00 examples/s]",
        "Loading checkpoint shards:  50%|█████     | 1/2 [00:01<00:01,  1.00s/it]",
        "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 192.85it/s]",
        "{'eval_loss': '3.899', 'eval_runtime': '0.038', 'epoch': '0.5'}",
        "Training starts at step 1",
    ]
    assert ProgressPattern(profile).read(lines) == PatternReading()


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("7", 7),
        ("1,234,567", 1234567),
        ("1_000", 1000),
        ("1.5k", 1500),
        ("2M", 2000000),
        ("12.0", 12),
        ("-3", -3),
        ("1e3", 1000),
        ("nan", None),
        ("inf", None),
        ("1.2.3", None),
        ("x", None),
        ("", None),
        ("9" * 100, None),
    ],
)
def test_a_step_is_any_number_and_what_is_none_is_no_step(text: str, step: int | None) -> None:
    assert ProgressPattern("step (?P<step>.*)").read([f"step {text}"]).step == step


def test_a_line_tells_what_has_a_group_and_the_newest_that_matches_counts() -> None:
    pattern = ProgressPattern(
        r"(?P<step>\d+) of (?P<total>\d+)(, loss (?P<loss>\S+))?( (?P<tokens>\d+) tokens)?"
    )
    assert pattern.read(["saved", "3 of 9, loss nan?", "2 of 9"]) == PatternReading(3, 9)
    found = pattern.read(["3 of 9, loss inf, 700 tokens", "2 of 9"])
    assert found == PatternReading(3, 9, inf, 700)
    assert pattern.read(["saved"]) == PatternReading()
    assert ProgressPattern(r"e(?P<epoch>\d) (?P<step>\d+)/(?P<total>\d+)").read(["e2 3/10"]) == (
        PatternReading(23)
    )


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("step (?P<step", "not a valid regular expression: missing >, unterminated name at posit"),
        ("(?P<step>a)(", "not a valid regular expression: missing ), unterminated subpattern at"),
        ("(?P<step>a){9999999999}", "not a valid regular expression: it is too large"),
        (r"step (\d+)", "needs a group (?P<step>...), for example 'step (?P<step>[0-9]+)'"),
        ("(?P<loss>x)", "needs a group (?P<step>...)"),
        ("", "needs a group (?P<step>...)"),
        ("hf-trainr", "there is no such profile; there are: accelerate, hf-trainer, lightning,"),
        ("hf-trainr", "; did you mean hf-trainer?"),
    ],
)
def test_a_pattern_that_is_none_is_refused_with_what_is_wrong(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as refused:
        ProgressPattern(pattern)
    assert why in str(refused.value)


def test_a_step_that_stays_is_no_progress_and_one_that_falls_is() -> None:
    printed = PrintedProgress(False)
    assert printed.read(PatternReading(loss=0.5), 1.0).changes == 0
    first = printed.read(PatternReading(3, 10), 2.0)
    assert (first.step, first.total, first.loss, first.changes) == (3, 10, 0.5, 1)
    same = printed.read(PatternReading(3, loss=0.25), 3.0)
    assert (same.at_ns, same.changes, same.loss, same.total) == (first.at_ns, 1, 0.25, 10)
    again = printed.read(PatternReading(0), 4.0)
    assert (again.step, again.at_ns, again.changes) == (0, 4_000_000_000, 2)


def test_lines_come_out_newest_first_and_once() -> None:
    lines = NewestLines()
    lines.feed(b"one\ntwo\r\n\n  \nthr", 1.0)
    assert lines.take(1.0) == ["two", "one"]
    assert lines.has_rest
    assert lines.take(1.05) == []
    lines.feed(b"ee", 1.05)
    assert lines.take(1.1) == [], "it may go on"
    assert lines.take(1.2) == ["three"], "it has not gone on for a while"
    assert not lines.has_rest
    assert lines.take(9.0) == []
    lines.feed(b" and four\n", 9.0)
    assert lines.take(9.0) == ["three and four"]


def test_of_much_output_the_newest_lines_are_read_and_no_line_without_its_beginning() -> None:
    lines = NewestLines()
    lines.feed(b"".join(b"%d/%d\n" % (step, 100_000) for step in range(90_000)), 0.0)
    taken = lines.take(0.0)
    assert taken == [f"{step}/100000" for step in range(89_999, 89_999 - MOST_LINES, -1)]
    lines.feed(b"x" * HELD_BYTES + b" step 12\n", 0.0)
    assert lines.take(0.0) == [], "the beginning of this line is not known"
    lines.feed(b"x" * LINE_BYTES + b" step 12\n", 0.0)
    (text,) = lines.take(0.0)
    assert text == "x" * (LINE_BYTES - len(" step 12")) + " step 12"
    lines.feed(b"1" * LINE_BYTES + b"234\n", 0.0)
    assert lines.take(0.0) == [], "nor is this number"
    lines.feed(b"y" * 2 * HELD_BYTES, 0.0)
    assert lines.take(inf) == ["y" * LINE_BYTES], "a stream that is over has a last line"


def test_colours_and_moves_are_no_part_of_a_line() -> None:
    lines = NewestLines()
    lines.feed(b"\x1b[31mstep:\x1b[0m 3\x1b[K\n\x1b[A\r", 0.0)
    assert lines.take(0.0) == ["step: 3"]


@given(st.lists(st.binary(max_size=60) | st.just(b"\n") | st.just(b"\r"), max_size=20))
def test_any_bytes_in_any_pieces_are_lines(pieces: list[bytes]) -> None:
    lines = NewestLines()
    taken: list[str] = []
    for piece in pieces:
        lines.feed(piece, 0.0)
        taken += reversed(lines.take(0.0))
    taken += reversed(lines.take(inf))
    whole = NewestLines()
    whole.feed(b"".join(pieces), 0.0)
    assert whole.take(inf) == taken[::-1][:MOST_LINES]


@given(st.text(max_size=30) | st.sampled_from(sorted(PROFILES)), st.lists(st.text(), max_size=3))
def test_any_pattern_is_refused_or_reads_any_lines(pattern: str, lines: list[str]) -> None:
    try:
        reads = ProgressPattern(pattern)
    except ValueError:
        return
    printed = PrintedProgress(reads.draws_bars)
    assert printed.read(reads.read(lines), 1.0).at_ns in (0, 1_000_000_000)


def test_that_nothing_matches_is_said_once_workers_have_run_for_long_enough() -> None:
    notice = UnmatchedNotice(120.0)
    assert notice.due_at() == inf, "none runs"
    notice.run(10.0)
    notice.run(20.0)
    assert notice.due_at() == 130.0
    notice.stop(60.0)
    notice.stop(70.0)
    assert notice.due_at() == inf
    notice.run(1000.0)
    assert notice.due_at() == 1070.0, "50 s are over"
    notice.settle()
    assert notice.due_at() == inf
