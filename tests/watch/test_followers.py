"""How many people follow one job at once."""

from __future__ import annotations

import pytest
from tests.harness.running_job import Place

from rallypoint.coordinator.watching import FOLLOWERS_MAX
from rallypoint.core import messages as m
from rallypoint.core.watch.questions import Subject
from rallypoint.errors import MessageError


@pytest.mark.parametrize("subject", [Subject.EVENTS, Subject.STATUS])
async def test_V2_what_many_people_follow_is_encoded_once_for_all(
    subject: Subject, place: Place
) -> None:
    follow = m.Ask(subject, follow=True)
    first, second = place.asks(follow, 100), place.asks(follow, 101)
    before, others_before = len(first.sent), len(second.sent)
    place.wants(Subject.CANCEL)
    told = first.sent[before:]
    assert told
    assert all(one is other for one, other in zip(told, second.sent[others_before:], strict=True))


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
