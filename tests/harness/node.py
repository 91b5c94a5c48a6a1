"""One node of a job in a process of its own: meets the others, round after round, and says so.

    python node.py PARAMETERS        a JSON object, see `main`

One JSON object a line on stdout. A line on stdin, `leave` or `shutdown`, ends it; so does the job.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from rallypoint.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters
from rallypoint.elastic.rendezvous.registry import get_rendezvous_handler
from rallypoint.errors import RendezvousClosedError, RendezvousError, RendezvousGracefulExitError


def say(what: str, **details: Any) -> None:
    """In one write, for two threads say something: `print` writes the end of a line by itself."""
    os.write(1, (json.dumps({"what": what, **details}) + "\n").encode())


obeying = threading.Lock()
"""Held while an order is carried out: who is told of it must not end the process before."""


def obey(handler: RendezvousHandler) -> None:
    """End as told; the loop of rounds then ends with an error, or with the process."""
    for line in sys.stdin:
        with obeying:
            done = getattr(handler, line.strip())() is not False
        say("obeyed", order=line.strip(), done=done)


def main() -> None:
    handler = get_rendezvous_handler(RendezvousParameters(**json.loads(sys.argv[1])))
    threading.Thread(target=obey, args=(handler,), daemon=True).start()
    while True:
        try:
            info = handler.next_rendezvous()
        except RendezvousGracefulExitError as error:
            return say("not needed", why=str(error))
        except RendezvousClosedError as error:
            return say("closed", why=str(error))
        except RendezvousError as error:
            return say("failed", why=str(error), type=type(error).__name__)
        bootstrap = info.bootstrap_store_info
        assert bootstrap is not None
        place = (bootstrap.master_addr, bootstrap.master_port)
        say("met", rank=info.rank, world_size=info.world_size, bootstrap=place)
        info.store.set(f"seen/{info.rank}", str(info.world_size))
        while not handler.num_nodes_waiting() and not handler.is_closed():
            handler.wait_for_change(timeout=1)
        say("over")


if __name__ == "__main__":
    main()
    obeying.acquire()
