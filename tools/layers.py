#!/usr/bin/env python3
"""Checks that modules import downward: each crate in `LAYERS` has layers, and a layer imports those alone that are named behind it. And no crate includes
the source of another by `#[path]`.

    tools/layers.py               all crates
    tools/layers.py CRATE...      these alone, by their folders

A layer is a module at the root of a crate, as a rule a folder of `src`, with all that is in it. `src/lib.rs` ties the layers together and is not looked at. An
import is a path that begins with `crate::`, or by which `super::` leaves the layer; comments are no imports. What goes up, or to a sibling that is not named,
is printed, a line each: `file:line: what`. The exit status is 1 if there was any.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The layers of a crate, lowest first, and what each imports. What is named stands before.
LAYERS = {
    "crates/product/preload": {
        "ground": [],
        "fault": ["ground"],
        "memory": ["ground"],
        "family": ["ground"],
        "signals": ["ground", "fault"],
        "control": ["ground", "family"],
        "process": ["ground", "family", "signals", "control"],
        "dispatch": ["ground", "fault", "memory", "family", "signals", "control", "process"],
    },
    "crates/product/manager": {
        "seldom": [],
        "wire": [],
        "memory": [],
        "regions": ["wire", "memory"],
        "state": ["memory", "regions"],
        "kernel": ["seldom", "memory", "state"],
        "process": ["wire", "memory", "regions"],
        "connection": ["wire", "regions"],
        "keeper": ["process"],
        "snapshot": [],
        "restore": ["seldom", "wire", "regions", "process", "connection", "snapshot"],
        "chosen": ["process"],
        "tap": [],
        "monitor": [],
        "host": ["memory", "kernel", "chosen", "state", "tap"],
        "serve": ["seldom", "tap", "host"],
        "ahead": ["memory", "tap", "monitor", "host"],
        "control": ["process", "tap", "host"],
        "leave": ["host", "serve"],
        "takeover": ["seldom", "memory", "state", "keeper", "host", "serve"],
        "session": ["wire", "memory", "regions", "process", "connection", "keeper", "state", "chosen", "host", "serve", "ahead", "leave", "takeover", "control"],
        # The command, over all of the library.
        "args": [],
        "qemu": [],
        "start": ["args"],
        "vm": ["args", "qemu", "start"],
        "vms": ["args"],
        "main": ["args", "start", "vm", "vms"],
    },
    "crates/product/introspect": {
        "paging": [],
        "layout": [],
        "linear": [],
        "registers": ["paging"],
        "reverse": ["paging"],
        # Memory for tests.
        "made": ["paging"],
        "guest": ["paging", "registers", "reverse", "linear"],
        "paging_tests": ["paging", "made"],
        "guest_tests": ["paging", "registers", "reverse", "linear", "guest", "made"],
    },
    "crates/product/node": {
        "wire": [],
        "space": [],
        "exports": ["space"],
        "session": ["wire", "exports"],
        "worker": ["exports", "session"],
        "status": ["space", "exports", "session", "worker"],
        # The command, over all of the library.
        "args": [],
        "start": ["args"],
        "main": ["args", "start"],
    },
}

# Imports that go up all the same: (file, layer) and why. One that is not needed any more is an error too.
EXCEPTIONS = {}


def without_comments(text):
    """The text with comments blanked, line by line.

    >>> without_comments("a // crate::b\\nc /* crate::d\\n */ e")
    'a \\nc \\n e'
    """
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def first_names(text):
    """The first name of a path, or of each path in braces.

    >>> first_names("a::{b, c}"), first_names("{a, b::{c, d}, e as f}")
    (['a'], ['a', 'b', 'e'])
    """
    if not text.startswith("{"):
        return re.findall(r"^\w+", text)
    names, depth, item = [], 0, ""
    for char in text:
        depth += (char == "{") - (char == "}")
        if depth == 0 or (char == "," and depth == 1):
            names += first_names(item.strip().lstrip("{").strip())
            item = ""
            if depth == 0:
                break
        else:
            item += char
    return names


def imports(text, inside):
    """Line and root module of each path that leads out of the module `inside`, a list of names.

    >>> imports("use crate::{a, b::{c, d}};\\nfn f() { super::super::e::g(); super::h() } // crate::i", ["x", "y"])
    [(1, 'a'), (1, 'b'), (2, 'e')]
    """
    found = []
    for match in re.finditer(r"\bcrate::|(?<![\w:])(?:super::)+", text := without_comments(text)):
        ups = match[0].count("super::")
        if match[0] == "crate::" or ups == len(inside):
            line = text.count("\n", 0, match.start()) + 1
            found += [(line, name) for name in first_names(text[match.end() :])]
    return found


def module_of(path):
    """The names of a file's module, from its path below `src`.

    >>> module_of("a.rs"), module_of("a/mod.rs"), module_of("a/b/c.rs")
    (['a'], ['a'], ['a', 'b', 'c'])
    """
    return re.sub(r"(/mod)?\.rs$", "", path).split("/")


def wrong_in(path, text, layers):
    """What is wrong in a file of a crate with these layers: the line, the layer that is imported (None: something else), a sentence.

    >>> layers = {"low": [], "high": ["low"]}
    >>> wrong_in("high/a.rs", "use crate::low::b;", layers)
    []
    >>> wrong_in("low/b.rs", "\\nuse crate::{high, low};", layers)
    [(2, 'high', 'low imports high, which it is not to know')]
    >>> wrong_in("new.rs", "", layers)
    [(1, None, 'the module new has no layer; name it in tools/layers.py')]
    """
    inside = module_of(path)
    if inside[0] not in layers:
        return [(1, None, f"the module {inside[0]} has no layer; name it in tools/layers.py")]
    known = [inside[0], *layers[inside[0]]]
    return [
        (line, name, f"{inside[0]} imports {name}, which it is not to know")
        for line, name in imports(text, inside)
        if name in layers and name not in known
    ]


def upside_down(layers):
    """Layers that are to import one that does not stand before them.

    >>> upside_down({"low": [], "high": ["low"]}), upside_down({"low": ["high"], "high": ["low"]})
    ([], ['low imports high, which does not stand before it'])
    """
    order = list(layers)
    return [
        f"{layer} imports {name}, which does not stand before it"
        for layer, below in layers.items()
        for name in below
        if name not in order[: order.index(layer)]
    ]


def leads_out(path, text):
    """Line and path of each `#[path]` that leads out of the crate, in a file at `path` below the crate's folder.

    >>> leads_out("src/a.rs", '#[path = "b/c.rs"]\\nmod c;\\n#[path = "../tests/d.rs"]\\nmod d;')
    []
    >>> leads_out("tests/a.rs", '// #[path = "../../b.rs"]\\n#[path = "../../b/src/c.rs"]\\nmod c;\\n#[cfg_attr(loom, path = "/d.rs")]\\nmod d;')
    [(2, '../../b/src/c.rs'), (4, '/d.rs')]
    """
    text = without_comments(text)
    found = []
    for match in re.finditer(r'#\[[^\]"]*\bpath\s*=\s*"([^"]*)"', text):
        target = os.path.normpath(os.path.join(os.path.dirname(path), match[1]))
        if os.path.isabs(target) or target.split(os.sep)[0] == os.pardir:
            found.append((text.count("\n", 0, match.start()) + 1, match[1]))
    return found


def crates():
    """The folders of all crates, relative to the project's."""
    found = [folder for folder, _, names in os.walk(os.path.join(ROOT, "crates")) if "Cargo.toml" in names]
    return sorted(os.path.relpath(folder, ROOT) for folder in found)


