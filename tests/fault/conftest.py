"""Every test here needs network namespaces; it is skipped, with the reason, where they fail."""

from __future__ import annotations

from tests.fault.namespaces import namespaces, nothing_left

__all__ = ["namespaces", "nothing_left"]
