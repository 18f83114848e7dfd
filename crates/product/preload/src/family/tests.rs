//! Processes that fork and end while somebody looks who has ended.

use super::*;

/// A family: its ledger, and for each process the description by which it is alive.
struct Family {
    file: Fd,
    ledger: &'static Ledger,
    alive: Vec<Option<Fd>>,
}

impl Family {
    fn new() -> Family {
        let file = make_file().unwrap();
        let ledger = map(&file).unwrap();
        Family { file, ledger, alive: Vec::new() }
    }

    /// A process is forked.
    fn fork(&mut self, parent: u32) -> u32 {
        let alive = describe(&self.file).unwrap();
        let line = enter(self.ledger, &alive, parent).unwrap();
        self.alive.resize_with(self.alive.len().max(line as usize + 1), || None);
        self.alive[line as usize] = Some(alive);
        line
    }

    /// A process ends.
    fn end(&mut self, line: u32) {
        self.alive[line as usize] = None;
    }

    fn lives(&self, line: u32) -> bool {
        fd::is_byte_locked(self.file.as_fd(), line)
    }

    fn state(&self, line: u32) -> u32 {
        self.ledger.members[line as usize].state.load(Ordering::Acquire)
    }

    fn generation(&self, line: u32) -> u32 {
        self.ledger.members[line as usize].generation.load(Ordering::Acquire)
    }

    /// Looks who has ended, as process `me`. The moment before it is asked for the first time whether `line` lives, that process forks, and ends. Its child.
    fn forks_and_ends_while<R>(
        &mut self,
        line: u32,
        look: impl FnOnce(&'static Ledger, &mut dyn FnMut(u32) -> bool) -> R,
    ) -> (R, u32) {
        let (ledger, mut child) = (self.ledger, None);
        let result = look(ledger, &mut |asked| {
            if asked == line && child.is_none() {
                child = Some(self.fork(line));
                self.end(line);
            }
            self.lives(asked)
        });
        (result, child.expect("nobody has asked whether it lives"))
    }
}

/// The child's line lies behind all that were there when the look began. Its parent's line must not be free before it has ended: slots are held for it under that line.
#[test]
fn who_forks_into_a_new_line_and_ends_is_not_buried_before_its_child() {
    let mut family = Family::new();
    let me = family.fork(NOBODY);
    let parent = family.fork(me);
    let before = family.generation(parent);
    let (changed, child) = family.forks_and_ends_while(parent, |ledger, lives| bury_where(ledger, me, lives));
    assert!(changed && child == parent + 1, "its line is a new one");
    assert_eq!((family.state(parent), family.generation(parent)), (GONE, before));
    // Nothing is left to be done while the child lives.
    assert!(!bury_where(family.ledger, me, &mut |line| family.lives(line)));
    family.end(child);
    while bury_where(family.ledger, me, &mut |line| family.lives(line)) {}
    assert_eq!([parent, child].map(|line| family.state(line)), [FREE; 2]);
    assert_ne!(family.generation(parent), before);
}

/// The same for who has left the family, and cannot write its ledger.
#[test]
fn who_forks_into_a_new_line_and_ends_has_not_ended_before_its_child() {
    let mut family = Family::new();
    let heir = family.fork(NOBODY);
    let next = family.fork(heir);
    family.end(heir);
    let (over, child) = family.forks_and_ends_while(next, |ledger, lives| leave::has_ended_where(ledger, heir, lives));
    assert!(!over && child == next + 1, "its child lives");
    assert!(!leave::has_ended_where(family.ledger, heir, &mut |line| family.lives(line)));
    family.end(child);
    assert!(leave::has_ended_where(family.ledger, heir, &mut |line| family.lives(line)));
}
