//! Who may use a server that everybody can reach: clients that know a token. A memory node wants it at the beginning of an export's name, the daemon in a header.
//!
//! A name is `TOKEN`, or `TOKEN/ANYTHING`: so one token has any number of exports, and no client reaches an export of another
//! token. Comparing takes as long for a wrong token as for the right one, whatever they have in common.

use std::hint::black_box;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Bytes of a token: long enough that nobody finds one by trying, short enough for a name.
const LEN: std::ops::RangeInclusive<usize> = 16..=128;
/// The most tokens.
const MOST: usize = 4096;
/// The largest file that is read, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// The tokens that a server knows.
#[derive(PartialEq, Eq)]
pub struct Tokens(Vec<[u8; *LEN.end()]>);

impl std::fmt::Debug for Tokens {
    /// They are secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

fn padded(token: &[u8]) -> [u8; *LEN.end()] {
    let mut all = [0; *LEN.end()];
    all[..token.len()].copy_from_slice(token);
    all
}

/// Whether two are the same, in a time that says nothing.
fn same(one: &[u8; *LEN.end()], other: &[u8; *LEN.end()]) -> bool {
    // `black_box`: the compiler must not end the loop where the outcome is clear.
    let differing = one.iter().zip(other).fold(0, |differing, (a, b)| black_box(differing | (a ^ b)));
    black_box(differing) == 0
}

impl Tokens {
    /// Reads a file of them.
    ///
    /// # Errors
    /// One line: it cannot be read, others could read it, or a line is no token.
    pub fn read(path: &Path) -> Result<Tokens, String> {
        let shown = path.display();
        let failed = |error: std::io::Error| format!("cannot read the tokens in '{shown}' ({error}): check its path and rights");
        let data = std::fs::metadata(path).map_err(failed)?;
        let mode = data.permissions().mode() & 0o7777;
        if data.is_file() && mode & 0o077 != 0 {
            return Err(format!("others can read or change the tokens in '{shown}' (its mode is {mode:o}): chmod 600 '{shown}'"));
        }
        let user = rustix::process::geteuid().as_raw();
        if data.is_file() && ![0, user].contains(&data.uid()) {
            return Err(format!(
                "'{shown}' with the tokens is user {}'s, who could change them: give a file of your own",
                data.uid()
            ));
        }
        if data.size() > FILE_MAX {
            return Err(format!("the file of tokens '{shown}' is larger than 1 MiB: give one with a token in each line"));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Tokens::of(&text).map_err(|why| format!("{why} in the file of tokens '{shown}'"))
    }

    /// The tokens of a text, one a line; empty lines and those that begin with `#` are none.
    ///
    /// # Errors
    /// What is wrong with which line (without the line, which is a secret).
    pub fn of(text: &str) -> Result<Tokens, String> {
        let lines = (1..).zip(text.lines()).map(|(number, line): (usize, &str)| (number, line.trim()));
        let mut tokens = Vec::new();
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            // Characters that stand for themselves in an address of an export.
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
            if !line.bytes().all(is_plain) {
                return Err(format!("line {number} has other characters than A-Z, a-z, 0-9, '-', '_', '.' and '~'"));
            }
            if !LEN.contains(&line.len()) {
                return Err(format!(
                    "line {number} has {} characters, and a token has {} to {}; 'openssl rand -hex 16' makes one",
                    line.len(),
                    LEN.start(),
                    LEN.end()
                ));
            }
            tokens.push(padded(line.as_bytes()));
        }
        match tokens.len() {
            0 => Err("there is no token: write one in each line, of 'openssl rand -hex 16',".into()),
            1..=MOST => Ok(Tokens(tokens)),
            count => Err(format!("there are {count} tokens, and {MOST} at most can be")),
        }
    }

    /// Whether a name begins with one of them.
    #[must_use]
    pub fn admit(&self, name: &[u8]) -> bool {
        let token = name.split(|&byte| byte == b'/').next().unwrap_or_default();
        // The length of what a client sends is no secret. No token has a zero byte, which would be like the end of a shorter one.
        if !LEN.contains(&token.len()) || token.contains(&0) {
            return false;
        }
        let given = padded(token);
        // All of them, so that the time does not say which it was.
        self.0.iter().fold(false, |found, token| found | same(token, &given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0123456789abcdef";

    #[test]
    fn a_name_begins_with_a_token() {
        let tokens = Tokens::of(&format!("# of us\n\n  {ONE}  \nABCDEFGHIJKLMNOP-_.~\n")).expect("two tokens");
        for name in [ONE, "0123456789abcdef/", "0123456789abcdef/job/1", "ABCDEFGHIJKLMNOP-_.~/x"] {
            assert!(tokens.admit(name.as_bytes()), "{name}");
        }
        for name in
            ["", "/", "0123456789abcde", "0123456789abcdee", "0123456789abcdef0", "x/0123456789abcdef", "0123456789abcdef\0"]
        {
            assert!(!tokens.admit(name.as_bytes()), "{name}");
        }
        assert!(!tokens.admit(&[b'0'; 4096]));
        assert_eq!(format!("{tokens:?}"), "2 tokens");
    }

    #[test]
    fn what_is_no_token_is_told_without_it() {
        for (text, why) in [
            ("", "no token"),
            ("# only this", "no token"),
            ("short", "line 1 has 5 characters"),
            (&format!("{ONE}\n{}", "x".repeat(129)), "line 2 has 129 characters"),
            (&format!("{ONE}\n{ONE}/"), "line 2 has other characters"),
            (&format!("{ONE} {ONE}"), "line 1 has other characters"),
        ] {
            let error = Tokens::of(text).expect_err(text);
            assert!(error.contains(why) && !error.contains(ONE), "{error}");
        }
    }
}
