"""A rendezvous over a store of the program's own: its state is set by compare and swap."""

from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

backend = C10dRendezvousBackend(HashStore(), "mine")
print("name", backend.name, "state", backend.get_state())
state, token, changed = backend.set_state(b"one")
print("state", state, changed)
print("state", *backend.set_state(b"two", token)[::2])
print("state", *backend.set_state(b"three", token)[::2])
