"""Whole jobs in virtual time, over the production code: every run is determined by one integer.

    from tests.simulator import Simulation, draw

    outline = Simulation(draw(seed=17)).run()
    assert outline.failure is None, "\\n".join(outline.transcript)

`python -m tests.simulator --seeds 1-300` runs many; `plan.py` lists what goes wrong,
`invariants.py` what must hold all the same. Importing this package imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.lazy import exports

if TYPE_CHECKING:
    from tests.simulator.drawing import draw
    from tests.simulator.plan import Fault, Plan, read_plan
    from tests.simulator.simulation import Failure, Outline, Simulation, shrunk

__all__ = ["Failure", "Fault", "Outline", "Plan", "Simulation", "draw", "read_plan", "shrunk"]

__getattr__, __dir__ = exports(
    globals(),
    {
        ".drawing": ("draw",),
        ".plan": ("Fault", "Plan", "read_plan"),
        ".simulation": ("Failure", "Outline", "Simulation", "shrunk"),
    },
)
