#!/usr/bin/env python3
"""Builds the book of `docs` with mdBook, and checks that the links and anchors of the built pages lead somewhere.

    tools/book.py                 build to target/book, then check
    tools/book.py --check DIR     check the pages in DIR alone

A link within the book must lead to a file that was built, and its `#anchor` to an element with that id. Links that leave the book (README.md, sources) are
made for the repository: tools/paths.py checks them where they are written, and here they are only counted. Links to other sites are not followed.

What leads nowhere is printed, a line each: `page: link`. The exit status is 1 if there was any, or if mdBook failed.
"""

import html.parser
import os
import shutil
import subprocess
import sys
import urllib.parse

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")))


class Page(html.parser.HTMLParser):
    """The ids and the links of a page.

    >>> page = Page('<h1 id="a"><a href="b.html#c">x</a></h1><img src="d.svg">')
    >>> sorted(page.ids), page.links
    (['a'], ['b.html#c', 'd.svg'])
    """

    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value)
            elif value and ((tag, name) == ("a", "href") or (tag, name) == ("img", "src")):
                self.links.append(value)


def check(book):
    """What leads nowhere, and how many links were followed and how many leave the book.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as book:
    ...     for name, text in (("a.html", '<p id="x"><a href="b.html#y"></a><a href="../README.html"></a><a href="#x"></a>'),
    ...                        ("b.html", '<p id="y"><a href="a.html#z"></a><a href="c.html"></a><a href="https://example.org/"></a>')):
    ...         with open(os.path.join(book, name), "w") as file: _ = file.write(text)
    ...     check(book)
    (['b.html: a.html#z', 'b.html: c.html'], 4, 1)
    """
    pages = {}
    for folder, _, names in os.walk(book):
        for name in names:
            # The page for addresses that are not there has links from the site's root. All pages on one, for printing, have links of other folders.
            if name.endswith(".html") and name not in ("404.html", "print.html"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    pages[path] = Page(file.read())
    wrong, followed, leave = [], 0, 0
    for path, page in sorted(pages.items()):
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            goal = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(parts.path))) if parts.path else path
            if os.path.relpath(goal, book).startswith(".."):
                leave += 1
                continue
            if os.path.basename(goal) == "print.html":
                continue
            followed += 1
            anchor = urllib.parse.unquote(parts.fragment)
            if not os.path.exists(goal) or (anchor and goal in pages and anchor not in pages[goal].ids):
                wrong.append(f"{os.path.relpath(path, book)}: {link}")
    return wrong, followed, leave


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        book = os.path.abspath(sys.argv[2])
    elif len(sys.argv) == 1:
        book = os.path.join(TARGET, "book")
        program = shutil.which("mdbook", path=os.path.join(TARGET, "tools", "bin") + os.pathsep + os.environ.get("PATH", os.defpath))
        if program is None:
            print("mdbook is not installed: tools/setup.sh --book", file=sys.stderr)
            return 1
        if subprocess.run([program, "build", os.path.join(ROOT, "docs"), "--dest-dir", book], check=False).returncode != 0:
            return 1
    else:
        print(__doc__, file=sys.stderr)
        return 2
    wrong, followed, leave = check(book)
    for line in wrong:
        print(line)
    print(f"{followed} links within the book, {len(wrong)} of them lead nowhere; {leave} leave the book")
    # A book without links was not built.
    return 1 if wrong or followed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
