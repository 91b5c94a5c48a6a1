"""The user who owns the other end of a TCP connection, from the kernel (Linux).

`NETLINK_SOCK_DIAG` looks one socket up by its exact pair of addresses, at the same cost however
many sockets the machine has (sock_diag(7)). Where it is not allowed, /proc/net/tcp is read instead,
which is slow on a busy machine (proc(5)). No name is ever looked up.

Only an established socket that a process still holds counts: the kernel reports user 0 for one
whose process has closed it, so any user could look like root by leaving early.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys

from rallypoint.store.access import Peer, PeerReach

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_NLMSG_ERROR = 2
_ESTABLISHED = 1
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, pid
_REQUEST = struct.Struct("=BBBxI")  # inet_diag_req_v2: family, protocol, extensions, states
_SOCKET_ID = struct.Struct("!HH16s16s")  # inet_diag_sockid: ports, addresses; big-endian
_SOCKET_ID_REST = struct.Struct("=III")  # interface, cookie (two of ~0: any)
_ANSWER_START = struct.Struct("=BBBB")  # inet_diag_msg: family, state, timer, retransmissions
_ANSWER_END = struct.Struct("=IIIII")  # expires, receive queue, send queue, uid, inode

SocketAddress = tuple[str, int]
SocketName = tuple[str, int] | tuple[str, int, int, int]
"""The name of a TCP socket, as getpeername(2) and getsockname(2) return it."""


def identify_peer(peer_name: SocketName, own_name: SocketName, own_uid: int) -> Peer:
    """Return the other end of a connection, and whether it is of this machine and of this user.

    Takes some 20 us, longer where /proc must be read. Waits for no other process.
    """
    address, port = _endpoint(peer_name)
    own_end = _endpoint(own_name)
    is_local = address == own_end[0] or address == "::1" or address.startswith("127.")
    if not sys.platform.startswith("linux"):
        return Peer(address, port, PeerReach.SAME_USER if is_local else PeerReach.REMOTE)
    try:
        uid = owner_of((address, port), own_end)
    except OSError:
        uid = None
    # A peer that came from another address of this machine is found too, and is judged as local.
    if uid is None:
        return Peer(address, port, PeerReach.LOCAL_UNKNOWN if is_local else PeerReach.REMOTE)
    return Peer(address, port, PeerReach.SAME_USER if uid == own_uid else PeerReach.OTHER_USER, uid)


def owner_of(local: SocketAddress, remote: SocketAddress) -> int | None:
    """Return the uid that owns the socket from `local` to `remote`, or None if none is here.

    Raises OSError when the kernel can't be asked in either way.
    """
    # A client of either family may have an IPv4 address: "::ffff:a.b.c.d" is a.b.c.d here.
    families = (socket.AF_INET, socket.AF_INET6) if ":" not in local[0] else (socket.AF_INET6,)
    try:
        for candidate in families:
            uid = _ask_netlink(candidate, local, remote)
            if uid is not None:
                return uid
    except OSError:
        return _read_proc(families, local, remote)
    return None


def _ask_netlink(family: int, local: SocketAddress, remote: SocketAddress) -> int | None:
    identity = _SOCKET_ID.pack(
        local[1], remote[1], _packed(family, local[0]), _packed(family, remote[0])
    ) + _SOCKET_ID_REST.pack(_scope(local[0]), 0xFFFFFFFF, 0xFFFFFFFF)
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + identity
    size = _HEADER.size + len(body)
    header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.sendto(header + body, (0, 0))
        answer = netlink.recv(8192)  # the kernel answers within the send: this never waits
    _, kind, *_ = _HEADER.unpack_from(answer)
    if kind == _NLMSG_ERROR:
        code = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if code == errno.ENOENT:
            return None
        raise OSError(code, os.strerror(code))
    _, state, _, _ = _ANSWER_START.unpack_from(answer, _HEADER.size)
    end = _HEADER.size + _ANSWER_START.size + len(identity)
    *_, uid, inode = _ANSWER_END.unpack_from(answer, end)
    return uid if state == _ESTABLISHED and inode else None


def _read_proc(
    families: tuple[int, ...], local: SocketAddress, remote: SocketAddress
) -> int | None:
    for family in families:
        name = "/proc/net/tcp6" if family == socket.AF_INET6 else "/proc/net/tcp"
        wanted = (_proc_end(family, local), _proc_end(family, remote), f"{_ESTABLISHED:02X}")
        with open(name, encoding="ascii") as table:
            for line in table:
                fields = line.split()
                if tuple(fields[1:4]) == wanted and fields[9] != "0":
                    return int(fields[7])
    return None


def _proc_end(family: int, end: SocketAddress) -> str:
    """Return an address and its port as /proc/net/tcp prints them.

    The address is in 32-bit words in host order.
    """
    packed = _packed(family, end[0])[: 4 if family == socket.AF_INET else 16]
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{end[1]:04X}"


def _packed(family: int, address: str) -> bytes:
    """Return an address as 16 bytes in network order; IPv4 in a socket of IPv6 is a mapped one."""
    if family == socket.AF_INET:
        return socket.inet_pton(socket.AF_INET, address).ljust(16, b"\0")
    if ":" not in address:
        address = f"::ffff:{address}"
    return socket.inet_pton(socket.AF_INET6, _unscoped(address))


def _endpoint(name: SocketName) -> SocketAddress:
    address, port = name[0], name[1]
    return address.removeprefix("::ffff:") if "." in address else address, port


def _unscoped(address: str) -> str:
    return address.partition("%")[0]


def _scope(address: str) -> int:
    scope = address.partition("%")[2]
    try:
        return socket.if_nametoindex(scope) if scope else 0
    except OSError:
        return 0
