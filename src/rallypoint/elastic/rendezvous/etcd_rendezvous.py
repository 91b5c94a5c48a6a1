"""The rendezvous that torch calls `etcd-v2`, by etcd's version 3.

Torch's classes here speak version 2 of etcd's API, which no etcd has since 3.6, through a client
that is no longer maintained. What makes a handler is kept.
"""

from __future__ import annotations

from rallypoint.elastic.rendezvous.etcd_rendezvous_backend import create_handler_from

create_rdzv_handler = create_handler_from
