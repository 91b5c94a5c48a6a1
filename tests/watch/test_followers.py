"""How many people follow one job at once."""

from __future__ import annotations

import pytest
from tests.harness.running_job import Place

from rallypoint.coordinator.watching import FOLLOWERS_MAX
from rallypoint.core import messages as m
from rallypoint.core.watch.questions import Subject
from rallypoint.errors import MessageError


@pytest.mark.parametrize("subject", [Subject.EVENTS, Subject.STATUS])
async def test_V2_people_who_have_followed_a_job_and_gone_keep_nobody_out(
    subject: Subject, place: Place
) -> None:
    follow = m.Ask(subject, follow=True)
    first = [place.asks(follow, 100 + number) for number in range(FOLLOWERS_MAX)]
    with pytest.raises(MessageError, match="others follow this job already"):
        place.asks(follow, 200)
    for person in first:
        place.job.connection_closed(person)
    assert place.asks(follow, 201).all(m.Answer)
