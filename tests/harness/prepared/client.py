"""Runs a program in a fork of the process that has torch: used as an interpreter is.

`interpreter.py` writes it into a file that can be executed, with values for SOCKET and MODULES.
It takes a few milliseconds, so that it imports only what is built into Python.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import posix
import sys

SOCKET = ""
MODULES: list[str] = []
LONG_S = 1e6
"""A socket with a limit does not block, as `set_wakeup_fd` demands."""
PASSED_ON = (1, 2, 3, 10, 12, 15)  # HUP, INT, QUIT, USR1, USR2, TERM

server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
for number in PASSED_ON:
    _signal.signal(number, lambda number, frame: None)
_signal.pthread_sigmask(_signal.SIG_BLOCK, PASSED_ON)
server.connect(SOCKET)
server.settimeout(LONG_S)
mask = posix.umask(0o077)
words = [sys.executable, *sys.argv[1:]]
request = marshal.dumps((words, posix.getcwd(), dict(posix.environ), MODULES, mask, [], True, True))
descriptors = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
size = len(request).to_bytes(8, "little")
server.sendmsg([size], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
server.sendall(request)
# The kernel's handler sends the number: Python's own would wait for the end of `recv`, where the
# signal arrives just before that.
_signal.set_wakeup_fd(server.fileno())
_signal.pthread_sigmask(_signal.SIG_UNBLOCK, PASSED_ON)
server.recv(4)  # The process's own number, of which only this one's parent could make use.
answer = server.recv(2)
if len(answer) < 2:
    posix.write(2, b"the process that has torch has ended\n")
    posix._exit(111)
code = int.from_bytes(answer, "little", signed=True)
if code < 0:
    if -code not in (9, 19):
        _signal.signal(-code, _signal.SIG_DFL)
    posix.kill(posix.getpid(), -code)
posix._exit(code)
