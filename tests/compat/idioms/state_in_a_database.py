"""A database becomes the backend of dynamic rendezvous: two nodes meet by it."""

import threading

from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousTimeout,
)


class Database(RendezvousBackend):
    """One row, changed by compare and swap."""

    def __init__(self):
        self._lock, self._state, self._version = threading.Lock(), None, 0

    @property
    def name(self):
        return "database"

    def get_state(self):
        with self._lock:
            return (self._state, self._version) if self._state is not None else None

    def set_state(self, state, token=None):
        with self._lock:
            if token not in (None, self._version) or (token is None and self._version):
                return self._state, self._version, False
            self._state, self._version = state, self._version + 1
            return self._state, self._version, True


database, store, found, met = Database(), HashStore(), [], threading.Barrier(2)


def node():
    handler = DynamicRendezvousHandler.from_backend(
        "mine", store, database, 2, 2, local_addr="localhost", timeout=RendezvousTimeout()
    )
    info = handler.next_rendezvous()
    found.append((info.rank, info.world_size))
    met.wait()
    handler.shutdown()


threads = [threading.Thread(target=node) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("ranks", sorted(found))
