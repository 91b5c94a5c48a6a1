"""How many people follow one job at once."""

from __future__ import annotations

from typing import cast

import pytest
from tests.watch.test_what_is_recorded import answers, asks
from tests.watch.test_what_wishes_hear import Place, in_loop

from rallypoint.coordinator.connection import ServerConnection
from rallypoint.coordinator.watching import FOLLOWERS_MAX
from rallypoint.core import messages as m
from rallypoint.core.watch.questions import Subject
from rallypoint.errors import MessageError


@pytest.mark.parametrize("subject", [Subject.EVENTS, Subject.STATUS])
def test_V2_what_many_people_follow_is_encoded_once_for_all(subject: Subject) -> None:
    def test(place: Place) -> None:
        follow = m.Ask(subject, follow=True)
        first, second = asks(place, follow, 100), asks(place, follow, 101)
        before, others_before = len(first.sent), len(second.sent)
        place.wants(Subject.CANCEL)
        told = first.sent[before:]
        assert told
        assert all(
            one is other for one, other in zip(told, second.sent[others_before:], strict=True)
        )

    in_loop(test)


@pytest.mark.parametrize("subject", [Subject.EVENTS, Subject.STATUS])
def test_V2_people_who_have_followed_a_job_and_gone_keep_nobody_out(subject: Subject) -> None:
    def test(place: Place) -> None:
        follow = m.Ask(subject, follow=True)
        first = [asks(place, follow, 100 + number) for number in range(FOLLOWERS_MAX)]
        with pytest.raises(MessageError, match="others follow this job already"):
            asks(place, follow, 200)
        for person in first:
            place.job.connection_closed(cast(ServerConnection, person))
        assert answers(asks(place, follow, 201))

    in_loop(test)
