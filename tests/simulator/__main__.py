"""Simulates jobs of many seeds, and shows the smallest form of each that breaks a rule.

python -m tests.simulator --seeds 1-300
python -m tests.simulator --seconds 3600 --nodes 200
python -m tests.simulator --plan FILE
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.simulator.drawing import draw
from tests.simulator.plan import Plan, read_plan
from tests.simulator.simulation import Outline, Simulation, shrunk


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 if a rule was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulator", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seeds", metavar="A-B", type=_seeds, help="from A to B, or from A on")
    parser.add_argument("--nodes", metavar="N", type=int, help="instead of what a seed draws")
    parser.add_argument("--seconds", metavar="S", type=float, help="begin no seed after that")
    parser.add_argument("--plan", metavar="FILE", type=Path, help="simulate this one")
    parser.add_argument("--first", action="store_true", help="end at the first broken rule")
    parser.add_argument("--brief", action="store_true", help="only name the rules that break")
    options = parser.parse_args(arguments)
    if options.plan is not None:
        try:
            plan = read_plan(options.plan)
        except (OSError, ValueError) as error:
            parser.error(f"--plan {options.plan}: {error}")
        return _run_one(plan)
    first, last = options.seeds or (1, None if options.seconds else 300)
    began, outcomes, broken = time.monotonic(), Counter[str](), 0
    for seed in _up_to(first, last):
        if options.seconds is not None and time.monotonic() - began > options.seconds:
            break
        drawn = draw(seed, options.nodes)
        outline = Simulation(drawn).run()
        outcomes.update(outline.verdicts)
        outcomes["seeds"] += 1
        if outline.failure is not None:
            broken += 1
            print(f"seed {drawn.seed} broke a rule: {outline.failure.text}")
            if not options.brief:
                _show(drawn, outline.failure.rule)
            if options.first:
                break
    took_s = time.monotonic() - began
    told = ", ".join(f"{number} {what}" for what, number in sorted(outcomes.items()))
    print(f"{told or 'nothing'}; {broken} broke a rule; {took_s:.1f} s")
    return 1 if broken else 0


def _run_one(plan: Plan) -> int:
    outline = Simulation(plan).run()
    _print(plan, outline)
    return 0 if outline.failure is None else 1


def _show(plan: Plan, rule: str) -> None:
    """Its smallest form, with its transcript."""
    small = shrunk(plan, rule)
    print(f"its smallest form ({len(small.faults)} faults, {small.nodes} nodes):")
    _print(small, Simulation(small).run())


def _print(plan: Plan, outline: Outline) -> None:
    print(f"\n{plan}\n")
    print("\n".join(outline.transcript))
    if outline.failure is not None:
        print(f"\nat {outline.failure.at_s:.3f} s: {outline.failure.text}\n", flush=True)


def _seeds(text: str) -> tuple[int, int | None]:
    first, _, last = text.partition("-")
    try:
        return int(first), int(last) if last else None
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give A-B, such as 1-300") from None


def _up_to(first: int, last: int | None) -> Iterator[int]:
    return iter(count(first) if last is None else range(first, last + 1))


if __name__ == "__main__":
    sys.exit(main())
