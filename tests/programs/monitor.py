#!/usr/bin/python3
"""A stand-in for a virtual machine monitor: it takes QEMU's words for its guest's memory, and goes through a hot part of that memory again and again.

    monitor.py -m SIZE [-name NAME] [-fail] -object memory-backend-memfd,…

With -fail it says a line and ends at once.
"""

import mmap
import os
import signal
import sys

MIB = 1 << 20
arguments = sys.argv[1:]
if "-fail" in arguments:
    print("monitor: the disk is not there", file=sys.stderr)
    sys.exit(3)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
size = int(arguments[arguments.index("-m") + 1].rstrip("M")) * MIB
backend = next(word for word in arguments if "memory-backend-memfd" in word)
assert "share=on" in backend or '"share":true' in backend, backend
file = os.memfd_create("memory-backend-memfd")
os.ftruncate(file, size)
memory = mmap.mmap(file, size)
for at in range(0, size, 4096):
    memory[at] = 1 + at // 4096 % 255
print("monitor: its guest runs", flush=True)
wrong, turn = 0, 0
while not wrong:
    # A quarter of it again and again, and all of it sometimes.
    turn += 1
    for at in range(0, size if turn % 8 == 0 else size // 4, 4096):
        wrong += memory[at] != 1 + at // 4096 % 255
sys.exit(f"monitor: {wrong} pages are wrong")
