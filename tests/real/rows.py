"""The programs of test_rows.py: one for each kind of memory that programs have, of languages, their collectors, libcs and linkers.

Each needs 200 to 400 MB, so that what does not depend on its size decides nothing. It prints a few numbers that follow from all its data.

To add one: its source goes to tests/programs/rows, and a line to `ROWS`. With `short` it also runs in continuous integration; then all that it needs must be in a
packages.txt. The others say what is missing and how to get it.
"""

import hashlib
import os
import shutil
import subprocess
import sys

import harness
from cases import Case
from harness import Unavailable, need

sys.path.append(os.path.join(os.path.dirname(harness.PROGRAMS), "kernels"))
import kernels  # noqa: E402

SOURCES = os.path.join(harness.PROGRAMS, "rows")
# Packages of PyPI's, and what `go install` builds: where they are looked for.
PYTHON = os.path.join(harness.target_dir(), "rows-python")
PYTHON_PACKAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rows-python.txt")
GO_BIN = os.path.join(harness.target_dir(), "rows-go")
MUSL_TARGET = "x86_64-unknown-linux-musl"
HUGO = "github.com/gohugoio/hugo@v0.150.0"


def source(name):
    """Path of a source."""
    return os.path.join(SOURCES, name)


def built(name, out_name, *compiler, package=None):
    """Path of what a compiler makes of a source, made anew where the source is newer. `-o` and the path follow what is given, unless that says where the path goes (`{out}`)."""
    out = os.path.join(harness.target_dir(), "test-programs", "rows", out_name)
    if os.path.exists(out) and os.path.getmtime(out) >= os.path.getmtime(source(name)):
        return out
    tool = need(compiler[0], package or compiler[0])
    # Compilers leave files beside the source and beside the result.
    folder = f"{out}.{os.getpid()}"
    os.makedirs(folder)
    try:
        shutil.copy(source(name), folder)
        flags = compiler[1:] if any("{out}" in flag for flag in compiler) else [*compiler[1:], "-o", "{out}"]
        argv = [tool, *(flag.format(out=os.path.join(folder, "out")) for flag in flags), name]
        done = subprocess.run(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            raise Unavailable(f"{compiler[0]} cannot build {name}: {done.stdout.decode(errors='replace').strip()[-300:]}")
        os.replace(os.path.join(folder, "out"), out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return out


def script(tool, package, name):
    """A command that runs a source by its interpreter."""
    return lambda _: [need(tool, package), source(name)]


def pypi(module):
    """Path of a Python that has the packages of PyPI's."""
    python = os.path.join(PYTHON, "bin", "python3")
    if not os.path.exists(python):
        raise Unavailable(f"{module} is missing (python3 -m venv {PYTHON} && {PYTHON}/bin/pip install -r {PYTHON_PACKAGES})")
    return python


def rust(target, out_name):
    """A command that runs the program in Rust, linked for a target."""
    def command(_):
        flags = ["--target", target] if target else []
        try:
            return [built("records.rs", out_name, "rustc", "-O", *flags)]
        except Unavailable as why:
            raise Unavailable(f"{why} (rustup target add {target})") from None if target else why
    return command


def erlang(folder):
    """A command that runs the module."""
    shutil.copy(source("records.erl"), folder)
    subprocess.run([need("erlc", "erlang-base"), "-o", folder, "records.erl"], cwd=folder, check=True)
    return [need("erl", "erlang-base"), "-noshell", "-pa", folder, "-run", "records", "main"]


def java(*options):
    """A command that runs the class."""
    def command(folder):
        subprocess.run([need("javac", "openjdk-17-jdk-headless"), "-d", folder, source("Records.java")], check=True)
        return [need("java", "openjdk-17-jre-headless"), "-Xmx600m", *options, "-cp", folder, "Records"]
    return command


def site(pages):
    """A command that builds a web site, whose pages have text, a table and tags, and lists of all pages."""
    def command(folder):
        hugo = shutil.which("hugo", path=GO_BIN)
        if hugo is None:
            raise Unavailable(f"hugo is missing (CGO_ENABLED=0 GOBIN={GO_BIN} go install {HUGO})")
        content, layouts = os.path.join(folder, "content", "posts"), os.path.join(folder, "layouts", "_default")
        os.makedirs(content)
        os.makedirs(layouts)
        with open(os.path.join(folder, "hugo.toml"), "w", encoding="ascii") as file:
            file.write('baseURL = "https://example.org/"\ntitle = "Pages"\n')
        for name, text in (("single", "<h1>{{ .Title }}</h1>{{ .Content }}<p>{{ .WordCount }}</p>"),
                           ("list", "<h1>{{ .Title }}</h1>{{ range .Pages }}<a href='{{ .RelPermalink }}'>{{ .Title }}</a> {{ .Summary }}{{ end }}")):
            with open(os.path.join(layouts, f"{name}.html"), "w", encoding="ascii") as file:
                file.write(text)
        for number in range(pages):
            with open(os.path.join(content, f"{number}.md"), "w", encoding="ascii") as file:
                rows = "".join(f"| {number * row} | word{number * row % 977} |\n" for row in range(1, 24))
                text = " ".join(f"word{(number * 7919 + word * 104729) % 4999}" for word in range(260))
                file.write(f"---\ntitle: Page {number}\ndate: 2020-01-{number % 28 + 1:02}\ntags: [t{number % 50}, u{number % 7}]\n---\n{text}\n\n| a | b |\n| --- | --- |\n{rows}\n{text}\n")
        return [hugo, "--quiet", "--noBuildLock", "--source", folder]
    return command


def guest(mib, filled):
    """A command that boots a kernel of Debian's in so much memory of a guest, whose first process fills a part of it."""
    def command(folder):
        disk = os.path.join(folder, "initramfs")
        kernels.initramfs(disk, built("guest.c", "guest", "gcc", "-O2", "-static"))
        return [kernels.qemu(), *kernels.processors(1, "single"), "-m", str(mib), "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio",
                "-kernel", os.path.join(kernels.kernel("debian13"), "vmlinuz"), "-initrd", disk, "-append", f"console=ttyS0 loglevel=1 printk.time=0 -- {filled}"]
    return command


class Row(Case):
    """A program: `command` gives its command line, for a folder; `arguments` follow it."""

    timeout = {"full": 150}
    # The part of what should go that must go.
    least = 0.9

    def __init__(self, name, what, command, *arguments, short=False, env=None):
        super().__init__("full", None)
        self.name, self.summary = name, what
        self.command, self.arguments, self.short, self.env, self.argv = command, arguments, short, env, None

    def prepare(self):
        self.argv = [*self.command(self.folder), *map(str, self.arguments)]

    def run(self, context):
        context.same_output("output", context.run("program", self.argv, env=self.env))


class Site(Row):
    """A program that writes files to a directory, which are compared."""

    def run(self, context):
        out = os.path.join(context.folder, "site")
        context.run("program", [*self.argv, "--destination", out], env={**(self.env or {}), "HUGO_CACHEDIR": os.path.join(context.folder, "cache")})
        sha, count = hashlib.sha256(), 0
        for folder, folders, names in os.walk(out):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                sha.update(f"{os.path.relpath(path, out)} {harness.hash_file(path)}\n".encode())
                count += 1
        context.same("files", (count, sha.hexdigest()))
        if count < 100:
            context.problem(f"the site has {count} files")


class Page(Row):
    """A page that Chromium renders and prints. Each run has a profile of its own.

    Its eight processes have some 180 MB that no limit is for: relocated data of images, and shared memory, which counts in each of them.
    """

    least = 0.25
    # Those of the first process, which has little.
    uncounted = ("program",)

    def prepare(self):
        # Without its sandbox (docs/src/reference/limits.md). What it says of this machine's devices is not compared.
        self.argv = [need("chromium", "chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--dump-dom",
                     "--virtual-time-budget=60000", f"file://{source('objects.html')}"]

    def run(self, context):
        profile = os.path.join(context.folder, "profile")
        context.same_output("output", context.run("program", [*self.argv, f"--user-data-dir={profile}"], env=self.env))


ROWS = [
    Row("perl", "Perl: records", script("perl", "perl", "records.pl"), 400_000, short=True, env={"PERL_HASH_SEED": "0"}),
    Row("php", "PHP: records", script("php", "php-cli", "records.php"), 400_000),
    Row("lua", "Lua: records", script("lua5.4", "lua5.4", "records.lua"), 400_000, 400_000),
    # Few names: it sweeps its strings in the order of their hashes, so each of them would be a fault, each time.
    Row("luajit", "LuaJIT: records", script("luajit", "luajit", "records.lua"), 800_000, 5_000),
    Row("ruby", "Ruby: records", script("ruby", "ruby", "records.rb"), 600_000, short=True),
    Row("ocaml", "OCaml: records", lambda _: [built("records.ml", "records-ocaml", "ocamlopt", package="ocaml-nox")], 1_500_000),
    Row("sbcl", "SBCL: records", lambda _: [need("sbcl", "sbcl"), "--dynamic-space-size", "1024", "--script", source("records.lisp")], 1_200_000),
    Row("erlang", "Erlang: a table, binaries", erlang, 600_000),
    Row("r", "R: vectors", script("Rscript", "r-base-core", "vectors.R"), 5_000_000),
    Row("duckdb", "DuckDB: a table", lambda _: [pypi("duckdb"), source("duckdb_rows.py")], 7_000_000),
    Row("polars", "Polars: columns", lambda _: [pypi("polars"), source("polars_rows.py")], 6_000_000),
    Row("pandas", "pandas: columns", lambda _: [pypi("pandas"), source("pandas_rows.py")], 4_000_000),
    Row("sklearn", "scikit-learn: points", lambda _: [pypi("scikit-learn"), source("sklearn_rows.py")], 450_000),
    # Debian's policy lets it have 256 MiB.
    Row("imagemagick", "ImageMagick: an image", lambda _: [need("convert-im6.q16", "imagemagick")], "-size", "3900x3900", "gradient:red-blue", "-rotate", "90", "-negate", "-format", "%#\\n",
        "info:"),
    Row("java-g1", "JVM, G1: records", java("-XX:+UseG1GC"), 1_800_000),
    Row("java-serial", "JVM, serial: records", java("-XX:+UseSerialGC"), 1_800_000),
    Row("node-buffers", "Node: buffers", script("node", "nodejs", "buffers.js"), 300),
    # V8 maps each 256 KiB of its heap at an address of its own choice, at random: each gets a leaf of the table of pages for itself.
    Row("node-objects", "Node: objects", script("node", "nodejs", "objects.js"), 1_200_000),
    Row("rust", "Rust, glibc: records", rust(None, "records-rust"), 1_500_000, short=True),
    Row("rust-musl", "Rust, musl: records", rust(MUSL_TARGET, "records-rust-musl"), 1_500_000),
    Row("go", "Go, static: records", lambda _: [harness.build_go("rows/records", "rows/records-go")], 1_500_000, short=True),
    Row("c", "C: records", lambda _: [built("records.c", "records", "gcc", "-O2")], 1_400_000),
    Row("c-static", "C, static: records", lambda _: [built("records.c", "records-static", "gcc", "-O2", "-static")], 1_400_000),
    Row("c-musl", "C, musl: records", lambda _: [built("records.c", "records-musl", "musl-gcc", "-O2", "-static", package="musl-tools")], 1_400_000, short=True),
    Row("stream", "C: STREAM's static arrays", lambda _: [built("stream.c", "stream", "gcc", "-O2")], short=True),
    Row("stream-static", "C, static: the same", lambda _: [built("stream.c", "stream-static", "gcc", "-O2", "-static")]),
    Row("fortran", "Fortran: CG's static arrays", lambda _: [built("cg.f90", "cg", "gfortran", "-O2")]),
    Row("zig", "Zig: blocks, a static array", lambda _: [built("arrays.zig", "arrays-zig", pypi("ziglang"), "-m", "ziglang", "build-exe", "-O", "ReleaseFast", "-femit-bin={out}")]),
    Row("qemu", "QEMU (TCG): a guest with 512 MiB", guest(512, 400), short=True),
    Page("chromium", "Chromium: three million objects", None, short=True),
    Site("hugo", "Hugo (Go): a site", site(1_500)),
]
