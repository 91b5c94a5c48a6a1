"""The module `torch.distributed.launch`: workers get their local rank as an argument.

It is older than `torch.distributed.run`, and differs in one point: unless `--use-env` is given,
each worker gets `--local-rank=N` before its own arguments. New programs read LOCAL_RANK.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rallypoint.elastic.run import (
    end_with,
)
from rallypoint.elastic.run import (
    get_args_parser as get_args_parser,
)
from rallypoint.elastic.run import (
    parse_args as of_run,
)
from rallypoint.elastic.run import (
    run as run,
)
from rallypoint.errors import CommandLineError, ParameterError, UsageError


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    """Read a command line as `run.parse_args` does, and raise as it does.

    The result's `use_env` says whether `--use-env` stands before the script.
    """
    words = sys.argv[1:] if args is None else [*map(str, args)]
    for at, word in enumerate(words):
        if word in ("--use-env", "--use_env"):
            others = words[:at] + words[at + 1 :]
            found = of_run(others)
            if at < len(others) - len(found.training_script_args):
                found.use_env = True
                return found
            break  # It is an argument of the script.
    found = of_run(words)
    found.use_env = False
    return found


def launch(args: argparse.Namespace) -> None:
    """Run the job that a namespace of `parse_args` describes, to its end. Blocks.

    Raises ParameterError for `--no-python` without `--use-env`, and as `run.run` does.
    """
    if args.no_python and not args.use_env:
        raise ParameterError("--no-python: needs --use-env too, by which LOCAL_RANK is read")
    run(args)


def main(args: Sequence[str] | None = None) -> None:
    """Run the job of a command line (default: the process's own) to its end. Blocks.

    A usage error is printed as one line and raised as CommandLineError, a SystemExit; otherwise
    raises as `launch`.
    """
    try:
        launch(parse_args(args))
    except CommandLineError:
        raise
    except UsageError as error:
        end_with(error)


if __name__ == "__main__":
    main()
