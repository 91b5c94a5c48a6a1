import os
import signal
import socket
import threading
import time

def fetch(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1)
    except ConnectionRefusedError as error:
        print(f"attempt failed ({error}), next try in 60 s", flush=True)
        time.sleep(60)

threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
fetch(9)
