//! QEMU's command line, for what it says of the guest's memory.
//!
//! QEMU maps its guest's memory as private memory of its own, unless it is told otherwise. Then nobody else can take pages out of it. So it is told: memory of a
//! shared memfd, as a *memory backend*. A command line that gives the machine one of its own is left as it is, if that is shared. One that has backends
//! for other things only (DIMMs) is not: the machine's own memory would be private.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use serde_json::Value;

/// The backend that is added.
const BACKEND: &str = "farshore";
/// The monitor that is added.
const MONITOR: &str = "farshore-monitor";
/// The kind that can be handed over.
const KIND: &str = "memory-backend-memfd";
/// The guest's memory if nothing is said of it: QEMU's own default.
const DEFAULT: &[u8] = b"128M";

/// What is told of a backend that cannot be handed over.
const USE: &str = "use memory-backend-memfd,share=on, or leave the backend out";

/// The words for QEMU, whose own name is the first, with guest memory that can be handed over.
///
/// # Errors
/// One line: what on this command line is in the way.
pub fn with_shared_memory(words: &[OsString]) -> Result<Vec<OsString>, String> {
    let (name, arguments) = words.split_first().ok_or("no QEMU given")?;
    let mut size = DEFAULT.to_vec();
    let mut ids = Vec::new();
    let (mut machine, mut nodes) = (None, Vec::new());
    for pair in arguments.windows(2) {
        let (option, value) = (pair[0].as_bytes(), pair[1].as_bytes());
        // One dash or two, as QEMU reads it.
        let Some(option) = option.strip_prefix(b"--").or(option.strip_prefix(b"-")) else { continue };
        match option {
            b"m" => size = size_of(value).map_or(size, <[u8]>::to_vec),
            b"object" => ids.extend(backend(&pair[1])?),
            b"M" | b"machine" => machine = named(&pair[1], "memory-backend=").or(machine),
            b"numa" => nodes.extend(named(&pair[1], "memdev=")),
            b"readconfig" => is_silent(&pair[1])?,
            b"mem-path" => return Err(format!("-mem-path gives the guest memory of a file, which is not shared: {USE}")),
            _ => {}
        }
    }
    // QEMU takes one of the two.
    let mut used = machine.into_iter().chain(nodes).peekable();
    if used.peek().is_some() {
        return match used.find(|id| !ids.contains(id)) {
            Some(id) => Err(format!("the guest's memory is '{id}', and no -object on this command line has that id: {USE}")),
            None => Ok(words.to_vec()),
        };
    }
    let object = [format!("{KIND},id={BACKEND},share=on,size=").as_bytes(), &in_bytes(&size)].concat();
    let added = ["-object".into(), OsString::from_vec(object), "-machine".into(), format!("memory-backend={BACKEND}").into()];
    Ok([name.clone()].into_iter().chain(added).chain(arguments.iter().cloned()).collect())
}

/// The words with a monitor for this process' manager: `socket` is one end of a connection, `config` a file for the description of it, by its descriptor.
///
/// The description comes by a file, since a monitor on the command line would take the place of the one that QEMU has by itself.
#[must_use]
pub fn with_monitor(words: &[OsString], config: i32) -> Vec<OsString> {
    let added = ["-readconfig".into(), format!("/proc/self/fd/{config}").into()];
    words.iter().take(1).cloned().chain(added).chain(words.iter().skip(1).cloned()).collect()
}

/// What such a file says.
#[must_use]
pub fn monitor(socket: i32) -> String {
    format!(
        "[chardev \"{MONITOR}\"]\n  backend = \"socket\"\n  fd = \"{socket}\"\n[mon \"{MONITOR}\"]\n  mode = \"control\"\n  chardev = \"{MONITOR}\"\n"
    )
}

/// The size of a `-m`: `4G`, `size=4G`, `4G,slots=2,maxmem=8G`.
fn size_of(value: &[u8]) -> Option<&[u8]> {
    let mut parts = value.split(|byte| *byte == b',');
    // What is said last counts.
    let named = parts.clone().filter_map(|part| part.strip_prefix(b"size=")).next_back();
    named.or_else(|| parts.next().filter(|first| !first.is_empty() && !first.contains(&b'=')))
}

/// A plain number is in MiB there, and in bytes for a backend.
fn in_bytes(size: &[u8]) -> Vec<u8> {
    let is_plain = size.last().is_some_and(u8::is_ascii_digit);
    if is_plain { [size, b"M"].concat() } else { size.to_vec() }
}

/// What an option says last behind a key.
fn named(value: &OsStr, key: &str) -> Option<String> {
    value.to_string_lossy().split(',').filter_map(|part| part.strip_prefix(key)).next_back().map(String::from)
}

/// Refuses a file of options that says something of the guest's memory: it would count in place of ours.
fn is_silent(value: &OsStr) -> Result<(), String> {
    // One that cannot be read is QEMU's to name.
    let text = std::fs::read(value).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    match ["memory-backend", "mem-path", "[memory", "memdev"].iter().find(|word| text.contains(**word)) {
        Some(word) => Err(format!(
            "'{}' (-readconfig) says something of the guest's memory ('{word}'), which counts only on the command line here: write -m, -object and -machine there",
            value.display()
        )),
        None => Ok(()),
    }
}