def sources(folder):
    """The Rust files in a folder, and below."""
    return sorted(os.path.join(below, name) for below, _, names in os.walk(folder) for name in names if name.endswith(".rs"))


def check_paths(crate):
    """Where a crate includes what is not its own: lines to print."""
    root = os.path.join(ROOT, crate)
    files = sources(root)
    found = [] if files else [f"tools/layers.py:1: {crate}: there is no such crate"]
    for file in files:
        path = os.path.relpath(file, root)
        with open(file, encoding="utf-8") as text:
            found += [
                f"{crate}/{path}:{line}: #[path] leads to {target}, out of the crate; what two crates need is a crate"
                for line, target in leads_out(path, text.read())
            ]
    return found


def check_layers(crate):
    """What is wrong between a crate's layers: lines to print."""
    layers = LAYERS[crate]
    found = [f"tools/layers.py:1: {crate}: {what}" for what in upside_down(layers)]
    source = os.path.join(ROOT, crate, "src")
    files = sources(source)
    for name in layers:
        if not any(module_of(os.path.relpath(file, source))[0] == name for file in files):
            found.append(f"tools/layers.py:1: {crate}: there is no module {name}")
    needed = set()
    for file in files:
        path = os.path.relpath(file, source)
        if path == "lib.rs":
            continue
        with open(file, encoding="utf-8") as text:
            for line, name, what in wrong_in(path, text.read(), layers):
                place = f"{crate}/src/{path}"
                needed.add((place, name))
                if (place, name) not in EXCEPTIONS:
                    found.append(f"{place}:{line}: {what}")
    for at, name in EXCEPTIONS:
        if at.startswith(f"{crate}/") and (at, name) not in needed:
            found.append(f"tools/layers.py:1: {at} does not import {name} any more; take the exception out")
    return found


def main():
    chosen = [crate.rstrip("/") for crate in sys.argv[1:]] or sorted({*crates(), *LAYERS})
    found = [line for crate in chosen for line in check_paths(crate) + (check_layers(crate) if crate in LAYERS else [])]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
