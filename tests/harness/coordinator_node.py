"""A node as a program: `ENDPOINT [MIN,MAX] CONFIG`; says each round, and each end of one."""

import json
import sys

from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.static_tcp_rendezvous import create_handler_from
from rallypoint.errors import RendezvousClosedError


def say(*words: object) -> None:
    print(json.dumps(words), flush=True)


endpoint, nodes, config = sys.argv[1:]
handler = create_handler_from(
    RendezvousParameters("tcp", endpoint, "job", *json.loads(nodes), **json.loads(config))
)
while True:
    try:
        info = handler.next_rendezvous()
    except RendezvousClosedError as error:
        say(type(error).__name__, str(error))
        break
    where = info.bootstrap_store_info
    assert where is not None
    say("round", info.rank, info.world_size, where.master_port)
    handler.wait_for_change()
    say("change", handler.num_nodes_waiting(), handler.is_closed(), handler.why_over)
    if handler.is_closed():
        break
handler.shutdown()
