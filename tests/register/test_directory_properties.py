"""The register in a directory under hammer: several writers on a file system that loses replies,
executes requests late, answers from caches, and loses power."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.harness.properties import explore
from tests.harness.register_writers import RUN_ID, SHARED, History, ShortDirectories, Writer

from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.testing.unreliable_files import Fault, UnreliableFiles

BACKEND: type[DirectoryBackend] = ShortDirectories
WRITERS = st.integers(0, 2)
PAUSES_S = (1.0, 59.0, 61.0, 121.0, 299.0, 301.0, 601.0, 1000.0)
FAULTS = st.sampled_from([None, None, None, *Fault])


class Register(RuleBasedStateMachine):
    """Three writers, which have lives, and one file server."""

    history: History

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.history = History(seed)
        self.writers = [Writer(self.history, number, BACKEND) for number in range(3)]

    @rule(seed=st.integers(0, 2**32), turns=st.integers(1, 60), fault=FAULTS)
    def work(self, seed: int, turns: int, fault: Fault | None) -> None:
        """Writers take turns, one operation in eight goes wrong, and now and then all do."""
        random = Random(seed)
        for _ in range(turns):
            if random.random() < 0.05:
                self.wait(random.choice(PAUSES_S))
            if random.random() < 0.02:
                self.lose_power()
            writer = self._alive(random.randrange(3))
            if not writer.is_busy:
                writer.begin()
            for _ in range(random.choice((1, 1, 2, 3, 5, 8))):
                if writer.is_busy:
                    goes_wrong = random.random() < 0.12
                    writer.step((fault or random.choice(list(Fault))) if goes_wrong else None)
            self.history.look()

    @rule(number=WRITERS, count=st.integers(1, 5))
    def write(self, number: int, count: int) -> None:
        """A writer for whom all goes well."""
        writer = self._alive(number)
        writer.finish()
        for _ in range(count):
            writer.begin_get()
            writer.finish()
            writer.begin_set()
            writer.finish()
            self.history.look()

    @rule(
        number=WRITERS,
        before=st.integers(0, 12),
        versions=st.integers(6, 9),
        after=st.integers(0, 30),
        caches=st.booleans(),
    )
    def sleep(self, number: int, before: int, versions: int, after: int, caches: bool) -> None:
        """A writer sleeps in a call until its directory is being removed."""
        sleeper, other = self._alive(number), self._alive((number + 1) % 3)
        for _ in range(before):
            sleeper.step() if sleeper.is_busy else sleeper.begin()
        began_at = self.history.server.now
        for _ in range(versions):
            self.history.server.advance(200.0)
            self.write(other.number, 1)
        other.begin_set()
        for _ in range(after):
            if other.is_busy:
                other.step()
        if caches:
            sleeper.sleep_since(began_at)
        random = Random(after)
        while sleeper.is_busy:
            sleeper.step(Fault.CACHED if caches else None)
            if other.is_busy and random.random() < 0.5:
                other.step()
        self.history.look()
        if not caches:
            sleeper.begin_get()
            sleeper.finish()

    @rule(seconds=st.sampled_from(PAUSES_S))
    def wait(self, seconds: float) -> None:
        self.history.server.advance(seconds)

    @rule()
    def lose_power(self) -> None:
        for writer in self.writers:
            writer.kill()
        self.history.lose_power()

    @invariant()
    def history_is_one_chain(self) -> None:
        """All that was said to be stored is in it, nothing that was denied."""
        if hasattr(self, "history"):
            self.history.look()

    def teardown(self) -> None:
        """Once faults end, everybody reads the newest version, and can replace it."""
        if not hasattr(self, "history"):
            return
        for writer in self.writers:
            writer.kill()
        self.history.server.advance(1000.0)
        self.history.look()
        late = BACKEND(SHARED, RUN_ID, files=UnreliableFiles(self.history.server))
        found = late.get_state()
        assert ("" if found is None else found[0].decode()) == self.history.tip()
        self.history.parents["last"] = self.history.tip()
        after = late.set_state(b"last", None if found is None else found[1])
        assert after is not None
        assert after[2]
        self.history.stored.add("last")
        self.history.look()

    def _alive(self, number: int) -> Writer:
        writer = self.writers[number]
        if writer.has_crashed and not writer.is_busy:
            writer.boot()
        return writer


def test_history_is_one_chain_whatever_the_file_system_does() -> None:
    """And nothing is lost that was said to be stored."""
    explore(Register, 300, 12)
