//! The crate's layers: of this crate, a module names those alone that are before it in [`ORDER`]. So the scheduler knows no service, and no two
//! modules of the list name each other. It reads the sources as text; tests among them may name what they like.
#![cfg(not(loom))]

use std::fs;
use std::path::Path;

/// The modules of the three layers, the lowest first. `lib.rs`, `runtime.rs`, `ffi.rs` and its folder are above them all, and nobody names those.
const ORDER: [&str; 35] = [
    // The kernel, and the library that serves page faults.
    "ground::error",
    "ground::os",
    "ground::own",
    "ground::library",
    "ground::feed",
    "ground::ring",
    // Unithreads, and how workers run them.
    "scheduler::list",
    "scheduler::wait",
    "scheduler::doze",
    "scheduler::lifetime",
    "scheduler::switch",
    "scheduler::cost",
    "scheduler::timers",
    "scheduler::dispatch",
    "scheduler::exceptions",
    "scheduler::pool",
    "scheduler::heir",
    "scheduler::config",
    "scheduler::record",
    "scheduler::stamps",
    "scheduler::shared",
    "scheduler::life",
    "scheduler::worker",
    "scheduler::overflow",
    "scheduler::hold",
    "scheduler::join",
    "scheduler::api",
    "scheduler::handle",
    // What they are good for.
    "services::allocator",
    "services::far",
    "services::channel",
    "services::io",
    "services::sockets",
    "services::request",
    "services::net",
];

/// The layers, which are no more than lists of their modules.
const LAYERS: [&str; 3] = ["ground", "scheduler", "services"];

/// Where in [`ORDER`] a path is that begins behind `crate::`.
fn place(path: &str) -> Option<usize> {
    ORDER.iter().position(|entry| path == *entry || path.strip_prefix(entry).is_some_and(|rest| rest.starts_with("::")))
}

/// The source without comments and without its tests.
fn code(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// All paths of a tree as in `a::{b, c::{d, e}}`, which begins the text.
fn paths(tree: &str) -> Vec<String> {
    let end = tree.find(|c: char| !(c.is_alphanumeric() || "_:*".contains(c))).unwrap_or(tree.len());
    let (path, rest) = tree.split_at(end);
    let Some(group) = rest.strip_prefix('{') else { return vec![path.trim_end_matches(':').to_string()] };
    let (mut depth, mut begin, mut found) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        if depth == 0 && (c == ',' || c == '}') {
            found.extend(paths(group[begin..at].trim()).into_iter().map(|part| format!("{path}{part}")));
            begin = at + 1;
        }
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
    }
    found
}

/// What module `module` names of this crate, from the crate's root on.
fn named(module: &str, code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for word in ["crate::", "super::"] {
        for (at, _) in code.match_indices(word) {
            let before = &code[..at];
            // `super::super::` is looked at from its beginning, and `pub(in crate::services)` names nothing.
            if before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') || before.ends_with("(in ") {
                continue;
            }
            for path in paths(&code[at..]) {
                let (mut from, mut path) = (module, path.as_str());
                if let Some(rest) = path.strip_prefix("crate::") {
                    (from, path) = ("", rest);
                }
                while let Some(rest) = path.strip_prefix("super::") {
                    (from, path) = (from.rsplit_once("::").map_or("", |(parent, _)| parent), rest);
                }
                found.push(if from.is_empty() { path.to_string() } else { format!("{from}::{path}") });
            }
        }
    }
    found
}

/// What is wrong with the source of module `module`.
fn wrong(module: &str, source: &str) -> Vec<String> {
    if LAYERS.contains(&module) {
        return Vec::new();
    }
    let Some(here) = place(module) else { return vec![format!("{module} is not in ORDER")] };
    let judge = |path: String| match place(&path) {
        Some(there) if there <= here => None,
        Some(_) => Some(format!("{module} names {path}, which is above it")),
        None => Some(format!("{module} names {path} without its layer, or it is not in ORDER")),
    };
    named(module, &code(source)).into_iter().filter_map(judge).collect()
}

/// Calls `each` for the files of a folder, with their modules.
fn walk(folder: &Path, module: &str, each: &mut impl FnMut(&str, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let inner = [module, name].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("::");
        if path.is_dir() {
            walk(&path, &inner, each);
        } else if name != "tests" {
            each(if name == "mod" { module } else { &inner }, &fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn no_module_names_one_above_it() {
    let (mut found, mut seen) = (Vec::new(), Vec::new());
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut |module, source| {
        if !["lib", "runtime", "ffi"].contains(&module) && !module.starts_with("ffi::") {
            found.extend(wrong(module, source));
            seen.extend(place(module));
        }
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
    for (at, module) in ORDER.iter().enumerate() {
        assert!(seen.contains(&at), "ORDER has {module}, which is gone");
    }
}

#[test]
fn a_module_that_names_one_above_it_is_found() {
    for (module, source) in [
        ("scheduler::worker", "use crate::services::net::UdpSocket;"),
        ("scheduler::worker", "use crate::{ground::ring::Ring, services::{io, far}};"),
        ("scheduler::worker::untold", "use super::super::api::sleep;"),
        ("scheduler::worker", "fn f() { crate::services::request::run(); }"),
        ("scheduler::worker", "use crate::channel;"),
        ("scheduler::worker", "use crate::runtime::Runtime;"),
        ("scheduler::pool", "use super::worker::{self, Worker};"),
        ("scheduler::pool", "use super::*;"),
        ("ground::ring", "use crate::scheduler::{wait::Token};"),
        ("services::io", "use super::sockets::deadline;"),
        ("services::lost", ""),
    ] {
        assert!(!wrong(module, source).is_empty(), "{module}: {source}");
    }
    for (module, source) in [
        (
            "scheduler::worker",
            "// use crate::services::io;\nuse crate::scheduler::{life, wait::{Park, Token}};\nuse untold::Untold;",
        ),
        ("scheduler::worker", "#[cfg(test)]\nmod tests {\n    use crate::services::io;\n}"),
        ("services::net::service", "use super::limits::{Limits, Tally};\npub(in crate::services) fn f() {}"),
        ("services::request", "use crate::services::sockets::addr::Name;"),
    ] {
        assert_eq!(wrong(module, source), [""; 0], "{module}: {source}");
    }
}
