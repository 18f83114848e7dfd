#!/usr/bin/env python3
"""Checks that what the documents name is there: paths, links with their anchors, and identifiers.

    tools/paths.py                all documents: README.md, ARCHITECTURE.md, CONTRIBUTING.md, SECURITY.md, docs/**/*.md
    tools/paths.py FILE...        these alone

Code between backticks is looked at outside of fenced blocks:

- A path (it contains `/`, or ends as a source file does) must be the end, at a `/`, of the path of a file or directory of the repository. So
  `engine/src/fault/run.rs` and `fault/run.rs` are both found, wherever the crate lies. System paths, placeholders (`NAME`) and wildcards are left out.
- An identifier (`Type::method`, `function(…)`, `snake_case`, `UPPER_CASE`, `CamelCase`) must occur in the sources, outside of Rust's comments, or name one of
  their files; of one with `::` each part. Left out are constants of the kernel, by their beginnings, and what is listed in `ELSEWHERE`.

A relative link must lead to a file of the repository, and its `#anchor` to a heading there. Without FILE, each page of docs/src must be in its SUMMARY.md:
a page that is not there is not in the book.

What is not found is printed, a line each: `file:line: what`. The exit status is 1 if there was any.
"""

import functools
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Endings that make a word without a `/` a path, and those of files whose words are identifiers.
PATH_ENDS = (".rs", ".py", ".md", ".c", ".cc", ".h", ".sh", ".toml")
SOURCE_ENDS = (".rs", ".py", ".c", ".cc", ".h", ".S", ".go", ".sh", ".js", ".toml", "Makefile")
# Where a path begins that is not the repository's: the system's, the build's, an installation's.
SYSTEM = ("/", "~", "../", "./", "target/", "proc/", "sys/kernel", "dev/", "bin/", "lib/", "share/")
# What stands for something else: `crates/NAME/src`, `results/DATE-MACHINE/`.
PLACEHOLDER = re.compile(r"\b(NAME|DATE|MACHINE|PID|BEFORE|AFTER|PATH|DIR|SPEC|CRATE|UID|FILE|SIZE)\b")
# Paths that are right and not the repository's, with the reason.
PATHS_ELSEWHERE = {
    "transparent_hugepage/enabled": "a setting of the kernel, below its directory mm",
    "profiles/seccomp/default.json": "of the container engine moby",
    "compare.py": "a script that was dropped; a decision record says why",
}
# Constants that are the kernel's or libc's: whether a source of ours has them says nothing.
KERNELS = re.compile(r"(CONFIG|COOP|FILES|IORING|KEYCTL|MADV|MAP|MSG|PR|RLIMIT|SA|SO|UFFD|UFFDIO)_")
# Other identifiers that are right and in no source of ours, with the reason.
ELSEWHERE = {
    "clear_child_tid": "a field of the kernel's tasks",
    "instruction_pointer": "a field of what the kernel shows to filters of system calls",
    "si_call_addr": "a field of the kernel's siginfo",
    "pthread_sigqueue": "a function of libc",
    "clap_complete": "a crate that a proposed change would use",
    "NO_TLS": "an option of LMDB, whose crate has it in another spelling",
}

FENCE = re.compile(r"^\s*(```|~~~)")
CODE = re.compile(r"(`+)(.+?)\1")
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+\"[^\"]*\")?\)|^\s*\[[^\]]+\]:\s+(\S+)")
QUALIFIED = re.compile(r"^[A-Za-z_]\w*(::[A-Za-z_]\w*)+(\(.*\))?$")
CALLED = re.compile(r"^[a-z_]\w*\((?!\d\)).*\)$")
NAME = re.compile(r"^(?=[^_]*\w_)[a-z][a-z0-9_]*$|^[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$|^[A-Z][a-z0-9]+([A-Z][a-z0-9]+)+$")


@functools.cache
def repository():
    """All files; the paths of all files and directories; and all endings of these at a `/`."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    files = [path for path in dict.fromkeys(listed.stdout.decode().split("\0")) if path and os.path.exists(os.path.join(ROOT, path))]
    paths, endings = set(), set()
    for path in files:
        parts = path.split("/")
        for last in range(1, len(parts) + 1):
            paths.add("/".join(parts[:last]))
            endings.update("/".join(parts[first:last]) for first in range(last))
    return files, paths, endings


@functools.cache
def words():
    """Every word of the sources outside of Rust's comments, and their files' names."""
    found = set()
    for path in repository()[0]:
        if path.endswith(SOURCE_ENDS) and path != "tools/paths.py":
            with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as source:
                text = source.read()
            found.add(os.path.basename(path).split(".")[0])
            found.update(re.findall(r"[A-Za-z_]\w*", re.sub(r"//.*", "", text) if path.endswith(".rs") else text))
    return found


def lines_outside_fences(path):
    """The lines of a document with their numbers, without fenced blocks."""
    fence = None
    with open(path, encoding="utf-8") as document:
        for number, line in enumerate(document, 1):
            mark = FENCE.match(line)
            if mark and fence in (None, mark[1]):
                fence = None if fence else mark[1]
            elif fence is None:
                yield number, line.rstrip("\n")


def slug(heading):
    """The anchor of a heading.

    >>> slug("`read(fd, n)` of libc, with *its* buffer [out](x.md)")
    'readfd-n-of-libc-with-its-buffer-out'
    """
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text.lower()))


@functools.cache
def anchors(path):
    """The anchors of a document's headings, as GitHub and mdBook both make them."""
    found, seen = set(), {}
    for _, line in lines_outside_fences(path):
        heading = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if heading:
            name = slug(heading[1])
            found.add(name if name not in seen else f"{name}-{seen[name]}")
            seen[name] = seen.get(name, 0) + 1
    return found


