"""Policies that run beside a program under Farshore.

    import farshore_policy

    with farshore_policy.attach(pid) as program:
        for event in program.events("fault"):
            program.prefetch(event.address + farshore_policy.PAGE, pages=8)

A policy hears what happens to the program's memory, and says which pages it would like to come, to leave or to stay. It can be
wrong, late or killed: the program goes on, no byte is wrong, and the memory limit holds. Standard library alone, x86-64.

The protocol is in crates/product/attach/src/lib.rs; this is version 1.
"""

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import signal
import socket
import struct
import time
from collections import namedtuple

__all__ = ["attach", "Attachment", "Event", "State", "Refused", "KINDS", "PAGE_STATES", "REUSES", "PAGE"]

PAGE = 4096
VERSION = 1
MAGIC = int.from_bytes(b"farshpol", "little")
# Kinds of events, by number.
KINDS = {"fault": 1, "fetched": 2, "evicted": 3, "rescued": 4, "limit": 5, "mapped": 6, "unmapped": 7, "pages": 8, "parameter": 9, "scanned": 10}
NAMES = {number: name for name, number in KINDS.items()}
# States of pages, by number.
PAGE_STATES = ("foreign", "untouched", "dirty", "clean", "leaving", "out", "busy")
# When pages are expected to be used again, by number.
REUSES = {"unknown": 0, "late": 1, "soon": 2, "next": 3}
# Bits of `detail` of a fault.
FAULT_WRITE, FAULT_PROTECTED, FAULT_BY_CALL = 1, 2, 4
# Most pages of one request: a longer range is several.
REQUEST_PAGES_MAX = 1 << 20
SCAN_PAGES_MAX = 512

# Where the rings are, in words, and how many entries they have. The memory says so too, but the program can write anything there.
EVENTS_AT, EVENTS, REQUESTS_AT, REQUESTS = 512, 4096, 33280, 1024
BYTES = (REQUESTS_AT + REQUESTS * 4) * 8
# Pages that an event is about, at most: the policy may go over them one by one.
EVENT_PAGES_MAX = {"limit": (1 << 64) - 1, "parameter": (1 << 64) - 1, "mapped": 1 << 35, "unmapped": 1 << 35}
EVENT_PAGES_ELSE = 512
# fcntl(2): seals of a file in memory.
F_GET_SEALS, F_SEAL_SHRINK = 1034, 2

# Words of the head.
STATE, FIRST_EVENT, EVENTS_TAKEN, WAITING, NEWS, REQUESTS_ASKED, REQUESTS_TAKEN, BELL, WANTED, PARAMETERS = 16, 32, 40, 48, 56, 64, 72, 80, 88, 128
PARAMETER_WORDS, PARAMETER_COUNT = 8, 16
# How long one sleep is, seconds: a policy that was just woken may not be woken again for the next event.
SLEEP = 0.01
# How long a dormant program is waited for, seconds.
WAKE_PATIENCE = 3

# What happened. `address` and `pages`: where; `detail`, `thread` and `more` by kind; `time` in ns of time.monotonic_ns().
Event = namedtuple("Event", "kind detail thread time address pages more")
# What the program says of itself.
State = namedtuple("State", "limit_bytes resident_bytes faults events_lost requests requests_bad pages_dropped")


class Refused(Exception):
    """The program cannot be attached to; the text says why."""


Event.write = property(lambda event: bool(event.detail & FAULT_WRITE), doc="A fault: whether it was a write.")
Event.instruction = property(lambda event: event.more[0], doc="A fault: the address of the instruction; 0: not known.")
Event.looked = property(lambda event: event.more[0], doc="A scan's answer: a bit for each page that was looked at, the first one's lowest.")
Event.accessed = property(lambda event: event.more[1], doc="The same: pages that were accessed.")
Event.written = property(lambda event: event.more[2], doc="The same: pages that may have been written.")


