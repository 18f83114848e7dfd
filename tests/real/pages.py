#!/usr/bin/env python3
"""What the kernel does to pages, and what programs ask it to do with them: each section natively and under Farshore.

    tests/real/pages.py                        everything
    tests/real/pages.py --only merged          these alone
    tests/real/pages.py --mode poll            one delivery of faults alone

The programs are `tests/programs/pages` and `tests/programs/statics.c`. What a section prints, and how it ends, must be the same natively and under Farshore. What needs root switches the
machine's page merging (KSM) on and puts it back as it was. The last line is `N passed, N failed, N skipped`.
"""

import argparse
import contextlib
import mmap
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import MIB, Unavailable  # noqa: E402
from threads import Case, Runner  # noqa: E402

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


# Sections that stay within the limit, but for what Farshore and libc need.
BOUNDED, BESIDES = ("childrenleave", "mlocklimit", "mlockmore", "hugeleaves", "hugebefore"), 24 * MIB
# Sections that fit into the limit, at first or altogether: there the ballast does nothing. One MiB of it.
FITTING = {"huge": 512 * MIB, "hugeleaves": 144 * MIB, "hugebefore": 144 * MIB, "hugefiltered": 512 * MIB}
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


def unknown_device():
    """The first of them that there is; its path."""
    for path in DEVICES:
        if os.access(path, os.W_OK):
            return path
    raise Unavailable(f"none of {', '.join(DEVICES)} is there and can be written to")


class Started(Case):
    """A section whose whole command, that of Farshore included, is started by another one."""

    outer = ()


class PagesRunner(Runner):
    """Runs what starts the command first."""

    def run(self, argv, env, stdin, folder):
        printed, self.last = super().run([*self.outer, *argv], env, stdin, folder)
        return printed, self.last

    def under_farshore(self, case, argv, mode, native, status, folder):
        wrong = super().under_farshore(case, argv, mode, native, status, folder)
        peak = self.last.peak_rss or 0
        if not wrong and (case.name in BOUNDED or case.name.startswith("static:")) and peak > case.limit + BESIDES:
            return f"{peak / MIB:.0f} MiB were resident, with a limit of {case.limit / MIB:.0f} MiB"
        return wrong

    def case(self, case, modes):
        self.outer = getattr(case, "outer", ())
        return super().case(case, modes)


def prepare(program, section):
    """The command line of a section, if it can run here."""
    if section.startswith("device"):
        unknown_device()
    return [program, "1" if section in FITTING else BALLAST, section]


def cases():
    """All of them: (case, what must be switched on around it)."""
    program = harness.build_program("pages")
    listed = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
    found = []
    around = {"merged": merging, "advised": merging, "inherited": merging}
    for section in listed:
        if section == "inherited":
            continue
        env = {"PAGES_DEVICE": next((path for path in DEVICES if os.access(path, os.W_OK)), "")}
        case = Case(section, lambda section=section: prepare(program, section), FITTING.get(section, ROOMY), env, refused=REFUSED.get(section))
        found.append((case, around.get(section, contextlib.nullcontext)))
    # The setting was there before Farshore was, or a program under Farshore hands it on.
    started = Started("inherited", lambda: [program, BALLAST, "inherited"], ROOMY)
    started.outer = [program, "--merge"]
    found.append((started, merging))
    statics = harness.build_program("statics")
    library = harness.build_program("statics", ("-shared", "-fPIC", "-Dmain=statics_main"), out_name="statics_library")
    host = harness.build_program("statics", ("-DHOST",), out_name="statics_host", libraries=(library,))
    for section in subprocess.run([statics, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split():
        found.append((Case(f"static:{section}", lambda section=section: [statics, section], ROOMY), contextlib.nullcontext))
    found.append((Case("static:library", lambda: [host, "fork"], ROOMY), contextlib.nullcontext))
    found.append((Case("static:child", lambda: ["/bin/sh", "-c", f"{statics} threads; exit $?"], ROOMY), contextlib.nullcontext))
    found.append((Case("handed-on", lambda: [program, "--merge", program, BALLAST, "inherited"], ROOMY), merging))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME[,NAME]", help="these cases alone")
    parser.add_argument("--mode", choices=("upcall", "poll"), help="one delivery of faults alone")
    parser.add_argument("--farshore", help="the farshore command (default: $FARSHORE, else this workspace's build)")
    parser.add_argument("--work", default=os.environ.get("FARSHORE_SWAP_DIR", "/var/tmp"), help="where files go (default /var/tmp)")
    options = parser.parse_args()
    harness.tidy_on_sigterm()
    options.work = tempfile.mkdtemp(prefix="farshore-pages-", dir=options.work)
    os.chmod(options.work, 0o755)
    modes = [options.mode] if options.mode else ["upcall"] + (["poll"] if harness.poll_allowed() else [])
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    try:
        harness.build_program("peak")
        everything = cases()
        wanted = options.only.split(",") if options.only else [case.name for case, _ in everything]
        unknown = set(wanted) - {case.name for case, _ in everything}
        if unknown:
            parser.error(f"there is no case {', '.join(sorted(unknown))}")
        runner = PagesRunner(options)
        for case, around in everything:
            if case.name not in wanted:
                continue
            try:
                with around():
                    results = runner.case(case, modes)
            except Unavailable as why:
                counts["skipped"] += 1
                print(f"{case.name:18} skipped: {why}", flush=True)
                continue
            for mode, wrong in results:
                counts["failed" if wrong else "passed"] += 1
                print(f"{case.name:18} {mode:7} {'FAILED: ' + wrong if wrong else 'ok'}", flush=True)
    finally:
        shutil.rmtree(options.work, ignore_errors=True)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
