import ctypes
import traceback
try:
    open("/sys/class/infiniband/mlx5_0/ports/1/state")
except OSError:
    traceback.print_exc()
    print("no infiniband, using sockets", flush=True)
ctypes.CDLL("./libring.so").push(60, 9)
