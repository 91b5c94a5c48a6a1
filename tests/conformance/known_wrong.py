"""Where torch 2.13's stores don't do what the suite asks for; each is tested to be still so. And
what etcd can't do.

A test that is listed must fail on every subject with the traits. When torch is mended it passes,
which fails the suite, and the line here and in docs/stores.md can go.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.conformance.stores import Subject


class Wrong(NamedTuple):
    """A test that fails on all subjects with the traits."""

    traits: str
    """Separated by blanks; a subject has them all."""
    test: str
    """Its name, and in brackets its parameter if only that case fails."""
    reason: str
    hangs: bool = False
    """Or it hangs, crashes, or fails by chance only; it is not run then."""


FOR_EVER = "a timeout of 0 is for ever"
GIVES_UP = "with a timeout of 0 the answer, which is on its way, is sometimes not waited for"
OTHER_KEYS = "PrefixStore.barrier counts by other keys than the barrier of a TCPStore: nobody comes"
LATE = "`add` wakes nobody: who waits looks again when its time is over"
LISTS = "`innermost` is listed too, as `ost`: the slash is not compared"
REQUEST = "a request to etcd has 1.5 MiB at most"
PAST_THE_END = "it reads on behind the last value: the process may crash, or hang"
QUEUES = (
    "test_a_queue_gives_back_in_order",
    "test_a_pop_that_must_not_wait_says_that_the_queue_is_empty",
    "test_a_pop_waits_for_a_push",
    "test_a_pop_that_waits_in_vain_takes_nothing_later",
    "test_each_item_goes_to_one_of_many",
    "test_a_queue_is_no_key_but_present_while_it_has_items",
    "test_a_queue_and_a_value_may_have_one_name",
    "test_a_push_wakes_who_waits_for_the_queue",
    "test_a_wait_for_a_full_queue_and_a_key_ends_with_the_key",
    "test_a_push_answers_no_other_question",
)
"""They are not run: where ours pops and torch would push, it waits for as long as it can."""

KNOWN_WRONG: tuple[Wrong, ...] = (
    # Timeouts
    Wrong("tcp-b-torch", "test_a_wait_for_what_is_there_returns_at_once", GIVES_UP, hangs=True),
    Wrong("tcp-b-torch", "test_a_barrier_can_be_only_entered", GIVES_UP, hangs=True),
    Wrong("hash-torch", "test_a_wait_for_what_is_there_returns_at_once", FOR_EVER, hangs=True),
    Wrong("hash-torch", "test_a_timeout_of_zero_is_over_at_once", FOR_EVER, hangs=True),
    Wrong("hash-torch", "test_a_barrier_can_be_only_entered", FOR_EVER, hangs=True),
    Wrong("file-torch", "test_a_timeout_of_zero_is_over_at_once", FOR_EVER, hangs=True),
    Wrong("file-torch", "test_a_barrier_can_be_only_entered", FOR_EVER, hangs=True),
    Wrong("hash-a-torch", "test_a_clone_has_a_timeout_of_its_own", "clones share one"),
    Wrong("file-a-torch", "test_a_clone_has_the_timeout_of_then", "it has that of 300 s"),
    Wrong(
        "prefix-a-torch",
        "test_the_timeout_of_the_store_counts_if_none_is_given",
        "PrefixStore.barrier waits for 300 s",
        hangs=True,
    ),
    # Values and counters
    Wrong("etcd-ours", "test_a_value_may_have_eight_mebibytes", REQUEST),
    Wrong("etcd-ours", "test_a_value_can_grow_beyond_what_can_be_set_at_once", REQUEST),
    Wrong("tcp-a-torch", "test_a_key_without_a_value_is_refused", PAST_THE_END, hangs=True),
    Wrong("hash-a-torch", "test_a_key_without_a_value_is_refused", PAST_THE_END, hangs=True),
    Wrong("file-a-torch", "test_a_key_without_a_value_is_refused", PAST_THE_END, hangs=True),
    Wrong("tcp-server-torch", "test_a_sum_beyond_64_bits_is_refused", "it wraps"),
    Wrong("hash-a-torch", "test_a_sum_beyond_64_bits_is_refused", "it wraps"),
    Wrong("file-a-torch", "test_a_sum_beyond_64_bits_is_refused", "it wraps"),
    Wrong("file-torch", "test_deleting_says_whether_there_was_a_value", "always True"),
    # Keys: those of the bookkeeping in the file
    Wrong("file-a-torch", "test_an_empty_store_has_no_keys", "`refcount/` is counted"),
    Wrong("file-torch", "test_keys_are_counted", "a deleted key, or `refcount/`, is counted"),
    Wrong("file-b-torch plain", "test_keys_are_listed_as_they_were_written", "and `efcount/`"),
    Wrong("file-a-torch plain", "test_a_clone_is_the_same_store", "`efcount/` is listed"),
    # Queues
    *(Wrong("file-torch", test, "FileStore has no queues", hangs=True) for test in QUEUES),
    Wrong(
        "tcp-server-torch tcp-torch",
        "test_each_item_goes_to_one_of_many",
        "a blocking pop finds the queue empty when another client was faster",
        hangs=True,
    ),
    # Who waits
    Wrong("hash-torch", "test_every_write_wakes_who_waits[add]", LATE, hangs=True),
    # Prefixes
    *(
        Wrong(traits, "test_a_part_lists_its_own_keys_only[own]", LISTS)
        for traits in ("a-torch plain", "prefix-a-torch")
    ),
    # Threads and barriers
    Wrong(
        "tcp-b-torch", "test_one_object_serves_several_threads", "one wait blocks all", hangs=True
    ),
    *(
        Wrong(traits, test, OTHER_KEYS, hangs=True)
        for traits in ("tcp-a-ours prefix-b-torch", "tcp-b-ours prefix-a-torch")
        for test in ("test_nobody_passes_before_all_have_come", "test_who_gave_up_stays_counted")
    ),
    Wrong("tcp-b-ours prefix-a-torch", "test_a_barrier_can_be_only_entered", OTHER_KEYS),
)


def what_is_wrong(subject: Subject, test: str, case: str) -> Wrong | None:
    """Why this test, with this parameter, can't pass on this subject; None if it must."""
    for wrong in KNOWN_WRONG:
        if (
            wrong.test in (test, f"{test}[{case}]")
            and set(wrong.traits.split()) <= subject.traits()
        ):
            return wrong
    return None
