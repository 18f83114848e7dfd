"""Which part of the tests starts next: two lanes, so that both processors have work.

The rules, which `clash` states:

- A part that needs the machine for itself (ALONE) runs when all others are done, and nothing runs beside it.
- Of two that run at a time at most one is WIDE, which means that it has work for more than one processor.
- Two that hold the same lock never run at a time. A lock stands for something of the machine that a part changes, or that it waits for.
- A part that comes after another one starts when that one is done.

Of those that may start, the longest does: what is short fills the end. A part counts as long as all that wait for its lock together, and one that others
come after counts as longer than all, for what waits for it cannot begin late. What takes a moment (QUICK) starts before the long ones all the same: so its
answer is there soon, and where the time ends early it is not the small parts that are left out.

Nothing here starts a process, so that the order can be tried with made-up times (`plan`).
"""

import threading
from collections import namedtuple

LANES = 2
# Seconds.
QUICK = 25
# How much of the machine a part uses: one processor, more than one, all of it.
NARROW, WIDE, ALONE = "narrow", "wide", "alone"
# What runs in a lane: `seconds` that it takes, about; `after` is the name of what must be done before.
Job = namedtuple("Job", "name seconds width locks after", defaults=(NARROW, (), None))


def clash(one, other):
    """Why two jobs may not run at a time, or None.

    >>> clash(Job("pace", 9, ALONE), Job("real", 9)), clash(Job("unit", 9, WIDE), Job("sim", 9, WIDE)), clash(Job("unit", 9, WIDE), Job("real", 9))
    ('pace needs the machine for itself', 'unit and sim are both wide', None)
    >>> clash(Job("pages", 9, NARROW, ("kernel",)), Job("bench", 9, NARROW, ("disk", "kernel")))
    'pages and bench both hold kernel'
    >>> clash(Job("build", 9), Job("real", 9, after="build"))
    'real comes after build'
    """
    for job in (one, other):
        if job.width == ALONE:
            return f"{job.name} needs the machine for itself"
    if one.width == other.width == WIDE:
        return f"{one.name} and {other.name} are both wide"
    for name in one.locks:
        if name in other.locks:
            return f"{one.name} and {other.name} both hold {name}"
    for job, before in ((one, other), (other, one)):
        if job.after == before.name:
            return f"{job.name} comes after {before.name}"
    return None


class Order:
    """What waits, what runs, and what may start now. One thread's."""

    def __init__(self, jobs):
        self.waiting, self.running = list(jobs), []
        self.most = max((job.seconds for job in self.waiting), default=0)

    def rank(self, job):
        """How urgent it is: the larger, the sooner."""
        leads = any(other.after == job.name for other in self.waiting)
        chains = [sum(other.seconds for other in self.waiting if lock in other.locks) for lock in job.locks]
        return leads, job.seconds <= QUICK < self.most, max([job.seconds, *chains]), job.seconds

    def may_start(self, job):
        """Whether no rule is against it."""
        if len(self.running) >= LANES or any(clash(job, other) for other in self.running):
            return False
        others = [other for other in self.waiting if other is not job]
        if any(other.name == job.after for other in others):
            return False
        return job.width != ALONE or all(other.width == ALONE for other in others)

    def start(self):
        """The job that starts now, if one may.

        >>> order = Order([Job("real", 90, after="build"), Job("build", 60, WIDE), Job("pace", 50, ALONE), Job("miri", 40)])
        >>> [order.start().name, order.start().name, order.start()]
        ['build', 'miri', None]
        >>> order.end("build")
        >>> [order.start().name, order.start()]
        ['real', None]
        >>> order.end("real"), order.start()
        (None, None)
        >>> order.end("miri"), order.start().name
        (None, 'pace')
        """
        able = [job for job in self.waiting if self.may_start(job)]
        if not able:
            return None
        job = max(able, key=self.rank)
        self.waiting.remove(job)
        self.running.append(job)
        return job

    def end(self, name):
        """It is done, whatever came of it."""
        self.running = [job for job in self.running if job.name != name]


def plan(jobs, seconds=None):
    """When each job would start and end, by its own seconds or by those that are given: (name, start, end), as they start.

    >>> plan([Job("a", 10, WIDE), Job("b", 8, WIDE), Job("c", 5), Job("d", 4), Job("e", 1, ALONE)])
    [('a', 0, 10), ('c', 0, 5), ('d', 5, 9), ('b', 10, 18), ('e', 18, 19)]
    >>> plan([Job("unit", 10, WIDE, ("kernel",)), Job("bench", 3, NARROW, ("kernel",)), Job("pages", 4, NARROW, ("kernel",)), Job("real", 12)])
    [('unit', 0, 10), ('real', 0, 12), ('pages', 10, 14), ('bench', 14, 17)]
    """
    order, ends, now, rows = Order(jobs), {}, 0, []
    while order.waiting or ends:
        while job := order.start():
            ends[job.name] = now + (seconds[job.name] if seconds else job.seconds)
            rows.append((job.name, now, ends[job.name]))
        if not ends:
            raise ValueError(f"these never start: {[job.name for job in order.waiting]}")
        first = min(ends, key=ends.get)
        now = ends.pop(first)
        order.end(first)
    return rows


class Lanes:
    """Runs jobs by these rules, each lane in a thread of its own."""

    def __init__(self, jobs, run):
        self.order, self.run, self.change, self.stopped = Order(jobs), run, threading.Condition(), False

    def lane(self):
        """Runs one job after the other, until none waits any more."""
        while True:
            with self.change:
                while not (job := None if self.stopped else self.order.start()):
                    if self.stopped or not self.order.waiting:
                        return
                    self.change.wait()
            try:
                self.run(job)
            finally:
                # Also if our own code has failed: the other lane goes on.
                with self.change:
                    self.order.end(job.name)
                    self.change.notify_all()

    def run_all(self):
        """Runs all of them; returns when they are done."""
        threads = [threading.Thread(target=self.lane, daemon=True) for _ in range(LANES)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            # Where this was interrupted, nothing new starts.
            with self.change:
                self.stopped = True
                self.change.notify_all()