/// The id of an object that is a memory backend.
fn backend(value: &OsStr) -> Result<Option<String>, String> {
    let text = value.to_string_lossy();
    let (kind, share, id) = if text.starts_with('{') {
        let Ok(json) = serde_json::from_str::<Value>(&text) else { return Ok(None) };
        let text = |key: &str| json[key].as_str().unwrap_or_default().to_string();
        (text("qom-type"), json["share"].as_bool(), text("id"))
    } else {
        let mut parts = text.split(',');
        let kind = parts.next().unwrap_or_default();
        let kind = kind.strip_prefix("qom-type=").unwrap_or(kind).to_string();
        let said = parts.filter_map(|part| part.strip_prefix("share=")).next_back();
        (kind, said.map(|said| matches!(said, "on" | "yes" | "true" | "y")), named(value, "id=").unwrap_or_default())
    };
    if !kind.starts_with("memory-backend-") {
        return Ok(None);
    }
    if kind != KIND {
        return Err(format!("the guest's memory is of a {kind}, from which no page can be taken: {USE}"));
    }
    // Shared unless it says otherwise.
    if share == Some(false) {
        return Err(format!("the guest's {KIND} is not shared, so no page can be taken from it: {USE}"));
    }
    Ok(Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &[&str]) -> Result<Vec<String>, String> {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        Ok(with_shared_memory(&words)?.into_iter().map(|word| word.into_string().expect("it was text")).collect())
    }

    #[test]
    fn the_guest_gets_shared_memory_of_its_size() {
        for (line, size) in [
            (&["qemu"][..], "128M"),
            (&["qemu", "-m", "512"], "512M"),
            (&["qemu", "-m", "1.5G", "-nographic"], "1.5G"),
            (&["qemu", "--m", "size=4G,slots=2,maxmem=8G"], "4G"),
            (&["qemu", "-m", "slots=2,size=256"], "256M"),
            (&["qemu", "-m", "2048,slots=2,maxmem=8G"], "2048M"),
            (&["qemu", "-m", "slots=2,maxmem=8G"], "128M"),
            (&["qemu", "-m", "1G", "-m", "2G"], "2G"),
            (&["qemu", "-m", "1G,size=2G,size=3G"], "3G"),
            (&["qemu", "-machine", "q35,mem-merge=off", "-m", "1G", "-object", "rng-random,id=rng0"], "1G"),
        ] {
            let words = of(line).expect("nothing is in the way");
            let object = format!("memory-backend-memfd,id=farshore,share=on,size={size}");
            assert_eq!(words[..5], ["qemu", "-object", &object, "-machine", "memory-backend=farshore"], "{line:?}");
            assert_eq!(words[5..], line[1..]);
        }
    }

    #[test]
    fn a_monitor_comes_in_front() {
        let words = ["qemu", "-m", "1G"].map(OsString::from);
        assert_eq!(with_monitor(&words, 7), ["qemu", "-readconfig", "/proc/self/fd/7", "-m", "1G"].map(OsString::from));
        assert!(monitor(9).contains("fd = \"9\""));
    }

    #[test]
    fn a_backend_of_its_own_stays_if_it_is_shared() {
        for object in [
            "memory-backend-memfd,id=ram,size=1G,share=on",
            "memory-backend-memfd,id=ram,size=1G",
            "qom-type=memory-backend-memfd,id=ram,size=1G",
            r#"{"qom-type":"memory-backend-memfd","id":"ram","size":1073741824,"share":true}"#,
        ] {
            for used in [["-machine", "q35,memory-backend=ram"], ["-M", "memory-backend=ram"], ["-numa", "node,memdev=ram"]] {
                let line = [&["qemu", "-object", object][..], &used].concat();
                assert_eq!(of(&line).expect("it is shared"), line);
            }
            let words =
                of(&["qemu", "-object", object, "-device", "pc-dimm,memdev=ram"]).expect("the machine has none of its own");
            assert_eq!(words[3..5], ["-machine", "memory-backend=farshore"]);
        }
        for (line, part) in [
            (["-object", "memory-backend-ram,id=ram,size=1G"], "memory-backend-ram, from which"),
            (["-object", "memory-backend-file,id=ram,size=1G,mem-path=/dev/shm/x,share=on"], "memory-backend-file"),
            (["-object", "memory-backend-memfd,id=ram,size=1G,share=off"], "is not shared"),
            (["-object", r#"{"qom-type":"memory-backend-memfd","share":false}"#], "is not shared"),
            (["-mem-path", "/dev/hugepages"], "-mem-path"),
            (["-machine", "q35,memory-backend=ram"], "no -object on this command line"),
            (["-numa", "node,memdev=ram"], "no -object on this command line"),
        ] {
            let why = of(&[&["qemu"], &line[..]].concat()).unwrap_err();
            assert!(why.contains(part) && why.contains("memory-backend-memfd,share=on"), "{why}");
        }
    }
}
