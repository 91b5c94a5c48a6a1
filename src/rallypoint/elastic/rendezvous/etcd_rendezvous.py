"""The rendezvous handler that torch calls `etcd-v2`, through version 3 of etcd's API.

Torch's classes in this module use version 2 of the API, which etcd removed in 3.6, through a client
that is no longer maintained. The function that makes a handler is available here.
"""

from __future__ import annotations

from rallypoint.elastic.rendezvous.etcd_rendezvous_backend import create_handler_from

create_rdzv_handler = create_handler_from
