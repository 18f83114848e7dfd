"""How much memory processes use: what a session has in RAM, and the most that it had.

What lies in RAM is told apart as the kernel does it: memory of no file (heap, stacks, data, what is shared without a file), and pages of files (text, libraries,
mapped data), which a program shares with others, and which no limit of Farshore's is for.
"""

import threading
import time

import harness

# Between two looks, and between two looks for new processes.
LOOK_SECONDS = 0.01
FIND_SECONDS = 0.1


class Reading:
    """What one process has, by `/proc/PID/status`."""

    def __init__(self, text):
        fields = {line.split(":")[0]: line.split()[1] for line in text.splitlines() if line.startswith(("VmHWM", "VmRSS", "Rss"))}
        self.most, self.now, anonymous, self.files, shared = (int(fields.get(name, 0)) << 10 for name in ("VmHWM", "VmRSS", "RssAnon", "RssFile", "RssShmem"))
        self.memory = anonymous + shared


class Watch(threading.Thread):
    """Looks at the processes of a session, but for its leader, until it is told to stop: the most memory of no file, and the most of files, that they had at a time, together.

    Between two looks a peak can come and go. The kernel keeps the most that each process ever had (VmHWM): where it has grown, it counts, without the pages of files.
    """

    def __init__(self, session):
        super().__init__(daemon=True)
        self.session, self.memory, self.files = session, 0, 0
        self._highest, self._over = {}, threading.Event()

    def look(self, pids):
        """One look."""
        memory = files = 0
        for pid in pids:
            reading = Reading(harness.read_text(f"/proc/{pid}/status"))
            grown = reading.most > self._highest.get(pid, 0)
            self._highest[pid] = max(reading.most, self._highest.get(pid, 0))
            memory += max(reading.memory, reading.most - reading.files if grown else 0)
            files += reading.files
        self.memory, self.files = max(self.memory, memory), max(self.files, files)

    def run(self):
        pids, found = [], 0
        while not self._over.wait(LOOK_SECONDS):
            if time.monotonic() - found > FIND_SECONDS:
                pids, found = [pid for pid in harness.session_pids(self.session) if pid != self.session], time.monotonic()
            self.look(pids)

    def stop(self):
        """Ends it."""
        self._over.set()
        self.join()
