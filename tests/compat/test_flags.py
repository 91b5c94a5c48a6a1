"""Every option of the real torchrun is understood."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import pytest
from msgspec.structs import replace
from tests.compat.recordings import Recordings
from tests.harness.programs import said_by

from rallypoint.cli.options import parse_run
from rallypoint.cli.parser import CompletionRequested
from rallypoint.core.settings import FLAGS
from rallypoint.elastic.run import get_args_parser, parse_args
from rallypoint.errors import UsageError
from rallypoint.torch_versions import KNOWN

_PROGRAM = """
import json, torch
from torch.distributed.run import get_args_parser
options = [
    {"spellings": a.option_strings, "default": a.default, "takes_value": a.nargs != 0}
    for a in get_args_parser()._actions if a.option_strings and a.dest != "help"
]
print(json.dumps({"version": torch.__version__.split("+")[0], "options": options}))
"""


@dataclass(frozen=True, slots=True)
class TorchrunOption:
    """One option of the real parser."""

    spellings: tuple[str, ...]
    default: object
    takes_value: bool


def ask_torchrun(python: str) -> object:
    """Every option of the real torchrun, with no PET_* variable set."""
    return last_answer(python, _PROGRAM)


_TWICE = """
import json, sys
from torch.distributed.run import config_from_args, get_args_parser
config, _, _ = config_from_args(get_args_parser().parse_args(sys.argv[1:]))
print(json.dumps({k: v for k, v in config.rdzv_configs.items() if k != "timeout"}))
"""


def ask_what_counts(python: str, line: list[str]) -> object:
    """The pairs of --rdzv-conf, as a backend of the real torchrun gets them."""
    return last_answer(python, _TWICE, *line)


def last_answer(python: str, program: str, *words: str) -> object:
    """What a program without an environment of its own says in its last line, which is JSON."""
    said = said_by([python, "-c", program, *words], env={"PATH": "/usr/bin:/bin"}, timeout=300)
    answer: object = json.loads(said.splitlines()[-1])
    return answer


SAMPLES = {
    "--nnodes": "1:1",
    "--nproc-per-node": "2",
    "--rdzv-backend": "c10d",
    "--rdzv-endpoint": "localhost:29400",
    "--rdzv-id": "job",
    "--rdzv-conf": "join_timeout=60",
    "--max-restarts": "3",
    "--monitor-interval": "0.1",
    "--start-method": "fork",
    "--event-log-handler": "console",
    "--role": "trainer",
    "--log-dir": "logs",
    "--redirects": "0:1",
    "--tee": "3",
    "--local-ranks-filter": "0",
    "--duplicate-stdout-filters": "loss",
    "--duplicate-stderr-filters": "loss",
    "--node-rank": "0",
    "--master-addr": "localhost",
    "--master-port": "29501",
    "--local-addr": "127.0.0.1",
    "--logs-specs": "default",
    "--numa-binding": "node",
    "--signals-to-handle": "SIGTERM",
    "--shutdown-timeout": "3",
    "--log-line-prefix-template": "[${rank}]",
    "--print-completion": "bash",
}
SUPPRESSED = "==SUPPRESS=="
"""What argparse has for an option without a default."""
OTHER_DEFAULTS = {
    # torchrun's default -> what the same command line means here, and why
    "--rdzv-backend": "tcp: static only where ranks are given",
    "--node-rank": "0 when ranks are given",
    "--master-addr": "127.0.0.1 when ranks are given",
    "--rdzv-id": "none with other nodes; a random one alone, as torchrun's standalone",
}


@pytest.fixture
def options(torch_said: Recordings, torch_python: str) -> list[TorchrunOption]:
    said = torch_said("flags", "options", lambda: ask_torchrun(torch_python))
    assert said["version"] == torch_said.torch
    return [
        TorchrunOption(tuple(o["spellings"]), o["default"], o["takes_value"])
        for o in said["options"]
    ]


def long_name(option: TorchrunOption) -> str:
    return next(s for s in option.spellings if s.startswith("--") and "_" not in s)


def test_they_are_those_that_the_table_has_for_this_torch(
    options: list[TorchrunOption], torch_said: Recordings
) -> None:
    assert {long_name(o) for o in options} == {
        row.name
        for row in KNOWN
        if row.kind == "flag" and row.name in FLAGS and torch_said.has(row)
    }
    for option in options:
        assert bool(FLAGS[long_name(option)].metavar) == option.takes_value


def refusal(argv: list[str]) -> str | None:
    """Why `argv` is refused; None: it is understood."""
    try:
        parse_run(argv, {})
    except UsageError as error:
        return str(error)
    except CompletionRequested:
        pass
    return None


def test_every_spelling_is_understood(options: list[TorchrunOption]) -> None:
    for option in options:
        name = long_name(option)
        value = [SAMPLES[name]] if option.takes_value else []
        script = {"--module": "json.tool", "--no-python": sys.executable}.get(name, __file__)
        for spelling in option.spellings:
            why = refusal([spelling, *value, script])
            assert why is None, f"{spelling}: {why}"


def test_every_default_of_torchrun_may_be_spelled_out(options: list[TorchrunOption]) -> None:
    spelled = []
    for option in options:
        if option.takes_value and option.default not in (None, "", [], SUPPRESSED):
            spelled += [long_name(option), str(option.default)]
    plain, explicit = parse_run([__file__], {}), parse_run([*spelled, __file__], {})
    assert explicit.workers == plain.workers
    assert explicit.rendezvous.max_restarts == plain.rendezvous.max_restarts
    assert replace(explicit.output, prefix_template=None) == plain.output
    assert explicit.stop == plain.stop
    assert explicit.rendezvous.max_nodes == 1
    assert set(OTHER_DEFAULTS) <= set(spelled)


def test_a_namespace_has_what_torchs_has(
    options: list[TorchrunOption], monkeypatch: pytest.MonkeyPatch
) -> None:
    for flag in FLAGS.values():
        monkeypatch.delenv(flag.env_name or "PET_", raising=False)
    parser = get_args_parser()
    actions = {action.dest: action for action in parser._actions}
    by_parser, by_words = parser.parse_args(["x"]), parse_args([sys.executable])
    for option in options:
        name = long_name(option)[2:].replace("-", "_")
        assert set(option.spellings) <= set(actions[name].option_strings)
        default = "tcp" if name == "rdzv_backend" else option.default
        assert getattr(by_parser, name) == getattr(by_words, name) == default, name
        assert isinstance(getattr(by_words, name), type(default))
    assert (by_parser.training_script, by_parser.training_script_args) == ("x", [])


def test_a_key_that_is_given_twice_counts_as_under_torchrun(
    torch_said: Recordings, torch_python: str
) -> None:
    pairs = "join_timeout=7,last_call_timeout=3,join_timeout=9,read_timeout=2,last_call_timeout=1"
    line = [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=a",
        f"--rdzv-conf={pairs}",
        __file__,
    ]
    said = torch_said("flags", "twice", lambda: ask_what_counts(torch_python, line))
    meeting = parse_run(line, {}).rendezvous
    assert meeting.join_timeout_s == float(said["join_timeout"])
    assert meeting.last_call_s == float(said["last_call_timeout"])
