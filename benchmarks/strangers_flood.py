"""Strangers who connect to a port of this machine: `strangers_flood.py PORT PER_SECOND SECONDS`.

Each sends garbage and hangs up. They come from many addresses of loopback, so that ports suffice.
Prints `begun`, and at the end how many have connected.
"""

from __future__ import annotations

import random
import socket
import sys
import time

ADDRESSES = 200
BATCHES_PER_SECOND = 100


def main() -> int:
    """Flood, for so long and no longer."""
    port, rate, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    garbage = random.randbytes(64)
    began_at, connected, tried = time.monotonic(), 0, 0
    print("begun", flush=True)
    while (passed_s := time.monotonic() - began_at) < seconds:
        while tried < rate * passed_s:
            tried += 1
            connected += stranger(port, f"127.0.1.{1 + tried % ADDRESSES}", garbage)
        time.sleep(1 / BATCHES_PER_SECOND)
    print(connected, flush=True)
    return 0


def stranger(port: int, address: str, garbage: bytes) -> bool:
    """One connection; False when the kernel's queue is full."""
    with socket.socket() as connection:
        connection.bind((address, 0))
        connection.settimeout(0.1)
        try:
            connection.connect(("127.0.0.1", port))
            connection.send(garbage)
        except OSError:
            return False
        return True


if __name__ == "__main__":
    sys.exit(main())