def _users(pid):
    """The users that the socket's name may hold."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        raise Refused(f"there is no process {pid}: check the number with 'pgrep -a NAME'") from None
    ids = next(line for line in lines if line.startswith("Uid:")).split()[1:]
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return sorted({int(user) for user in ids} | {0}, reverse=True), bool(caught >> (signal.SIGURG - 1) & 1)


def _names(pid, users):
    """Names that its socket may have: one that others hold is made longer by the program."""
    names = {f"farshore-{user}-{pid}" for user in users}
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        listed = {line.split()[7][1:] for line in file if len(line.split()) > 7 and line.split()[7].startswith("@farshore-")}
    return sorted(names) + sorted(name for name in listed if name.split("-")[2:3] == [str(pid)] and name not in names)


def _has_library(pid):
    """Whether the process has Farshore's library."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return "/libfarshore.so" in file.read()
    except OSError:
        return False


def _connect(pid):
    """A connection to the control socket of the process, and of no other."""
    users, may_wake = _users(pid)
    until, asked, ours = time.monotonic() + WAKE_PATIENCE, False, False
    while True:
        for name in _names(pid, users):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(10)
            try:
                connection.connect("\0" + name)
                other, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                if other == pid:
                    return connection
            except OSError:
                pass
            connection.close()
        ours = ours or _has_library(pid)
        if ours and may_wake and not asked:
            # A dormant program wakes by this signal, and makes its socket some milliseconds later.
            asked = True
            os.kill(pid, signal.SIGURG)
        if not ours or time.monotonic() > until:
            raise Refused(f"process {pid} has no control socket: it was not started by 'farshore run', is another user's, or is just starting")
        time.sleep(0.05)


def attach(pid):
    """Attaches to a running program; the attachment ends with `close`, or with this process."""
    connection = _connect(pid)
    try:
        with contextlib.suppress(BrokenPipeError):
            # A refusal may lie there already, with the connection closed behind it.
            connection.sendall(json.dumps({"op": "attach", "version": VERSION}).encode() + b"\n")
        answer, descriptors = b"", []
        while not answer.endswith(b"\n"):
            part, came, _, _ = socket.recv_fds(connection, 4096, 1)
            descriptors += came
            if not part:
                break
            answer += part
        said = json.loads(answer or b'{"error":"it closed the connection"}')
        if "error" in said or not descriptors:
            raise Refused(f"process {pid}: {said.get('error', 'it sent no memory')}")
        try:
            # A file that ends before, or that the program can make shorter, would be a SIGBUS.
            memory = mmap.mmap(descriptors[0], BYTES) if _is_whole(descriptors[0]) else None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if memory is None:
            raise Refused(f"process {pid} shares memory that is not version {VERSION} of the protocol")
        return Attachment(pid, connection, memory)
    except BaseException:
        connection.close()
        raise


def _is_whole(descriptor):
    """Whether a file has all that is shared, and keeps it."""
    try:
        seals = fcntl.fcntl(descriptor, F_GET_SEALS)
    except OSError:
        return False
    return bool(seals & F_SEAL_SHRINK) and os.fstat(descriptor).st_size >= BYTES


