#!/usr/bin/env python3
"""The Debian packages of `make deb`, in a fresh Debian 12: they are installed, used by an ordinary user, and removed.

    tests/newcomer/packages.py [--dir DIR]

The Debian is made as in fresh.py, by mmdebstrap, but has neither Rust nor the sources; a compiler comes when a C program is to be compiled. The user has no
rights of root's. The packages are those in the target directory (debian/*.deb), which `make deb` has made.

It needs root and the network, and is skipped where one is missing. Each step prints one line; the last one counts: N passed, N failed, N skipped.
"""

import argparse
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

# Before our own modules come in: the source tree stays as it is.
sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests", "real")]
import fresh  # noqa: E402
import harness  # noqa: E402
from harness import Failed, Unavailable, expect  # noqa: E402

PACKAGES = ("farshore", "farshore-bench", "libfarshore-uthread-dev")
USER = "newcomer"
# Where a package of ours may have files.
PLACES = re.compile(r"/usr/(bin|include|lib/farshore|lib/systemd(/system|/user)?|lib/x86_64-linux-gnu(/pkgconfig)?|share/(doc|man|farshore))(/|$)")
LIMIT = "32M"
# About 100 MiB of strings, through which it goes twice. Perl is in every Debian.
HUNGRY = """
my @lines = map { "$_ " x 40 } 1 .. 300000;
my $sum = 0;
for (1 .. 2) { for my $line (@lines) { $sum = ($sum * 31 + length($line) + ord(substr($line, -3))) % 1000003 } }
print "$sum\\n";
"""


