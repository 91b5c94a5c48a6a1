import ctypes
import logging

logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
try:
    raise RuntimeError("could not import flash_attn")
except RuntimeError:
    logging.exception("falling back to the slow attention")
print("step 1 loss 2.31", flush=True)
ctypes.CDLL("./libreducer.so").all_reduce()
