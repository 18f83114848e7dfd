//! The memory node: RAM of this machine for programs of others, by NBD. `farshore node` is its command.
//!
//! ```text
//!  listener ─▶ worker (one a core) ─▶ session ─▶ exports ─▶ space ─▶ budget
//!  accepts     epoll, sockets         protocol   by name    memory   --memory
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`wire`] | the bytes of the protocol |
//! | [`session`] | one client's conversation, without input and output |
//! | [`exports`] | exports that come with their first client and go after their last |
//! | [`space`] | the memory of an export, within the budget of all |
//! | [`token`] | who may have an export |
//! | [`worker`] | the threads that serve connections |
//! | [`status`] | what is told of a node: a line, and metrics |
//!
//! Nothing here waits for one client. What a connection holds is bounded ([`session`]), and so are the connections, the exports
//! and their memory. What a client sends is believed in nothing: it gets an error of the protocol, or its connection ends.

pub mod exports;
pub mod session;
pub mod space;
pub mod status;
pub mod token;
mod wire;
pub mod worker;

use std::io::Write;

/// A line on stderr. Where that is closed, nobody reads it.
pub fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "farshore: {}", farshore_config::plain(text));
}

/// Bytes, for people: `8 GiB`, `1.5 GiB`.
#[must_use]
pub fn amount(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift != 0) {
        None => format!("{bytes} bytes"),
        Some((shift, unit)) => {
            let tenths = (u128::from(bytes) * 10) >> shift;
            match tenths % 10 {
                0 => format!("{} {unit}", tenths / 10),
                tenth => format!("{}.{tenth} {unit}", tenths / 10),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn amounts_are_short() {
        for (bytes, text) in
            [(0, "0 bytes"), (4096, "4 KiB"), (3 << 29, "1.5 GiB"), (8 << 30, "8 GiB"), (u64::MAX, "16777215.9 TiB")]
        {
            assert_eq!(super::amount(bytes), text);
        }
    }
}