class Attachment:
    """A program that this policy has attached to."""

    def __init__(self, pid, connection, memory):
        self.pid, self._connection, self._memory = pid, connection, memory
        self._words = memoryview(memory).cast("B").cast("Q")
        self._anchor = ctypes.c_char.from_buffer(memory)
        self._address = ctypes.addressof(self._anchor)
        self._futex = ctypes.CDLL(None, use_errno=True).syscall
        if self._words[0] != MAGIC or self._words[1] != VERSION:
            raise Refused(f"process {pid} shares memory that is not version {VERSION} of the protocol")
        self._events_at, self._events, self._requests_at, self._requests = EVENTS_AT, EVENTS, REQUESTS_AT, REQUESTS
        self._next_event = self._words[FIRST_EVENT]
        self._next_request = self._words[REQUESTS_TAKEN]
        self._wanted = 0
        self._parameters = {}
        self._connection.setblocking(False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Leaves the program."""
        self._connection.close()
        if self._anchor is not None:
            self._words.release()
            self._anchor = None
            # Whatever an iterator of events still holds keeps the memory alive.
            with contextlib.suppress(BufferError):
                self._memory.close()

    @property
    def is_there(self):
        """Whether the program is still attached to."""
        try:
            return self._connection.recv(1) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    # ------------------------------------------------------------------------------------------ events

    def want(self, *kinds):
        """Chooses the kinds of events that come from now on."""
        self._wanted = sum(1 << KINDS[kind] for kind in kinds)
        self._words[WANTED] = self._wanted
        self._ring()

    def take(self):
        """The next event, or None."""
        words = self._words
        at = self._events_at + self._next_event % self._events * 8
        if words[at] != self._next_event + 1:
            return None
        first, when, address, pages, *more = words[at + 1:at + 8]
        self._next_event += 1
        words[EVENTS_TAKEN] = self._next_event
        kind = NAMES.get(first & 0xff, "other")
        pages = min(pages, EVENT_PAGES_MAX.get(kind, EVENT_PAGES_ELSE))
        return Event(kind, first >> 8 & 0xff, first >> 32, when, address, pages, tuple(more))

    def wait(self, timeout=None):
        """Sleeps until there is an event; whether there is one. Without a timeout: or the program is gone."""
        words, until = self._words, None if timeout is None else time.monotonic() + timeout
        while True:
            news = words[NEWS] & 0xffffffff
            words[WAITING] = 1
            if words[self._events_at + self._next_event % self._events * 8] == self._next_event + 1:
                words[WAITING] = 0
                return True
            if not self.is_there or (until is not None and time.monotonic() >= until):
                words[WAITING] = 0
                return False
            self._call_futex(NEWS, 0, news, SLEEP if until is None else max(0, min(SLEEP, until - time.monotonic())))

    def events(self, *kinds, timeout=None, nap=0.0001):
        """Events of these kinds (of those wanted before, without), as they come, until the program ends or none comes for `timeout` seconds.

        While events come, it naps for `nap` seconds where there is none, and sleeps when a nap has brought none. The program wakes whoever sleeps, which
        costs a thread that faults a call; a nap costs it nothing. Nap 0: every event is there at once.
        """
        if kinds:
            self.want(*kinds)
        come = False
        while True:
            event = self.take()
            if event is not None:
                come = True
                yield event
            elif come and nap:
                come = False
                time.sleep(nap)
            elif not self.wait(timeout):
                return

    # ------------------------------------------------------------------------------------------ requests

    def reclaim(self, address, pages=1):
        """Asks that pages leave. Whether there was room to ask."""
        return self._ask(1, address, pages)

    def prefetch(self, address, pages=1):
        """Asks that pages come, if there is memory to spare."""
        return self._ask(2, address, pages)

    def pin(self, address, pages=1):
        """Asks that pages stay, as long as others can leave instead."""
        return self._ask(3, address, pages)

    def unpin(self, address, pages=1):
        """Pages need not stay any more."""
        return self._ask(4, address, pages)

    def protect_for(self, seconds, address, pages=1):
        """Asks that pages stay for a time."""
        return self._ask(5, address, pages, int(seconds * 1e9))

    def expect(self, when, address, pages=1):
        """Says when pages are expected to be used again: `late` ones leave before others when memory is short, `soon` and `next` ones are passed over once and
        twice; `unknown` takes that back."""
        if when not in REUSES:
            raise ValueError(f"expect({when!r}): one of {', '.join(REUSES)}")
        return self._ask(8, address, pages, REUSES[when])

    def scan(self, address, pages=1, seconds=0.1, tag=0):
        """Asks which of up to 512 pages are used: the kernel watches them, or they leave, and after that time `scanned` events tell which were used, or have come back."""
        micros = int(seconds * 1e6)
        if not 1 <= pages <= SCAN_PAGES_MAX or not 0 <= micros < 1 << 32 or not 0 <= tag < 1 << 32:
            raise ValueError(f"scan({pages} pages, {seconds} s, tag {tag}): of 1 to {SCAN_PAGES_MAX} pages, 0 to 4294 s, and a tag from 0 to 2^32 - 1")
        return self._ask(7, address, pages, micros << 32 | tag)

    def ask_all(self, ask, addresses):
        """`ask` (one of the methods above) for each page of a list, with one ring of the bell. How many there was room for."""
        ring, self._ring = self._ring, lambda: None
        try:
            return sum(1 for address in addresses if ask(address))
        finally:
            del self._ring
            ring()

    def page_states(self, address, pages=1, timeout=1):
        """States of pages, as names. Other events, also those that wait already, are passed over. None: the program did not answer in time."""
        until = time.monotonic() + timeout
        while (left := until - time.monotonic()) > 0:
            # In a full ring the answer would be lost.
            for _ in range(self._events):
                if self.take() is None:
                    break
            states = self._states(address, pages, time.monotonic() + min(left, 0.2))
            if states is not None:
                return states
        return None

    def _states(self, address, pages, until):
        """The answer to one question; None: it has not come, or was lost."""
        tag, states = time.monotonic_ns() & 0xffffffff, []
        if not self._ask(6, address, pages, tag):
            return None
        while len(states) < pages:
            event = self.take()
            if event is None:
                if time.monotonic() >= until or not self.wait(until - time.monotonic()):
                    return None
            elif event.kind == "pages" and event.thread == tag:
                planes = event.more
                states += [PAGE_STATES[(planes[0] >> n & 1) | (planes[1] >> n & 1) << 1 | (planes[2] >> n & 1) << 2] for n in range(event.pages)]
        return states

    @property
    def state(self):
        """Limit, usage and counters of the program, a few hundredths of a second old."""
        return State(*self._words[STATE:STATE + len(State._fields)])

    # ------------------------------------------------------------------------------------------ parameters

    def register(self, name, value):
        """Registers a parameter, a whole number that `farshore stat` shows and `farshore set PID NAME=VALUE` changes."""
        raw = name.encode("ascii")
        if name in self._parameters or not 0 < len(raw) <= 32 or len(self._parameters) == PARAMETER_COUNT:
            raise ValueError(f"{name!r} cannot be registered: a name once, of 1 to 32 bytes, and at most {PARAMETER_COUNT}")
        index = self._parameters[name] = len(self._parameters)
        at = PARAMETERS + index * PARAMETER_WORDS
        self._words[at + 4] = value & (1 << 64) - 1
        for n, word in enumerate(struct.unpack("<4Q", raw.ljust(32, b"\0"))):
            self._words[at + n] = word

    def __getitem__(self, name):
        """The value of a parameter now."""
        value = self._words[PARAMETERS + self._parameters[name] * PARAMETER_WORDS + 4]
        return value - (value >> 63 << 64)

    # ------------------------------------------------------------------------------------------ the rings

    def _ask(self, kind, address, pages, extra=0):
        while pages > REQUEST_PAGES_MAX:
            if not self._ask(kind, address, REQUEST_PAGES_MAX, extra):
                return False
            address, pages = address + REQUEST_PAGES_MAX * PAGE, pages - REQUEST_PAGES_MAX
        words = self._words
        if (self._next_request - words[REQUESTS_TAKEN]) % (1 << 64) >= self._requests:
            return False
        at = self._requests_at + self._next_request % self._requests * 4
        words[at], words[at + 1], words[at + 2], words[at + 3] = kind, address, pages, extra
        self._next_request += 1
        words[REQUESTS_ASKED] = self._next_request
        self._ring()
        return True

    def _ring(self):
        self._words[BELL] = (self._words[BELL] + 1) & 0xffffffff
        self._call_futex(BELL, 1, 1, 0)

    def _call_futex(self, word, operation, value, seconds):
        """futex(2) on a word that is shared: 0 waits, 1 wakes."""
        when = (ctypes.c_long * 2)(int(seconds), int(seconds % 1 * 1e9))
        self._futex(ctypes.c_long(202), ctypes.c_void_p(self._address + word * 8), ctypes.c_long(operation), ctypes.c_long(value),
                    ctypes.byref(when), None, ctypes.c_long(0))
