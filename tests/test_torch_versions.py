"""The table of what each torch's launcher knows, and who agrees with it: the command line, the
library and the page."""

from __future__ import annotations

import logging
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.harness.command_line import parse, refusal

from rallypoint.core.settings import CONF, FLAGS, is_torchrun
from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.led.parameters import read_parameters
from rallypoint.elastic.run import parse_args
from rallypoint.errors import ParameterError
from rallypoint.torch_versions import COMPARED, KNOWN, VERSIONS, Known, is_later

ROOT = Path(__file__).parents[1]
FLAG_ROWS = [row for row in KNOWN if row.kind == "flag"]
KEY_ROWS = [row for row in KNOWN if row.kind == "key"]


def test_a_thing_has_one_row_of_a_known_version() -> None:
    names = [(row.kind, row.name) for row in KNOWN]
    assert len(set(names)) == len(names)
    assert {row.since for row in KNOWN} <= set(VERSIONS)
    assert [row.since for row in KNOWN] == sorted((r.since for r in KNOWN), key=VERSIONS.index)
    assert is_later("2.14", COMPARED)
    assert not is_later("2.9", "2.10")


def test_every_flag_and_key_of_torch_is_in_the_table() -> None:
    ours = {flag for flag, row in FLAGS.items() if is_torchrun(row)}
    assert ours <= {row.name for row in FLAG_ROWS}
    assert {row.name for row in FLAG_ROWS if row.effect} <= ours
    own = {"host_timeout", "hold"}
    assert CONF.keys() - own <= {row.name for row in KEY_ROWS}
    assert {row.name for row in KEY_ROWS if row.effect} <= CONF.keys()


def test_the_page_is_made_from_the_table() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "torch_versions_page.py"))["page"]()
    page = (ROOT / "docs" / "torch-versions.md").read_text()
    assert page == made, "run: python tools/torch_versions_page.py"
    for version in VERSIONS:
        assert f"## torch {version}" in page


def test_the_list_of_variables_without_effect_is_on_the_page_for_those_who_come_from_torchrun() -> (
    None
):
    page = (ROOT / "docs" / "from-torchrun.md").read_text()
    for row in KNOWN:
        if row.kind == "variable" and not row.effect:
            assert f"`{row.name}`" in page


@pytest.mark.parametrize(
    "row", [r for r in KEY_ROWS if not r.effect], ids=lambda row: str(row.name)
)
def test_a_key_without_effect_is_accepted_and_said(
    row: Known, caplog: pytest.LogCaptureFixture
) -> None:
    notices = parse(f"--rdzv-conf {row.name}=5 train.py").notices
    assert notices == (f"--rdzv-conf {row.name}=5 has no effect: {row.here.replace('`', '')}",)
    if row.name in CONF:
        return
    conf: dict[str, Any] = {"insecure": True, row.name: 5}
    params = RendezvousParameters("tcp", "localhost:0", "job", 1, 1, None, **conf)
    with caplog.at_level(logging.WARNING):
        read_parameters(params)
    (said,) = (note.getMessage() for note in caplog.records)
    assert said.startswith(f"the rendezvous parameter {row.name} has no effect: ")


def test_the_library_knows_the_type_of_store_that_a_coordinator_needs_not() -> None:
    def settings(store_type: str) -> object:
        given: dict[str, Any] = {"insecure": True, "store_type": store_type}
        return read_parameters(RendezvousParameters("c10d", "localhost:0", "job", 1, 1, **given))

    settings(" TCP")
    with pytest.raises(ParameterError, match="store_type='file': leave it out"):
        settings("file")


def test_a_flag_without_effect_is_accepted_and_said() -> None:
    said = "of torch.distributed.launch; workers are always told by their environment"
    for spelled in ("--use-env", "--use_env"):
        config = parse(f"{spelled} train.py --use-env")
        assert config.notices == (f"--use-env has no effect: {said}",)
        assert config.workers.argv[2:] == ("train.py", "--use-env")
    assert parse_args(["--use-env", sys.executable]).training_script == sys.executable
    (notice,) = parse("--monitor-interval 5 train.py").notices
    assert notice == "--monitor-interval 5 has no effect: exits are noticed at once"


def test_what_no_torch_knows_is_an_error() -> None:
    assert "unknown key cas_backof" in refusal("--rdzv-conf cas_backof=1 train.py")
    assert refusal("--use-envy train.py").startswith("--use-envy: unknown option")
    assert (
        refusal("--use-env=1 train.py") == "--use-env=1: --use-env is a switch, it takes no value"
    )
