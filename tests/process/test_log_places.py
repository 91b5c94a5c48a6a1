"""Where the log files of a node lie, as its command line says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.harness.command_line import parse

from rallypoint.agent.output_files import logs_specs
from rallypoint.process.logs.specs import DefaultLogsSpecs


def place(tmp_path: Path, words: str) -> str:
    """The directory that a node makes, below that of --log-dir."""
    config = parse(f"--log-dir {tmp_path} --rdzv-id train-7 {words} train.py")
    specs = logs_specs(config)
    assert isinstance(specs, DefaultLogsSpecs)
    return str(Path(specs.open(config.rendezvous.run_id).root).relative_to(tmp_path))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("", r"train-7_[0-9a-f]{8}"),
        ("--nnodes 1:2 --rdzv-endpoint a --node-id rack/7", r"train-7_rack_7_[0-9a-f]{8}"),
        ("--nnodes 2 --node-rank 1 --master-addr a", r"train-7_rank1_[0-9a-f]{8}"),
        ("--log-layout rounds --node-id b", r"train-7/b"),
    ],
)
def test_in_a_log_directory_of_several_nodes_each_has_its_name(
    tmp_path: Path, words: str, name: str
) -> None:
    assert re.fullmatch(name, place(tmp_path, words))


def test_two_nodes_of_one_name_have_a_directory_each(tmp_path: Path) -> None:
    words = "--nnodes 2 --rdzv-endpoint a --node-id b"
    assert place(tmp_path, words) != place(tmp_path, words)