class Debian:
    """A fresh Debian, and the packages' life in it. Every method that begins with `test_` is a step, in the order in which they stand here."""

    def __init__(self, work):
        self.work, self.root, self.files = work, os.path.join(work, "root"), set()
        fresh.make_place(work, self.root)
        fresh.make_root(self.root, "ca-certificates")
        fresh.lend(work, self.root)
        self.as_root("useradd", "--create-home", "--shell", "/bin/sh", USER)
        # mmdebstrap keeps no list of packages.
        self.as_root("apt-get", "update", "-q")
        self.home = f"{self.root}/home/{USER}"
        os.makedirs(f"{self.root}/tmp/debs")
        for name in PACKAGES:
            shutil.copy(package_file(name), f"{self.root}/tmp/debs/{name}.deb")

    def command(self, argv, user, directory):
        """Runs a command in there, which must end with status 0: what it wrote."""
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "TERM": "dumb"}
        if user:
            environment["HOME"] = f"/home/{user}"
        chroot = ["chroot", *([f"--userspec={user}:{user}", "--groups="] if user else []), self.root, "env", f"--chdir={directory}", *argv]
        done = subprocess.run(chroot, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
        expect(done.returncode == 0, f"{' '.join(argv)}: status {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
        return done

    def as_root(self, *argv):
        """What a command of root's printed."""
        return self.command(argv, None, "/").stdout

    def as_user(self, *argv):
        """What a command of the user's wrote."""
        return self.command(argv, USER, f"/home/{USER}")

    def install(self, *names):
        """Installs packages of ours and of Debian's, without what those only recommend."""
        paths = [f"/tmp/debs/{name}.deb" if name in PACKAGES else name for name in names]
        self.as_root("apt-get", "install", "-q", "-y", "--no-install-recommends", *paths)

    def test_contents(self):
        """What is in the packages is root's, has usual permissions, and lies where Debian wants it; the fields that Debian asks for are there."""
        for name in PACKAGES:
            field = dict(re.findall(r"^(\S+): (.*)", self.as_root("dpkg-deb", "--field", f"/tmp/debs/{name}.deb"), re.M))
            missing = {"Package", "Version", "Architecture", "Section", "Priority", "Maintainer", "Installed-Size", "Depends", "Description"} - field.keys()
            expect(not missing and field["Architecture"] == "amd64" and "Multi-Arch" not in field, f"{name}: {field}, without {missing}")
            expect("libc6 (>= " in field["Depends"], f"{name} depends on {field['Depends']}")
            listed = self.as_root("dpkg-deb", "--contents", f"/tmp/debs/{name}.deb").splitlines()
            for line in listed:
                mode, owner, path = re.match(r"(\S+)\s+(\S+)\s+\S+\s+\S+\s+\S+\s+\.(.*)", line).groups()
                wanted = "drwxr-xr-x" if path.endswith("/") else "-rwxr-xr-x" if path.startswith("/usr/bin/") else "-rw-r--r--"
                expect(mode == wanted and owner in ("root/root", "0/0"), f"{name}: {line}")
                expect(path.endswith("/") or PLACES.match(path), f"{name}: {path}")
            expect(any(line.endswith(f"/usr/share/doc/{name}/copyright") for line in listed), f"{name} has no copyright")
        return f"{len(PACKAGES)} packages"

    def test_install(self):
        """The first two are installed together; the second alone is not."""
        try:
            self.as_root("dpkg", "--install", "/tmp/debs/farshore-bench.deb")
        except Failed as refused:
            expect("depends on farshore (= " in str(refused), f"{refused}")
            self.as_root("dpkg", "--purge", "farshore-bench")
        else:
            expect(False, "farshore-bench was installed without farshore")
        self.install("farshore", "farshore-bench")
        version = self.as_user("farshore", "--version").stdout.split()[1]
        versions = self.as_root("dpkg-query", "--show", "--showformat=${Version} ", "farshore", "farshore-bench").split()
        expect(versions == [version, version], f"farshore says {version}; the packages are {versions}")
        return version

    def test_doctor(self):
        """An ordinary user without a compiler is told that it works here."""
        for missing in ("cc", "gcc", "cargo", "rustc"):
            expect(not shutil.which(missing, path=f"{self.root}/usr/bin"), f"there is {missing}")
        told = self.as_user("farshore", "doctor").stdout
        return told.strip().splitlines()[-1]

    def test_run(self):
        """A program that exceeds its limit says what it says natively, and its pages have left by the installed library."""
        with open(f"{self.home}/hungry.pl", "w", encoding="ascii") as file:
            file.write(HUNGRY)
        native = self.as_user("perl", "hungry.pl").stdout
        done = self.as_user("farshore", "run", "--memory", LIMIT, "--stats", "-", "--", "perl", "hungry.pl")
        expect(done.stdout == native and re.fullmatch(r"\d+\n", native), f"{done.stdout!r}, and natively {native!r}")
        counters = json.loads(done.stderr)
        peak, evicted, fetched = counters["resident_bytes_peak"], counters["evictions"]["pages"], counters["swap"]["pages_in"]
        expect(counters["managed_bytes_peak"] > 2 * harness.parse_size(LIMIT), f"it had {counters['managed_bytes_peak']} bytes alone")
        expect(peak <= harness.parse_size(LIMIT) and evicted > 1000 and fetched > 1000, f"peak {peak}, {evicted} pages evicted, {fetched} fetched")
        mapped = self.as_user("farshore", "run", "--memory", LIMIT, "--", "grep", "-o", "/usr/lib/.*libfarshore.so", "/proc/self/maps").stdout.split()
        expect(set(mapped) == {"/usr/lib/farshore/libfarshore.so"}, f"{mapped}")
        return f"{evicted} pages evicted, {fetched} fetched"

    def test_view(self):
        """What `farshore top` becomes is there, and the dashboard that goes with `farshore metrics`."""
        told = self.as_user("farshore", "top", "--once", "--interval", "0.1").stdout
        expect(told.split()[:2] == ["PID", "NAME"], told)
        expect(self.as_user("farshore", "metrics").stdout.endswith("# EOF\n"), "no metrics")
        with open(f"{self.root}/usr/share/farshore/grafana/farshore.json", encoding="utf-8") as file:
            return f"{len(json.load(file)['panels'])} panels"

    def test_bench(self):
        """A comparison that needs no root."""
        sizes = ["--size", "32M", "--memory", "16M", "--seconds", "1", "--rounds", "1", "--warm-up-rounds", "0", "--no-device"]
        self.as_user("farshore", "bench", "random", *sizes, "--against", "farshore,native", "--json", "bench.json")
        with open(f"{self.home}/bench.json", encoding="utf-8") as file:
            return f"schema {json.load(file)['schema']}"

    def test_serve(self):
        """farshore-serve starts from its package."""
        told = self.as_user("farshore-serve", "--help").stdout
        expect("kv" in told, told)
        return "its help"

    def test_manual(self):
        """The manual is where man finds it."""
        self.install("man-db")
        pages = ("farshore", "farshore-run", "farshore-doctor", "farshore-stat", "farshore-set", "farshore-top", "farshore-metrics", "farshore-plan", "farshore-record", "farshore-report", "farshore-bench", "farshore-load", "farshore-serve")
        return f"{len(self.as_user('man', '-w', *pages).stdout.split())} pages"

    def test_compile(self):
        """The user compiles a C program with the flags of pkg-config, and runs it; then with far memory."""
        self.install("libfarshore-uthread-dev", "gcc", "libc6-dev", "pkgconf")
        version = self.as_user("pkg-config", "--modversion", "farshore_uthread").stdout.strip()
        packaged = self.as_root("dpkg-query", "--show", "--showformat=${Version}", "libfarshore-uthread-dev")
        expect(version == packaged, f"pkg-config says {version}, the package is {packaged}")
        shutil.copy(os.path.join(ROOT, "crates", "services", "uthread-c", "tests", "c", "uthread.c"), self.home)
        self.as_user("sh", "-c", "gcc -std=gnu11 -Wall -Wextra -Werror -o unithreads uthread.c $(pkg-config --cflags --libs farshore_uthread)")
        for before in ([], ["farshore", "run", "--memory", LIMIT, "--"]):
            told = self.as_user(*before, "./unithreads").stdout
            expect(told == "ok\n", f"{before}: {told}")
        return f"farshore_uthread {version}"

    def test_remove(self):
        """After the packages are removed, none of their files is left, and nothing that they wrote outside of a home."""
        listed = self.as_root("dpkg-query", "--listfiles", *PACKAGES).split("\n")
        ours = {path for path in listed if path and not os.path.isdir(self.root + path)}
        expect(len(ours) > 20, f"{len(ours)} files")
        self.as_root("apt-get", "purge", "-q", "-y", *PACKAGES)
        left = [path for path in ours if os.path.lexists(self.root + path)]
        # Of the directory with our copies, of the user's home and of apt's and dpkg's own records, none is a package's.
        skipped = [word for path in ("/tmp/debs", "/home", "/proc", "/sys", "/dev") for word in ("-path", path, "-prune", "-o")]
        left += self.as_root("find", "/", *skipped, "-iname", "*farshore*", "-print").split()
        left += os.listdir(f"{self.root}/var/tmp")
        state = self.as_root("dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n")
        left += [line for line in state.splitlines() if "farshore" in line]
        expect(not left, f"left: {sorted(set(left))}")
        return f"{len(ours)} files"


def package_file(name):
    """The package of the workspace's version."""
    version = re.search(r'^version = "(.*)"', harness.read_text(os.path.join(ROOT, "Cargo.toml")), re.M)[1]
    found = glob.glob(os.path.join(harness.target_dir(), "debian", f"{name}_{version}_amd64.deb"))
    if not found:
        raise SystemExit(f"there is no package {name} {version} in {harness.target_dir()}/debian: run make deb")
    return found[0]


def inside(work):
    """All of it; in namespaces of our own."""
    started = time.monotonic()
    debian = Debian(work)
    print(f"packages: {fresh.SUITE}: {time.monotonic() - started:.0f} s", flush=True)
    steps = [name for name in vars(Debian) if name.startswith("test_")]
    passed = 0
    for number, name in enumerate(steps):
        what, started = name[len("test_"):], time.monotonic()
        try:
            said = getattr(debian, name)()
        except (Failed, OSError, ValueError, KeyError) as error:
            # After a step that failed, the others would tell of nothing new.
            print(f"packages: {what} FAILED, {time.monotonic() - started:.0f} s: {error}\n{passed} passed, 1 failed, 0 skipped", flush=True)
            if steps[number + 1:]:
                print(f"not run: {' '.join(steps[number + 1:])}", file=sys.stderr)
            return 1
        passed += 1
        print(f"packages: {what} ok, {time.monotonic() - started:.0f} s: {said}", flush=True)
    print(f"{passed} passed, 0 failed, 0 skipped")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default=os.environ.get("FARSHORE_SWAP_DIR", "/var/tmp"), help="where cold pages go, and the system where there is little RAM (default /var/tmp)")
    parser.add_argument("--inside", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    harness.tidy_on_sigterm()
    try:
        if options.inside:
            return inside(options.inside)
        for name in PACKAGES:
            package_file(name)
        return fresh.apart(os.path.abspath(__file__), options.dir)
    except Unavailable as reason:
        print(f"skipped: {reason}\n0 passed, 0 failed, 1 skipped")
        return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
