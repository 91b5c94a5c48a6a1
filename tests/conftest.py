"""What holds for all tests.

The examples of property tests are the same at every run, so that a change is judged by itself; new
ones are looked for with `HYPOTHESIS_PROFILE=search pytest`, and `make fuzz`.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("steady", derandomize=True)
settings.register_profile("search", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
