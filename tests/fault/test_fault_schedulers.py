"""Schedulers that signal every process of a job on a busy machine (A5)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fault import save_on_sigterm


def test_A5_what_workers_save_on_sigterm_is_whole_on_a_busy_machine(tmp_path: Path) -> None:
    with save_on_sigterm.busy(4):
        for seed in range(5):
            folder = tmp_path / str(seed)
            folder.mkdir()
            if wrong := save_on_sigterm.run(folder, seed):
                pytest.fail(wrong)
