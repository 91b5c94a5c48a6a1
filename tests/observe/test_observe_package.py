"""What a program finds in `rallypoint.observe`."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import rallypoint.observe

IN_THE_WAY = """
import sys
import rallypoint.observe
print(sorted(name for name in sys.modules if name.startswith("rallypoint.")))
from rallypoint.observe import put_metric
late = ("rallypoint.observe.event", "rallypoint.observe.recording")
print([name for name in late if name in sys.modules])
"""


def test_every_name_that_is_offered_is_there_and_is_listed() -> None:
    for name in rallypoint.observe.__all__:
        assert getattr(rallypoint.observe, name).__class__ is not ModuleType
    assert set(rallypoint.observe.__all__) <= set(dir(rallypoint.observe))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = rallypoint.observe.Nothing


def test_the_package_imports_what_is_asked_for_and_no_more() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IN_THE_WAY], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["['rallypoint.observe']", "[]"]
