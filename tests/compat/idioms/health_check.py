"""A platform starts a server that says whether the agent lives."""

import time

from torch.distributed.elastic.agent.server.health_check_server import (
    HealthCheckServer,
    create_healthcheck_server,
)


class Server(HealthCheckServer):
    def start(self):
        print("alive", self._alive_callback() > 0)

    def stop(self):
        print("stopped")


for kind in (Server, create_healthcheck_server):
    server = kind(alive_callback=lambda: int(time.time()), port=0, timeout=60)
    server.start()
    server.stop()
