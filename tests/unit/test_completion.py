"""What a shell completes: commands, options, and the words of a choice."""

from __future__ import annotations

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
            assert known in text
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "tcsh: needs one of bash, zsh, fish" in capsys.readouterr().err
