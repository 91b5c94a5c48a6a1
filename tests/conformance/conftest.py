"""Every test that takes `pair` is run against every subject."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.known_wrong import what_is_wrong
from tests.conformance.stores import SUBJECTS, OurServers, Pair, Subject, opened
from tests.harness.resolver import no_names as no_names


@pytest.fixture(params=SUBJECTS, ids=str)
def subject(request: pytest.FixtureRequest) -> Subject:
    found: Subject = request.param
    return found


@pytest.fixture(scope="module")
def servers() -> Iterator[OurServers]:
    process = OurServers()
    yield process
    process.close()


@pytest.fixture
def pair(
    subject: Subject,
    servers: OurServers,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    case = request.node.callspec.id.removeprefix(f"{subject}-")
    wrong = what_is_wrong(subject, request.node.originalname, case)
    if wrong is not None and wrong.hangs:
        pytest.skip(wrong.reason)
    if wrong is not None:
        request.node.add_marker(pytest.mark.xfail(reason=wrong.reason, strict=True))
    # Most stores need no folder, and making one takes longer than most of these tests.
    folder = tmp_path_factory.mktemp("store") if subject.kind == "file" else Path()
    with opened(subject, servers, folder) as stores:
        yield stores
