"""The files that a wheel installs besides the package.

The man page, and completions of shells, in the places where systems look for them.

They are made from the tables of options, so what is installed has every option of this version.
"""

from __future__ import annotations

PLACES = {
    "man": "share/man/man1/rallypoint.1",
    "bash": "share/bash-completion/completions/rallypoint",
    "zsh": "share/zsh/site-functions/_rallypoint",
    "fish": "share/fish/vendor_completions.d/rallypoint.fish",
}
AUTOLOADED = """\
#compdef rallypoint
autoload -Uz bashcompinit && bashcompinit
{}
_bash_complete -o default -F _rallypoint
"""
"""The file of a function that zsh loads when the command is completed first."""


def text_of(name: str) -> str:
    """Return the content of one of the files."""
    from tools.man_page import man_page

    from rallypoint.cli.completion import script

    if name == "man":
        return man_page()
    if name == "zsh":
        return AUTOLOADED.format(script("zsh").split("\n", 1)[1])
    return script(name)
