//! Takes out of the environment, at the start, what `farshore run` has put into it, or a program under Farshore
//! ([`farshore_net::calls::follow`]). So the program finds the environment that was meant for it.
//!
//! | in the environment | what the program finds |
//! |---|---|
//! | `FARSHORE_OPTIONS=…`, the last of that name | nothing |
//! | `LD_PRELOAD=library`, the last of that name, or with a library before it that must be the first | nothing |
//! | `LD_PRELOAD=library:…` likewise, the last of that name, and the last `FARSHORE_OLD_PRELOAD=x` | `LD_PRELOAD=x`, where the first was |
//!
//! Without `FARSHORE_OPTIONS` all stays: something other than Farshore has loaded the library.

use core::ffi::{CStr, c_char};
use farshore_config::{OLD_PRELOAD_VARIABLE, OPTIONS_VARIABLE, PRELOAD_VARIABLE};

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Where Farshore's variables are in a list: indices.
#[derive(Default, Debug, PartialEq, Eq)]
struct Places {
    options: Option<usize>,
    preload: Option<usize>,
    /// Something follows the library in `preload`.
    shared: bool,
    old: Option<usize>,
}

/// Takes Farshore's variables out of the environment. Returns the options, if there are any.
///
/// # Safety
/// Start-up: there is one thread, and libc's list is as the kernel has made it.
pub unsafe fn take() -> Option<String> {
    // SAFETY: libc's list, one thread.
    let list = unsafe { environ };
    if list.is_null() {
        return None;
    }
    let mut count = 0;
    // SAFETY: the list ends with a null pointer, at which the loop ends.
    while !unsafe { list.wrapping_add(count).read() }.is_null() {
        count += 1;
    }
    // SAFETY: the list has `count` pointers and the null, all of which may be written: it is the process's own list.
    let entries = unsafe { core::slice::from_raw_parts_mut(list, count + 1) };
    // SAFETY: entries are C strings, which stay.
    let text = |entry: *mut c_char| unsafe { CStr::from_ptr(entry) }.to_bytes();
    let places = find(entries[..count].iter().map(|entry| text(*entry)));
    let options = text(entries[places.options?]);
    let options = String::from_utf8_lossy(&options[OPTIONS_VARIABLE.len() + 1..]).into_owned();
    // The rest of the old variable's name behind the prefix is the name that the variable gets.
    let prefix = OLD_PRELOAD_VARIABLE.len() - PRELOAD_VARIABLE.len();
    // SAFETY: within the string.
    let kept = places.old.filter(|_| places.shared).map(|old| unsafe { entries[old].add(prefix) });
    rearrange(entries, &places, kept);
    Some(options)
}

fn find<'e>(entries: impl Iterator<Item = &'e [u8]>) -> Places {
    let mut places = Places::default();
    for (index, entry) in entries.enumerate() {
        let value = |name: &str| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=");
        if value(OPTIONS_VARIABLE).is_some() {
            places.options = Some(index);
        } else if value(OLD_PRELOAD_VARIABLE).is_some() {
            places.old = Some(index);
        } else if let Some(value) = value(PRELOAD_VARIABLE) {
            places.preload = Some(index);
            let mut libraries = value.split(|&byte| byte == b':').peekable();
            libraries.next_if(|first| farshore_launch::goes_first(first));
            places.shared = libraries.nth(1).is_some();
        }
    }
    places
}

/// Moves the entries that stay to the front. `kept` takes the place of the preload.
fn rearrange<T: Copy>(entries: &mut [T], places: &Places, kept: Option<T>) {
    let mut to = 0;
    for from in 0..entries.len() {
        let goes = places.options == Some(from) || places.old == Some(from) && kept.is_some();
        let entry = if places.preload == Some(from) { kept } else { Some(entries[from]).filter(|_| !goes) };
        if let Some(entry) = entry {
            entries[to] = entry;
            to += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The environment that the program finds.
    fn left(entries: &[&'static str]) -> Vec<&'static str> {
        let places = find(entries.iter().map(|entry| entry.as_bytes()));
        assert!(places.options.is_some());
        let kept = places.old.filter(|_| places.shared).map(|old| &entries[old]["FARSHORE_O".len()..]);
        let mut entries: Vec<&str> = entries.iter().copied().chain(["end"]).collect();
        rearrange(&mut entries, &places, kept);
        let end = entries.iter().position(|entry| *entry == "end").expect("it stays");
        entries.truncate(end);
        entries
    }

    #[test]
    fn what_is_ours_goes_and_the_rest_stays_as_it_is() {
        assert_eq!(left(&["LD_PRELOAD=/l.so", "FARSHORE_OPTIONS={}"]), [""; 0]);
        assert_eq!(left(&["A=1", "LD_PRELOAD=/l.so", "B=2", "FARSHORE_OPTIONS={}", "A=3"]), ["A=1", "B=2", "A=3"]);
        assert_eq!(
            left(&["A=1", "LD_PRELOAD=/l.so:/x.so", "B=2", "FARSHORE_OPTIONS={}", "FARSHORE_OLD_PRELOAD=/x.so"]),
            ["A=1", "LD_PRELOAD=/x.so", "B=2"]
        );
        // A library that must be the first.
        assert_eq!(left(&["LD_PRELOAD=libasan.so.8:/l.so", "A=1", "FARSHORE_OPTIONS={}"]), ["A=1"]);
        assert_eq!(
            left(&["LD_PRELOAD=libasan.so.8:/l.so:/x.so", "FARSHORE_OPTIONS={}", "FARSHORE_OLD_PRELOAD=/x.so"]),
            ["LD_PRELOAD=/x.so"]
        );
        // Set, and empty.
        assert_eq!(left(&["LD_PRELOAD=/l.so:", "FARSHORE_OLD_PRELOAD=", "FARSHORE_OPTIONS={}"]), ["LD_PRELOAD="]);
    }

    #[test]
    fn the_last_of_a_name_is_ours() {
        assert_eq!(
            left(&["LD_PRELOAD=/a.so", "LD_PRELOAD=/l.so:/b.so", "FARSHORE_OPTIONS={}", "FARSHORE_OLD_PRELOAD=/b.so"]),
            ["LD_PRELOAD=/a.so", "LD_PRELOAD=/b.so"]
        );
        // The program's own variables, of names that Farshore uses as well.
        assert_eq!(
            left(&["FARSHORE_OLD_PRELOAD=x", "LD_PRELOAD=libasan.so.8:/l.so", "FARSHORE_OPTIONS={}"]),
            ["FARSHORE_OLD_PRELOAD=x"]
        );
        assert_eq!(left(&["FARSHORE_OLD_PRELOAD=x", "LD_PRELOAD=/l.so", "FARSHORE_OPTIONS={}"]), ["FARSHORE_OLD_PRELOAD=x"]);
        assert_eq!(
            left(&["FARSHORE_OLD_PRELOAD=x", "LD_PRELOAD=/l.so:/b", "FARSHORE_OPTIONS={}", "FARSHORE_OLD_PRELOAD=/b"]),
            ["FARSHORE_OLD_PRELOAD=x", "LD_PRELOAD=/b"]
        );
    }
}
