"""A platform records events of its own, and reads those of a rendezvous."""

import json
import logging

from torch.distributed.elastic.events import (
    Event,
    EventSource,
    NodeState,
    construct_and_record_rdzv_event,
    record,
)

event = Event(name="started", source=EventSource.AGENT, metadata={"nodes": 2})
record(event)
told = json.loads(event.serialize())
print(told["name"], told["source"], told["metadata"]["nodes"])
print(Event.deserialize(event.serialize()) == event)
construct_and_record_rdzv_event("mine", "joined", NodeState.RUNNING, rank=0)
print(logging.getLogger().handlers)
