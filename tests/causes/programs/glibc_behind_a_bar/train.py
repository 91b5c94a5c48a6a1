import ctypes
import faulthandler
import sys
import threading
import time
from tqdm import tqdm

faulthandler.enable()
libc = ctypes.CDLL(None)
libc.free.argtypes = [ctypes.c_void_p]
threading.Thread(target=time.sleep, args=(30,), daemon=True, name="prefetch").start()
buffer = ctypes.create_string_buffer(4096)

def decode(index):
    if index == 31:
        libc.free(ctypes.addressof(buffer) + 24)

for index in tqdm(range(100), desc="decoding", mininterval=0):
    decode(index)
