//! The exports: made when a client asks for a name, and removed some time after its last connection.
//!
//! An export has its own [`Space`], so no client reads what another has written. All of them share the budget. It is kept for a
//! while without a connection: a network that was cut for a moment costs nobody his pages.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::space::{Budget, Pages, Space};
use farshore_command::token::Tokens;

/// What holds for all exports.
#[derive(Debug)]
pub struct Rules {
    /// Bytes that each seems to have.
    pub bytes: u64,
    /// How many there may be.
    pub most: usize,
    /// How long each is kept after its last connection.
    pub keep: Duration,
    /// Who may have one; none: whoever connects.
    pub tokens: Option<Tokens>,
    /// How large the kernel's pages are to be.
    pub pages: Pages,
}

/// Why a client does not get an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Its name begins with no token.
    Stranger,
    /// There are as many as there may be.
    Many,
    /// The kernel has no addresses or no memory for its table.
    Memory(Errno),
}

#[derive(Debug)]
struct Export {
    space: Arc<Space>,
    connections: usize,
    /// When the last connection ended.
    left: Option<Instant>,
}

#[derive(Default, Debug)]
struct Table {
    by_name: HashMap<Box<[u8]>, Export>,
    /// The node ends.
    closed: bool,
}

/// All exports of a node.
#[derive(Debug)]
pub struct Exports {
    rules: Rules,
    budget: Arc<Budget>,
    table: Mutex<Table>,
    /// An export has lost its last connection, or the node ends.
    changed: Condvar,
}

impl Exports {
    /// A node that has no exports yet.
    #[must_use]
    pub fn new(rules: Rules, budget: Arc<Budget>) -> Arc<Exports> {
        Arc::new(Exports { rules, budget, table: Mutex::default(), changed: Condvar::new() })
    }

    /// What holds for all.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What all share.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a client may have an export of this name.
    ///
    /// # Errors
    /// Its name begins with no token.
    pub fn admit(&self, name: &[u8]) -> Result<(), Refused> {
        let is_known = self.rules.tokens.as_ref().is_none_or(|tokens| tokens.admit(name));
        if is_known { Ok(()) } else { Err(Refused::Stranger) }
    }

    /// One more connection to the export of this name, which is made if there is none.
    ///
    /// # Errors
    /// The client may not have it, or the node has none to give.
    pub fn enter(self: &Arc<Exports>, name: &[u8]) -> Result<Entered, Refused> {
        self.admit(name)?;
        let mut table = self.table();
        if !table.by_name.contains_key(name) {
            if table.by_name.len() >= self.rules.most {
                return Err(Refused::Many);
            }
            let space = Space::new(self.rules.bytes, self.rules.pages, self.budget.clone()).map_err(Refused::Memory)?;
            table.by_name.insert(name.into(), Export { space: Arc::new(space), connections: 0, left: None });
        }
        let export = table.by_name.get_mut(name).expect("it is there, or was made just now");
        export.connections += 1;
        export.left = None;
        Ok(Entered { exports: self.clone(), name: name.into(), space: export.space.clone() })
    }

    /// The names of all exports, if whoever asks may know them; in it `None` if they have more than `most` bytes.
    #[must_use]
    pub fn names(&self, most: usize) -> Option<Option<Vec<Box<[u8]>>>> {
        // Names have tokens in them.
        self.rules.tokens.is_none().then(|| {
            let table = self.table();
            let sum: usize = table.by_name.keys().map(|name| name.len()).sum();
            (sum <= most).then(|| table.by_name.keys().cloned().collect())
        })
    }

