"""Under which name of a backend the events of a job are found."""

from __future__ import annotations

import pytest
from tests.unit.test_event_observers import reported
