"""`--spares` and `--topology`, as a command line is read."""

from __future__ import annotations

import pytest
from tests.harness.command_line import MACHINE, SameMachine, parse, refusal

from rallypoint.cli.options import parse_run
from rallypoint.errors import UsageError

HERE = "--rdzv-endpoint node-a"


@pytest.mark.parametrize(
    ("line", "least", "most"),
    [
        ("--nnodes 4 --spares 1", 3, 3),
        ("--nnodes 2:4 --spares 1", 2, 3),
        ("--nnodes 2:4 --spares 2", 2, 2),
        ("--nnodes 2 --spares 1", 1, 1),
        ("--nnodes 4 --spares 0", 4, 4),
    ],
)
def test_R2_spares_are_nodes_of_the_allocation_that_do_not_work(
    line: str, least: int, most: int
) -> None:
    meeting = parse(f"{line} {HERE} train.py").rendezvous
    assert (meeting.min_nodes, meeting.max_nodes) == (least, most)
    assert str(meeting.endpoint) == "node-a:29400", "a spare finds the others"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"--spares 1 {HERE}", "--spares 1: needs --nnodes, with the spare nodes: "),
        (f"--nnodes 4 --spares -1 {HERE}", "--spares -1: needs 0 or more"),
        (f"--nnodes 4 --spares x {HERE}", "--spares x: needs a whole number"),
        (f"--nnodes 4 --spares 4 {HERE}", "--nnodes 4, --spares 4: leaves 0 nodes to work"),
        (f"--nnodes 3:4 --spares 2 {HERE}", "--nnodes 3:4, --spares 2: leaves 2 nodes to work"),
        ("--nnodes 2 --spares 1", "--spares 1: needs --rdzv-endpoint, where the spare nodes find"),
        (
            f"--nnodes 4 --spares 1 --node-rank 1 {HERE}",
            "--spares 1: with --node-rank 1 every node takes part, and none stands by",
        ),
    ],
)
def test_spares_that_can_not_be_are_refused_in_one_line(line: str, says: str) -> None:
    assert refusal(f"{line} train.py").startswith(says)


class Rack(SameMachine):
    """What files and commands of this machine say."""

    said: str | None = " rack-7 \n"

    def read_text(self, path: str) -> str:
        if self.said is None:
            raise FileNotFoundError(2, "No such file or directory")
        return self.said

    def ask_command(self, command: str, timeout_s: float) -> str | None:
        return self.said


@pytest.mark.parametrize("spelled", ["file:/etc/rack", "cmd:rack-of-this-node"])
def test_R4_the_key_of_a_node_is_what_a_file_or_a_command_says(spelled: str) -> None:
    config = parse_run(["--topology", spelled, *HERE.split(), "train.py"], {}, Rack())
    assert config.rendezvous.topology == "rack-7"


@pytest.mark.parametrize(
    ("spelled", "said", "says"),
    [
        ("file:rack", None, "can't be read: No such file or directory"),
        ("cmd:false", None, "failed, or took more than 10 s: try it in a shell on this node"),
        ("cmd:true", "", "says nothing: one line is needed, like rack-07"),
        ("file:rack", "a\nb\n", "says 2 lines: one line is needed, like rack-07"),
    ],
)
def test_a_key_that_can_not_be_had_is_refused_in_one_line(
    spelled: str, said: str | None, says: str
) -> None:
    rack = Rack()
    rack.said = said
    with pytest.raises(UsageError) as caught:
        parse_run(["--topology", spelled, *HERE.split(), "train.py"], {}, rack)
    assert str(caught.value) == f"--topology {spelled}: {says}"


def test_a_key_that_is_no_name_is_refused_with_where_it_comes_from() -> None:
    rack = Rack()
    rack.said = "x" * 5000
    with pytest.raises(UsageError, match=r"^--topology cmd:rack"):
        parse_run(["--topology", "cmd:rack", *HERE.split(), "train.py"], {}, rack)
    assert parse_run(["--topology", "rack-1", *HERE.split(), "train.py"], {}, MACHINE)
