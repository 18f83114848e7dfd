"""Gets the suites that only Debian's source packages have (sources.toml), and keeps them in the target directory.

apt fetches them as it fetches everything else: signed lists, sums, any mirror that the machine is set to. It is given a source list and directories
of its own, so the machine's settings stay as they are and no root is needed. The archive's sum is compared with the pinned one in any case.

    tests/suites/sources.py          fetches what is missing; tests/suites/run.py does so by itself
"""

import glob
import os
import re
import subprocess
import sys
import tomllib

from suite import Unavailable, harness

HERE = os.path.dirname(os.path.abspath(__file__))
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
RELEASE = "bookworm"


def pinned():
    """What sources.toml says, by name."""
    with open(os.path.join(HERE, "sources.toml"), "rb") as file:
        return tomllib.load(file)


def mirror():
    """The machine's Debian mirror: an intranet has its own."""
    names = ["/etc/apt/sources.list"]
    folder = "/etc/apt/sources.list.d"
    if os.path.isdir(folder):
        names += [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    for name in names:
        for url in re.findall(r"https?://\S+/debian/?(?=\s|$)", harness.read_text(name)):
            return url.rstrip("/")
    return "http://deb.debian.org/debian"


class Apt:
    """apt with a source list, lists and a cache of its own."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("lists/partial", "archives/partial", "empty", "got"):
            os.makedirs(os.path.join(folder, name), exist_ok=True)
        with open(self.path("sources.list"), "w", encoding="utf-8") as file:
            for suite in (RELEASE, f"{RELEASE}-updates"):
                for kind in ("deb-src", "deb"):
                    file.write(f"{kind} [signed-by={KEYRING}] {mirror()} {suite} main\n")

    def path(self, name):
        """A path in its directory."""
        return os.path.join(self.folder, name)

    def run(self, tool, *arguments):
        """Runs a tool of apt's; returns what it printed, or says why it failed."""
        settings = {"Dir::Etc::sourcelist": "sources.list", "Dir::Etc::sourceparts": "empty", "Dir::State::lists": "lists", "Dir::Cache": "archives"}
        words = [word for key, value in settings.items() for word in ("-o", f"{key}={self.path(value)}")]
        # Else apt would become a user who may not write here.
        words += ["-o", "APT::Sandbox::User=", "-o", "Debug::NoLocking=1"]
        try:
            done = subprocess.run([tool, *words, *arguments], cwd=self.path("got"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=600, check=False)
        except FileNotFoundError:
            raise Unavailable(f"{tool} is missing: source packages are fetched by apt") from None
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{tool} {' '.join(arguments)} did not end in 10 minutes") from None
        text = done.stdout.decode(errors="replace")
        if done.returncode != 0:
            last = next((line for line in reversed(text.splitlines()) if line.startswith("E: ")), text[-200:])
            raise Unavailable(f"{tool} {' '.join(arguments)}: {last}")
        return text

    def versions(self, name):
        """Versions of a source package that the lists have, the newest last."""
        found = []
        for line in self.run("apt-cache", "showsrc", "--only-source", name).splitlines():
            if line.startswith("Version: "):
                found.append(line.split()[1])
        return found


def installed_version(program):
    """The upstream version of an installed Debian package, or None."""
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    text = done.stdout.decode()
    return re.sub(r"^\d+:", "", text).partition("-")[0] if done.returncode == 0 and text else None


def archive(name):
    """Path of a suite's archive, fetched if it is not there yet."""
    pin = pinned()[name]
    if "program" in pin:
        have = installed_version(pin["program"])
        if have != pin["version"]:
            raise Unavailable(f"the suite is {name} {pin['version']}'s, and {pin['program']} is {have or 'not installed'} (Debian {RELEASE} has that version)")
    kept = os.path.join(harness.target_dir(), "suite-sources", pin["archive"])
    if os.path.exists(kept) and harness.hash_file(kept) == pin["sha256"]:
        return kept
    apt, version = fetching(name, pin["version"])
    apt.run("apt-get", "source", "-q", "--download-only", f"{name}={version}")
    got = apt.path(os.path.join("got", pin["archive"]))
    digest = harness.hash_file(got)
    if digest != pin["sha256"]:
        raise SystemExit(f"{got} has the sum {digest}, and sources.toml says {pin['sha256']}: not used")
    os.replace(got, kept)
    return kept


def fetching(name, upstream):
    """An apt with fresh lists, and the newest version of a source package of the upstream version that they have."""
    # One a suite: they are fetched side by side.
    apt = Apt(os.path.join(harness.target_dir(), "suite-sources", f"apt-{name}"))
    apt.run("apt-get", "update", "-q")
    fitting = [version for version in apt.versions(name) if re.sub(r"^\d+:", "", version).startswith(upstream + "-")]
    if not fitting:
        raise Unavailable(f"{mirror()} has no source package {name} {upstream}")
    return apt, fitting[-1]


def unpack_packages(name, folder):
    """Unpacks the binary packages that a suite tests, where it does not test an installed program, into `folder`. They are kept once they are fetched."""
    pin = pinned()[name]
    kept = os.path.join(harness.target_dir(), "suite-sources", "packages", f"{name}-{pin['version']}")
    if not os.path.isdir(kept):
        apt, version = fetching(name, pin["version"])
        for package in pin["packages"]:
            apt.run("apt-get", "download", "-q", f"{package}={version}")
        os.makedirs(kept + ".new", exist_ok=True)
        for package in pin["packages"]:
            # The architecture ends the file's name, and an epoch's colon is written otherwise there: so by what it begins with.
            for path in glob.glob(apt.path(f"got/{package}_*.deb")):
                os.replace(path, os.path.join(kept + ".new", os.path.basename(path)))
        os.rename(kept + ".new", kept)
    for path in sorted(glob.glob(os.path.join(kept, "*.deb"))):
        subprocess.run(["dpkg-deb", "--extract", path, folder], check=True)


def unpack(name, folder, wanted):
    """Unpacks parts of a suite's archive (paths without its first directory) into `folder`."""
    path = archive(name)
    done = subprocess.run(["tar", "-xf", path, "-C", folder, "--strip-components=1", "--no-same-owner", "--wildcards", *(f"*/{part}" for part in wanted)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise SystemExit(f"cannot unpack {path}: {done.stdout.decode(errors='replace')[-300:]}")


if __name__ == "__main__":
    for each in pinned():
        try:
            print(archive(each))
        except Unavailable as why:
            sys.exit(f"{each}: {why}")
