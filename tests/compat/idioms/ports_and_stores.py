"""A launcher looks for a free port, opens a store there, and has processes meet in it."""

import threading

from torch.distributed.elastic.utils.distributed import create_c10d_store, get_free_port
from torch.distributed.elastic.utils.store import barrier, synchronize

port = get_free_port()
server = create_c10d_store(True, "localhost", port, world_size=1, wait_for_workers=False)
found = {}


def node(rank):
    store = create_c10d_store(False, "localhost", port, world_size=2, wait_for_workers=False)
    found[rank] = synchronize(store, f"data {rank}".encode(), rank, 2, "mine")
    barrier(store, 2, "end", rank=rank)


threads = [threading.Thread(target=node, args=(rank,)) for rank in (0, 1)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("port", port == server.port, "data", found[0] == found[1], found[0])