    /// How many exports there are, and how many of them have a connection.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let table = self.table();
        (table.by_name.len(), table.by_name.values().filter(|export| export.connections > 0).count())
    }

    /// Removes exports when their time has come, until [`Exports::close`].
    pub fn tend(&self) {
        let mut table = self.table();
        while !table.closed {
            let now = Instant::now();
            let keep = self.rules.keep;
            let due = |export: &Export| export.left.is_some_and(|left| now.duration_since(left) >= keep);
            let old: Vec<Export> = table.by_name.extract_if(|_, export| due(export)).map(|(_, export)| export).collect();
            if !old.is_empty() {
                // Gigabytes take the kernel a while, in which clients can come.
                drop(table);
                drop(old);
                table = self.table();
                continue;
            }
            let next = table.by_name.values().filter_map(|export| export.left).min();
            table = match next {
                Some(left) => {
                    let wait = (left + keep).saturating_duration_since(now);
                    self.changed.wait_timeout(table, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(table).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Ends [`Exports::tend`].
    pub fn close(&self) {
        self.table().closed = true;
        self.changed.notify_all();
    }
}

/// A connection to an export.
#[derive(Debug)]
pub struct Entered {
    exports: Arc<Exports>,
    name: Box<[u8]>,
    space: Arc<Space>,
}

impl Entered {
    /// The export's memory.
    #[must_use]
    pub fn space(&self) -> &Space {
        &self.space
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut table = self.exports.table();
        // An export with a connection is never removed, so this is the same one.
        if let Some(export) = table.by_name.get_mut(&self.name) {
            export.connections -= 1;
            if export.connections == 0 {
                export.left = Some(Instant::now());
                self.exports.changed.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::PAGE;

    fn exports(keep: Duration, tokens: Option<&str>) -> Arc<Exports> {
        let tokens = tokens.map(|text| Tokens::of(text).expect("tokens"));
        let rules = Rules { bytes: 1 << 20, most: 2, keep, tokens, pages: Pages::Small };
        Exports::new(rules, Arc::new(Budget::new(10)))
    }

    fn bytes(entered: &Entered) -> Vec<u8> {
        let mut out = Vec::new();
        entered.space().read(0, 2, &mut out);
        out
    }

    /// Runs [`Exports::tend`] until `done`.
    fn tended(exports: &Arc<Exports>, done: impl Fn() -> bool) {
        let tending = exports.clone();
        let thread = std::thread::spawn(move || tending.tend());
        while !done() {
            std::thread::sleep(Duration::from_millis(1));
        }
        exports.close();
        thread.join().expect("it ends");
    }

    #[test]
    fn a_name_is_a_memory_of_its_own() {
        let exports = exports(Duration::from_secs(1000), None);
        let (a, b) = (exports.enter(b"a").unwrap(), exports.enter(b"b").unwrap());
        a.space().write(0, b"aa").unwrap();
        assert_eq!((bytes(&a), bytes(&b)), (b"aa".to_vec(), vec![0; 2]));
        assert_eq!(bytes(&exports.enter(b"a").unwrap()), b"aa");
        assert_eq!(exports.enter(b"c").expect_err("there are two"), Refused::Many);
        assert_eq!(exports.count(), (2, 2));
        assert_eq!(exports.names(1), Some(None));
        let mut names = exports.names(2).flatten().expect("nobody's secret");
        names.sort();
        assert_eq!(names, [b"a".as_slice().into(), b"b".as_slice().into()] as [Box<[u8]>; 2]);
    }

    #[test]
    fn it_is_kept_for_a_while_and_then_gone() {
        let kept = exports(Duration::from_secs(1000), None);
        kept.enter(b"a").unwrap().space().write(0, b"aa").unwrap();
        assert_eq!((kept.count(), bytes(&kept.enter(b"a").unwrap())), ((1, 0), b"aa".to_vec()));

        let exports = exports(Duration::from_millis(20), None);
        let held = exports.enter(b"held").unwrap();
        held.space().write(0, b"hh").unwrap();
        exports.enter(b"gone").unwrap().space().write(PAGE, b"gg").unwrap();
        assert_eq!(exports.budget().taken(), 2);
        tended(&exports, || exports.count() == (1, 1) && exports.budget().taken() == 1);
        assert_eq!(bytes(&held), b"hh");
    }

    #[test]
    fn strangers_get_nothing() {
        let exports = exports(Duration::ZERO, Some("0123456789abcdef"));
        assert_eq!(exports.enter(b"a").expect_err("no token"), Refused::Stranger);
        assert_eq!((exports.names(9), exports.count()), (None, (0, 0)));
        assert!(exports.enter(b"0123456789abcdef/x").is_ok());
    }
}
