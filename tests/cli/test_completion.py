"""What a shell completes: commands, options, and the words of a choice."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest

from rallypoint.cli.completion import COMMANDS, SHELLS
from rallypoint.cli.main import main

ASK = """
{script}
COMP_WORDS=({words} "{word}"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_rallypoint; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "word", "answers"),
    [
        ("rallypoint", "", {"run", "drain", "serve", "store", "token", "completion"}),
        ("rallypoint", "dr", {"drain"}),
        ("rallypoint run", "--nno", {"--nnodes"}),
        ("rallypoint run --nnodes 2", "--hang", {"--hang-timeout"}),
        ("rallypoint run --on-join", "", {"restart", "hold", "at-checkpoint"}),
        ("rallypoint run --on-join", "h", {"hold"}),
        ("rallypoint run --progress-pattern", "h", {"hf-trainer"}),
        ("rallypoint serve --log-format", "", {"text", "json"}),
        ("rallypoint token", "--nno", {""}),
        ("rallypoint completion", "", set(SHELLS)),
    ],
)
def test_what_bash_offers(
    words: str, word: str, answers: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ASK.format(script=script("bash", capsys), words=words, word=word)
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert answers <= set(done.stdout.split("\n"))
    assert all(line.startswith(word) for line in done.stdout.splitlines() if line)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_of_every_command_is_known_to_every_shell(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = script(shell, capsys)
    for command in COMMANDS:
        for flag in command.options:
            known = f"{command.name}' -l {flag[2:]} " if shell == "fish" else f"{flag} "
            assert (f" {flag[2:]} " if shell == "tcsh" else known) in text.replace("(", "( ")
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize("shell", SHELLS)
def test_torchruns_option_prints_the_same_and_needs_no_script(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = script(shell, capsys)
    assert main(["run", "--nnodes=4", "--print-completion", shell]) == 0
    assert capsys.readouterr().out == wanted
    assert main(["run", f"--print_completion={shell}", "train.py"]) == 0
    assert capsys.readouterr().out == wanted


def test_tcsh_gets_one_rule_for_each_choice_and_one_for_the_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (line,) = script("tcsh", capsys).splitlines()
    rules, known = shlex.split(line), [*(command.name for command in COMMANDS), "completion"]
    assert rules[:2] == ["complete", "rallypoint"]
    assert rules[2] == f"p/1/({' '.join([*known, '--help', '--version'])})/"
    assert "n/--on-join/(restart hold at-checkpoint)/" in rules
    assert rules[-1].startswith("c/--/(")
    assert all(rule.count("/") == 3 and rule.endswith(")/") for rule in rules[2:])


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "ksh"]) == 2
    assert "ksh: needs one of bash, zsh, tcsh, fish" in capsys.readouterr().err
    assert main(["run", "--print-completion", "ksh"]) == 2
    told = capsys.readouterr().err
    assert "--print-completion ksh: needs one of bash, zsh, tcsh, fish" in told
