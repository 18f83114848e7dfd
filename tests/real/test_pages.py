"""What the kernel does to pages, and what programs ask it to do with them: each section natively and under Farshore.

The programs are `tests/programs/pages`, `tests/programs/statics.c` and `tests/programs/constructed.c`. What a section prints, and how it ends, must be the same natively and under Farshore. What needs root switches the
machine's page merging (KSM) on and puts it back as it was.
"""

import contextlib
import mmap
import os
import subprocess

import harness
from compare import Both, Case
from harness import MIB, Unavailable, expect

KSM = "/sys/kernel/mm/ksm"
# Memory of the sections in which pages stay for a while, and MiB of ballast.
ROOMY, BALLAST = 24 * MIB, "60"


@contextlib.contextmanager
def merging():
    """ksmd at its fastest, with something of ours to merge, so that it never rests; as it was before at the end."""
    if os.geteuid() != 0:
        raise Unavailable("KSM is switched on by root")
    if not os.path.isdir(KSM):
        raise Unavailable("this kernel has no KSM")
    wanted = {"pages_to_scan": "20000", "sleep_millisecs": "2", "run": "1"}
    if os.path.exists(f"{KSM}/smart_scan"):
        wanted["smart_scan"] = "0"
    before = {name: harness.read_text(f"{KSM}/{name}").strip() for name in wanted}
    own = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    own.madvise(mmap.MADV_MERGEABLE)
    own.write(b"\x2a" * MIB)
    try:
        for name, value in wanted.items():
            with open(f"{KSM}/{name}", "w", encoding="ascii") as file:
                file.write(value)
        yield
        if int(harness.read_text(f"{KSM}/pages_sharing")) == 0:
            raise SystemExit("KSM has merged nothing, not even this program's own pages: the test proves nothing")
    finally:
        for name, value in reversed(before.items()):
            with open(f"{KSM}/{name}", "w", encoding="ascii") as file:
                file.write(value)
        own.close()


# Sections that need the kernel to merge pages.
MERGED = ("merged", "advised", "inherited", "handed-on")
# Sections that stay within the limit, but for what Farshore and libc need.
BOUNDED, BESIDES = ("childrenleave", "mlocklimit", "mlockmore", "hugeleaves", "hugebefore", "small", "smallbefore", "smallguarded", "smallguardedbefore", "smallgrows", "knowndevices"), 24 * MIB
# Sections that fit into the limit, at first or altogether: there the ballast does nothing. One MiB of it.
FITTING = {"huge": 512 * MIB, "hugeleaves": 144 * MIB, "hugebefore": 144 * MIB, "knowndevices": 144 * MIB, "hugefiltered": 512 * MIB, "smallbefore": 24 * MIB, "smallguardedbefore": 24 * MIB,
           "smallgrows": 24 * MIB, "readonly": 24 * MIB}
# Devices that may be opened for writing and do nothing by that, and that Farshore does not know.
DEVICES = ("/dev/cpu_dma_latency", "/dev/vga_arbiter")
KEPT = "may keep memory of the program: all of it"
# Sections that print something else under Farshore, or of which it says something: what they print then (None: the same), and the line.
REFUSED = {
    "device": (None, KEPT),
    "devicewrite": (None, KEPT),
    "devicefull": ("devicefull: a request: -1, Inappropriate ioctl for device\ndevicefull: written: -1, Input/output error\n"
                   "devicefull: bytes: 1\ndevicefull: done\n", "may keep memory of the program: it is refused"),
    "softdirty": ("softdirty: clear_refs: Permission denied\nsoftdirty: pagemap: 1\nsoftdirty: done\n", None),
    "mlockmore": ("mlockmore: mlock: -1\nmlockmore: bytes: 1\nmlockmore: done\n", None),
    "mlockpieces": ("mlockpieces: some: 1, all: 0\nmlockpieces: bytes: 1\nmlockpieces: again: 0\nmlockpieces: done\n", None),
}


# With five-level paging there are addresses for which Farshore has no page words: nothing managed moves there.
if " la57 " in harness.read_text("/proc/cpuinfo"):
    REFUSED["high"] = ("high: bytes: 1\nhigh: moved beyond: 0\nhigh: bytes: 1\nhigh: fixed beyond: 1\nhigh: done\n", None)


def unknown_device():
    """The first of them that there is; its path."""
    for path in DEVICES:
        if os.access(path, os.W_OK):
            return path
    raise Unavailable(f"none of {', '.join(DEVICES)} is there and can be written to")


class Started(Both):
    """Runs what starts the command first."""

    outer = ()

    def run(self, argv, env, stdin, folder):
        return super().run([*self.outer, *argv], env, stdin, folder)


# How the cases run (conftest.py).
BOTH = Started


def prepare(program, section):
    """The command line of a section, if it can run here."""
    if section.startswith("device"):
        unknown_device()
    return [program, "1" if section in FITTING else BALLAST, section]


def cases():
    """All of them."""
    program = harness.build_program("pages")
    listed = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
    env = {"PAGES_DEVICE": next((path for path in DEVICES if os.access(path, os.W_OK)), "")}
    found = [Case(section, lambda _, section=section: prepare(program, section), FITTING.get(section, ROOMY), env, refused=REFUSED.get(section)) for section in listed]
    statics = harness.build_program("statics")
    library = harness.build_program("statics", ("-shared", "-fPIC", "-Dmain=statics_main"), out_name="statics_library")
    host = harness.build_program("statics", ("-DHOST",), out_name="statics_host", libraries=(library,))
    for section in subprocess.run([statics, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split():
        found.append(Case(f"static:{section}", lambda _, section=section: [statics, section], ROOMY))
    library = harness.build_program("constructed", ("-shared", "-fPIC", "-DLIBRARY"), out_name="constructed_library")
    constructed = harness.build_program("constructed", out_name="constructed_host", libraries=(library,))
    for how in ("plain", "wipe", "gone"):
        for size in ("1", "60"):
            found.append(Case(f"constructed:{how}:{size}", lambda _, size=size: [constructed, size], ROOMY, {"CONSTRUCTED": how}))
    found.append(Case("static:library", lambda _: [host, "fork"], ROOMY))
    found.append(Case("static:child", lambda _: ["/bin/sh", "-c", f"{statics} threads; exit $?"], ROOMY))
    found.append(Case("handed-on", lambda _: [program, "--merge", program, BALLAST, "inherited"], ROOMY))
    return found


def test_pages(case, both, mode):
    """Each section prints and ends as natively; those that may have no more than their limit have no more."""
    # A setting that was there before Farshore was.
    both.outer = [harness.build_program("pages"), "--merge"] if case.name == "inherited" else ()
    with merging() if case.name in MERGED else contextlib.nullcontext():
        outcome = both.same(case, mode)
    if case.name in BOUNDED or case.name.startswith("static:"):
        peak = (outcome.peak_rss or 0) / MIB
        expect(peak <= (case.limit + BESIDES) / MIB, f"{peak:.0f} MiB were resident, with a limit of {case.limit / MIB:.0f} MiB")
