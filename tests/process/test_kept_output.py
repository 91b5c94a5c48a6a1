"""The newest output of a stream, in bounded memory."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.properties import examples

from rallypoint.process.relay.drawing import WorkerKey
from rallypoint.process.relay.kept import KEPT_BYTES, UNFINISHED_BYTES, KeptOutput, RoundsOutput
from rallypoint.process.relay.messages import OUTPUT_BYTES, AddStream, AskOutput


def kept_of(text: bytes, at: float = 0.0) -> KeptOutput:
    kept = KeptOutput()
    kept.feed(text, at)
    return kept


def data_after(kept: KeptOutput, position: int, most: int = 10**6, **how: bool) -> bytes:
    return b"".join(part.data for part in kept.after(position, most, **how).lines)


def test_the_newest_lines_are_found_and_one_that_is_not_finished_is_one_of_them() -> None:
    kept = kept_of(b"a\nb\nc\nd")
    assert data_after(kept, kept.newest_at(2), unfinished=True) == b"c\nd"
    assert data_after(kept, kept.newest_at(2)) == b"c\n"
    assert data_after(kept, kept.newest_at(99)) == b"a\nb\nc\n"
    assert kept.newest_at(0) == kept.end == 7
    kept.feed(b"\n", 0.0)
    assert data_after(kept, kept.newest_at(1)) == b"d\n"
    assert kept_of(b"").newest_at(5) == 0


def test_who_comes_too_late_is_told_how_much_is_gone_and_begins_with_a_whole_line() -> None:
    kept = KeptOutput()
    for number in range(20_000):
        kept.feed(b"line %d\n" % number, number / 1000)
    newest = kept.after(10, 10**6)
    text = b"".join(part.data for part in newest.lines)
    assert newest.left_out == kept.end - 10 - len(text)
    assert KEPT_BYTES - 20 <= len(text) <= 2 * KEPT_BYTES
    assert text.startswith(b"line ")
    assert text.endswith(b"line 19999\n")
    assert kept.after(newest.next, 10**6).left_out == 0


def test_a_line_has_the_time_at_which_it_began() -> None:
    kept = KeptOutput()
    for at, data in ((1.0, b"a\nb"), (2.0, b"b\nc\n"), (2.01, b"d\n"), (3.0, b"e\n")):
        kept.feed(data, at)
    assert [(part.at, part.data) for part in kept.after(0, 10**6).lines] == [
        (1.0, b"a\nbb\n"),
        (2.0, b"c\nd\n"),
        (3.0, b"e\n"),
    ]


def test_a_line_without_an_end_is_given_out_in_pieces() -> None:
    kept = kept_of(b"x" * 9000)
    newest = kept.after(0, 10**6)
    assert [len(part.data) for part in newest.lines] == [9000]
    short = kept_of(b"x" * 100).after(0, 10**6)
    assert (short.lines, short.next, short.has_more) == ([], 0, False)


def test_no_line_is_cut_where_the_room_is_small() -> None:
    newest = kept_of(b"a" * 500 + b"\n").after(0, 100)
    assert (newest.lines, newest.next, newest.has_more) == ([], 0, True)
    assert data_after(kept_of(b"a\nb\nc\n"), 0, 5) == b"a\nb\n"


def added(worker: WorkerKey, stream: int) -> AddStream:
    return AddStream(worker, stream, False, b"", b"", keep_tail=False, stream=stream)


def test_V6_a_stream_that_never_ends_leaves_room_for_the_others() -> None:
    past = RoundsOutput()
    floods, other = (past.begin((0, rank), added((0, rank), 2))[0] for rank in (0, 1))
    places, read = {(0, 2): 0, (1, 2): 0}, 0
    other.feed(b"a line\n" * 2000, 0.0)
    for ask in range(20):
        floods.feed(b"x\n" * KEPT_BYTES, 0.0)
        wanted = tuple((*key, position) for key, position in places.items())
        answer = past.output_of(AskOutput(ask, 0, wanted, 0, unfinished=False), 0.0)
        size = 0
        for one in answer.streams:
            places[one.local_rank, one.stream] = one.next
            size += sum(len(data) for _, data in one.lines)
            read += one.local_rank * sum(len(data) for _, data in one.lines)
        assert size <= OUTPUT_BYTES
    assert read == 7 * 2000


def test_output_is_kept_of_two_rounds() -> None:
    past = RoundsOutput()
    for round_ in range(3):
        past.begin((round_, 0), added((round_, 0), 1))[0].feed(b"round %d\n" % round_, 0.0)
    found = []
    for round_ in range(3):
        ask = AskOutput(1, round_, ((0, 1, -1), (0, 2, -1)), 5, unfinished=True)
        found.append([one.lines for one in past.output_of(ask, 4.0).streams])
    assert found == [[], [((4.0, b"round 1\n"),)], [((4.0, b"round 2\n"),)]]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.binary(max_size=2000).map(lambda data: data.replace(b"\xff", b"\n")), max_size=15),
    st.integers(UNFINISHED_BYTES, 2 * UNFINISHED_BYTES),
    st.data(),
)
def test_who_reads_on_in_time_misses_nothing(
    pieces: list[bytes], most: int, data: st.DataObject
) -> None:
    kept, position, read = KeptOutput(), 0, b""
    for number, piece in enumerate(pieces):
        kept.feed(piece, number / 3)
        has_more = data.draw(st.booleans())
        while has_more:
            newest = kept.after(position, most)
            read += b"".join(part.data for part in newest.lines)
            assert newest.left_out == 0
            assert newest.next >= position
            position, has_more = newest.next, newest.has_more
    last = kept.after(position, 10**6, unfinished=True)
    assert read + b"".join(part.data for part in last.lines) == b"".join(pieces)
    assert last.next == kept.end
