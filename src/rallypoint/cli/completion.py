"""`rallypoint completion SHELL`, and torchrun's `--print-completion SHELL`.

A script with which a shell completes commands, options and choices.

Made from the tables of options, so that a new option is completed without a line here.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from msgspec.structs import replace

from rallypoint.cli.commands import ROWS, Row
from rallypoint.cli.generate.command import GENERATE, KINDS
from rallypoint.cli.parser import Command, parse, with_hint
from rallypoint.cli.values import Given, choice
from rallypoint.core.settings import Setting
from rallypoint.observe.printing import write_text
from rallypoint.process.relay.pattern import PROFILES

SHELLS = ("bash", "zsh", "tcsh", "fish")
COMPLETION = Command(
    "completion",
    """\
usage: rallypoint completion bash|zsh|tcsh|fish

Print a script that completes commands, options and choices in a shell.

  eval "$(rallypoint completion bash)"     in ~/.bashrc; zsh: in ~/.zshrc
  rallypoint completion tcsh > ~/.rallypoint.tcsh    in ~/.tcshrc: source that file
  rallypoint completion fish | source      in ~/.config/fish/config.fish
""",
    (),
    words=("SHELL",),
)
_KINDS = tuple(group for kind in KINDS.values() for group in kind.command.groups)


def _command(row: Row) -> Command:
    module = import_module(row.module)
    command: Command = module.command(row) if row.text else getattr(module, row.name.upper())
    return replace(command, groups=_KINDS) if command is GENERATE else command


COMMANDS = tuple(_command(row) for row in ROWS.values() if row.name != COMPLETION.name)
WORDS = {COMPLETION.name: SHELLS, GENERATE.name: tuple(KINDS)}
"""The possible first arguments of commands, by the command's name, where they are fixed."""


def run(argv: list[str]) -> int:
    """Print the completion script for the shell in `argv`. Raises UsageError and HelpRequested."""
    shell = with_hint(COMPLETION, lambda: _shell(argv))
    write_text(script(shell))
    return 0


def script(shell: str) -> str:
    """Return the completion script for one of `SHELLS`."""
    match shell:
        case "fish":
            lines = _fish()
        case "tcsh":
            lines = _tcsh()
        case _:
            lines = _bash(zsh=shell == "zsh")
    return "".join(f"{line}\n" for line in lines)


def _shell(argv: list[str]) -> str:
    (word,) = parse(COMPLETION, argv, {}).words
    return choice(Given(word, word), SHELLS)


def _choices(row: Setting) -> str:
    """Return the values to offer for an option, separated by blanks; empty: none is offered."""
    if row.kind == "pattern":
        return " ".join(sorted(PROFILES))
    return row.metavar.replace("|", " ") if row.kind in ("choice", "engine", "styles") else ""


def _bash(*, zsh: bool) -> Iterator[str]:
    """Yield the script's lines for bash, or for zsh, which understands bash's completions."""
    if zsh:
        yield "autoload -Uz compinit bashcompinit && compinit && bashcompinit"
    names = " ".join(command.name for command in (*COMMANDS, COMPLETION))
    yield "_rallypoint() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" offer=""'
    yield '  case "$COMP_CWORD ${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in'
    yield f'    1\\ *) offer="{names} --help --version" ;;'
    for name, words in WORDS.items():
        yield f'    *\\ {name}\\ {name}) offer="{" ".join(words)}" ;;'
    for command in COMMANDS:
        for flag, row in command.options.items():
            if offer := _choices(row):
                yield f'    *\\ {command.name}\\ {flag}) offer="{offer}" ;;'
    for command in COMMANDS:
        flags = " ".join((*command.options, "--help"))
        yield f'    *\\ {command.name}\\ *) [[ $word == -* ]] && offer="{flags}" ;;'
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$offer" -- "$word"))'
    yield "}"
    yield "complete -o default -F _rallypoint rallypoint"


def _fish() -> Iterator[str]:
    first = "complete -c rallypoint -n __fish_use_subcommand -f"
    for command in (*COMMANDS, COMPLETION):
        yield f"{first} -a {command.name}"
    yield f"{first} -l help"
    for command in COMMANDS:
        seen = f"complete -c rallypoint -n '__fish_seen_subcommand_from {command.name}'"
        for row in command.options.values():
            about = row.about.replace("'", "\\'")
            short = f" -s {row.short[1:]}" if row.short else ""
            takes = (
                f" -x -a '{words}'" if (words := _choices(row)) else " -r" if row.metavar else ""
            )
            yield f"{seen} -l {row.flag[2:]}{short}{takes} -d '{about}'"
    for name, kinds in WORDS.items():
        offer = " ".join(kinds)
        yield f"complete -c rallypoint -n '__fish_seen_subcommand_from {name}' -f -a '{offer}'"


def _tcsh() -> Iterator[str]:
    """Yield the script's lines for tcsh.

    It can't tell which command stands before an option, so it offers the options of all commands.
    """
    rows = {flag: row for command in COMMANDS for flag, row in command.options.items()}
    names = " ".join(command.name for command in (*COMMANDS, COMPLETION))
    rules = [f"p/1/({names} --help --version)/"]
    rules += [f"n/{name}/({' '.join(words)})/" for name, words in WORDS.items()]
    rules += [f"n/{flag}/({words})/" for flag, row in rows.items() if (words := _choices(row))]
    rules.append(f"c/--/({' '.join(flag[2:] for flag in rows)} help)/")
    yield "complete rallypoint " + " ".join(f"'{rule}'" for rule in rules)
