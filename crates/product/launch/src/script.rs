//! How a file begins: the kernel's rules for `#!`.

use crate::{HEAD, Obstacle, elf};
use core::ops::Range;
use farshore_sys::fd::{self, Fd};

/// Where in a file's beginning the interpreter's name is.
pub type Line = Range<usize>;

/// What a file is by its beginning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An ELF file, of whatever kind.
    Elf,
    /// A script, with its interpreter's name.
    Script(Line),
    /// Nothing that the kernel itself can execute.
    Other,
}

/// Reads the beginning of `file` into `head`, which the kernel takes as filled up with zeros.
pub fn read(file: &Fd, head: &mut [u8]) -> Result<Kind, Obstacle> {
    head.fill(0);
    let mut done = 0;
    while done < HEAD {
        match fd::pread(file, &mut head[done..HEAD], done as u64).map_err(Obstacle::Unreadable)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(kind(head))
}

fn kind(head: &[u8]) -> Kind {
    if head.starts_with(elf::MAGIC) { Kind::Elf } else { interpreter(head).map_or(Kind::Other, Kind::Script) }
}

/// The interpreter's name, as `load_script` in the kernel finds it: behind spaces and tabs, up to a space, a tab, a zero byte
/// or the line's end. If the line does not end within `head`, there must be something behind the name, or
/// it may go on. The name may be empty.
fn interpreter(head: &[u8]) -> Option<Line> {
    let rest = head.strip_prefix(b"#!")?;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let newline = rest.iter().position(|&byte| byte == b'\n');
    let line = &rest[..newline.unwrap_or(rest.len())];
    let start = line.iter().position(|byte| !is_blank(byte))?;
    let length = line[start..].iter().position(|byte| is_blank(byte) || *byte == 0);
    if length.is_none() && newline.is_none() {
        return None;
    }
    let end = length.map_or(line.len(), |length| start + length);
    Some(2 + start..2 + end)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::borrow::ToOwned;
    use std::vec::Vec;

    fn of(text: &[u8]) -> Option<Vec<u8>> {
        let mut head = [0; HEAD];
        head[..text.len()].copy_from_slice(text);
        interpreter(&head).map(|line| head[line].to_owned())
    }

    #[test]
    fn a_scripts_first_line_is_read_as_the_kernel_does() {
        assert_eq!(of(b"#!/bin/sh\n").as_deref(), Some(&b"/bin/sh"[..]));
        assert_eq!(of(b"#! \t/bin/sh -e\nrest").as_deref(), Some(&b"/bin/sh"[..]));
        assert_eq!(of(b"#!/bin/sh").as_deref(), Some(&b"/bin/sh"[..]));
        assert_eq!(of(b"#!/bin/sh\t").as_deref(), Some(&b"/bin/sh"[..]));
        assert_eq!(of(b"#!\n/bin/sh"), None);
        assert_eq!(of(b"#! \t\n/bin/sh"), None);
        assert_eq!(of(b"echo hello\n"), None);
        // The kernel looks for a file without a name.
        assert_eq!(of(b"#!\0/bin/sh\n").as_deref(), Some(&b""[..]));
        assert_eq!(of(b"").as_deref(), None);
        assert_eq!(of(b"#!").as_deref(), Some(&b""[..]));
    }

    #[test]
    fn a_name_that_may_go_on_is_none() {
        let mut head = [b'x'; HEAD];
        head[..3].copy_from_slice(b"#!/");
        assert_eq!(interpreter(&head), None);
        head[HEAD - 1] = b'\n';
        assert_eq!(interpreter(&head), Some(2..HEAD - 1));
        head[HEAD - 1] = b' ';
        assert_eq!(interpreter(&head), Some(2..HEAD - 1));
        head[HEAD - 1] = b'x';
        head[100] = b'\t';
        assert_eq!(interpreter(&head), Some(2..100));
        assert_eq!(interpreter(&[b' '; HEAD]), None);
    }

    #[test]
    fn kinds() {
        assert_eq!(kind(b"\x7fELF\x02"), Kind::Elf);
        assert_eq!(kind(b"#!/x\n"), Kind::Script(2..4));
        assert_eq!(kind(b"MZ"), Kind::Other);
    }
}
