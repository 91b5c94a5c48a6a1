"""A program that needs one name of a package does not pay for the others."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from tests.harness.programs import run_python

SOURCE = Path(__file__).parents[2] / "src" / "rallypoint"
PACKAGES = sorted(
    f"rallypoint.{init.parent.name}"
    for init in SOURCE.glob("*/__init__.py")
    if "exports(" in init.read_text()
)
LOOK = """
import sys
import {package}
print(*sorted(name for name in sys.modules if name.startswith("rallypoint.")))
"""


def test_most_packages_are_lazy() -> None:
    assert len(PACKAGES) == 2


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_imports_nothing_else(package: str) -> None:
    ran = run_python(LOOK.format(package=package), check=True)
    assert set(ran.stdout.split()) == {package, "rallypoint.lazy"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_that_is_offered_is_there_and_is_listed(package: str) -> None:
    module = import_module(package)
    for name in module.__all__:
        assert not isinstance(getattr(module, name), ModuleType)
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = module.Nothing