def missing_code(text):
    """What is wrong with code between backticks, or None.

    >>> [missing_code(right) for right in ("core/src/word.rs", "fault/run.rs", "docs", "Engine::claim", "read(2)", "/proc/self/mem", "fork")]
    [None, None, None, None, None, None, None]
    >>> missing_code("core/src/lost.rs"), missing_code("ore/src/word.rs")
    ('no such path: core/src/lost.rs', 'no such path: ore/src/word.rs')
    >>> missing_code("Engine::lose_all"), missing_code("lose_all(a, b)"), missing_code("lose_all")[:24]
    ('no such identifier: Engine::lose_all (lose_all)', 'no such identifier: lose_all(a, b) (lose_all)', 'no such identifier: lose')
    """
    if re.search(r"[\s*?{}<>$…|=,\\\\]", text) and not CALLED.match(text):
        return None
    if "(" not in text and ":" not in text and ("/" in text or text.endswith(PATH_ENDS)):
        known = text.startswith((*SYSTEM, "-", "@", ".")) or PLACEHOLDER.search(text) or text in PATHS_ELSEWHERE
        return None if known or text.rstrip("/") in repository()[2] else f"no such path: {text}"
    if QUALIFIED.match(text) or CALLED.match(text) or NAME.match(text):
        parts = re.sub(r"\(.*", "", text).split("::")
        gone = [part for part in parts if part not in words() and part not in ELSEWHERE and not KERNELS.match(part)]
        return f"no such identifier: {text} ({', '.join(gone)})" if gone else None
    return None


def missing_link(target, document):
    """What is wrong with a link, or None.

    >>> readme = os.path.join(ROOT, "README.md")
    >>> missing_link("ARCHITECTURE.md#invariants", readme), missing_link("https://example.invalid", readme)
    (None, None)
    >>> missing_link("LOST.md", readme), missing_link("ARCHITECTURE.md#lost", readme)
    ('no such file: LOST.md', 'no such heading: ARCHITECTURE.md#lost')
    """
    if re.match(r"[a-z]+:", target) or not target:
        return None
    path, _, anchor = target.partition("#")
    file = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
    if os.path.relpath(file, ROOT) not in repository()[1]:
        return f"no such file: {target}"
    if anchor and file.endswith(".md") and anchor not in anchors(file):
        return f"no such heading: {target}"
    return None


def documents():
    """The documents that are checked."""
    return [path for path in repository()[0] if re.fullmatch(r"(README|ARCHITECTURE|CONTRIBUTING|SECURITY)\.md|docs/.*\.md", path)]


def unlisted(pages, summary):
    """The pages, relative to the summary, that the summary has no link to.

    >>> unlisted(["SUMMARY.md", "a.md", "guide/b.md"], "- [A](a.md)\\n  - [B](guide/b.md#there)"), unlisted(["SUMMARY.md", "guide/b.md"], "- [A](b.md)")
    ([], ['guide/b.md'])
    """
    listed = {os.path.normpath((link[1] or link[2] or "").partition("#")[0]) for line in summary.splitlines() for link in LINK.finditer(line)}
    return [page for page in pages if page != "SUMMARY.md" and page not in listed]


def pages_unlisted():
    """The pages of the book that its summary does not list."""
    top = "docs/src/"
    with open(os.path.join(ROOT, top, "SUMMARY.md"), encoding="utf-8") as summary:
        return unlisted([path.removeprefix(top) for path in repository()[0] if path.startswith(top) and path.endswith(".md")], summary.read())


def main():
    found = 0
    for page in [] if sys.argv[1:] else pages_unlisted():
        print(f"docs/src/{page}:1: not in docs/src/SUMMARY.md, so not in the book")
        found += 1
    for name in sys.argv[1:] or documents():
        document = os.path.abspath(name) if sys.argv[1:] else os.path.join(ROOT, name)
        for number, line in lines_outside_fences(document):
            wrong = [missing_code(code[2].strip()) for code in CODE.finditer(line)]
            wrong += [missing_link(link[1] or link[2] or "", document) for link in LINK.finditer(CODE.sub("code", line))]
            for what in filter(None, wrong):
                print(f"{os.path.relpath(document, ROOT)}:{number}: {what}")
                found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
