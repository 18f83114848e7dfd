"""A program whose memory nobody can look at: `wedged.py USER listens|dormant`, started as root.

It becomes USER, and is what a program under Farshore is from outside: it listens at such a name, or has a handler for the signal that
wakes. Then one of its threads waits, in the kernel and with the lock of its mappings, for a page of a file system in user space that
never answers, and another one waits for that lock to change them. From then on whoever reads its `cmdline`, `environ` or `smaps`
waits too. Its file system ends with its input, and then it does.

No rights are needed for it: every user may mount such a file system in a namespace of one's own. It is root here to be quick.
"""

import ctypes
import os
import signal
import socket
import struct
import sys
import threading

NEW_MOUNTS, PRIVATE_MOUNTS = 0x20000, 1 << 18 | 1 << 14
LOOKUP, GETATTR, OPEN, READ, INIT = 1, 3, 14, 15, 26
SIZE, NUMBER = 1 << 20, 2
ROOT_MODE, FILE_MODE = 0o40755, 0o100644

ANONYMOUS, DUMPABLE = 0x22, 4

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def check(done):
    if done == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def attributes(node):
    """`struct fuse_attr`."""
    mode, size = (ROOT_MODE, 0) if node == 1 else (FILE_MODE, SIZE)
    return struct.pack("<QQQQQQIIIIIIIIII", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def serve(device, asked_for):
    """One file, of which no byte ever comes. It is told when somebody waits for one."""
    while True:
        asked = os.read(device, 1 << 20)
        _, code, unique, node = struct.unpack_from("<IIQQ", asked)
        if code == INIT:
            answer = struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1, 16, 0, 0)
        elif code == LOOKUP:
            answer = struct.pack("<QQQQII", NUMBER, 0, 3600, 3600, 0, 0) + attributes(NUMBER)
        elif code == GETATTR:
            answer = struct.pack("<QII", 3600, 0, 0) + attributes(node)
        elif code == OPEN:
            answer = struct.pack("<QII", 0, 0, 0)
        elif code == READ:
            os.write(asked_for, b"!")
            continue
        else:
            os.write(device, struct.pack("<IiQ", 16, -38, unique))
            continue
        os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)


def main():
    """See above."""
    user, how = int(sys.argv[1]), sys.argv[2]
    check(libc.unshare(NEW_MOUNTS))
    check(libc.mount(b"none", b"/", None, PRIVATE_MOUNTS, None))
    device = os.open("/dev/fuse", os.O_RDWR)
    check(libc.mount(b"wedged", b"/mnt", b"fuse", 0, f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()))
    waits, asked_for = os.pipe()
    server = os.fork()
    if server == 0:
        threading.Thread(target=serve, args=(device, asked_for), daemon=True).start()
        sys.stdin.buffer.read()
        os._exit(0)
    os.close(device)
    file = os.open("/mnt/file", os.O_RDONLY)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # Whoever changes users cannot open its own memory until it says that it may be looked at.
    check(libc.prctl(DUMPABLE, 1, 0, 0, 0))
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    at = libc.mmap(None, SIZE, 1, 1, file, 0)
    if how == "listens":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"\0farshore-{user}-{os.getpid()}")
        listener.listen(64)
    else:
        signal.signal(signal.SIGURG, lambda *_: None)
    # By the kernel, not as a fault of its own: so it does not let go of the lock while it waits.
    threading.Thread(target=os.pread, args=(memory, 8, at), daemon=True).start()
    os.read(waits, 1)
    print("ready", flush=True)
    # It waits here, until the file system has ended.
    libc.mmap(None, 4096, 1, ANONYMOUS, -1, 0)
    os.waitpid(server, 0)


main()
