//! A page word as a machine, written down independently: what each call on [`AtomicWord`] must come to. `model_word` steps it by
//! chance, the fuzz target `word` guided by coverage.

use farshore_core::page::Access;
use farshore_core::word::{
    AtomicWord, BeginEvict, BeginFault, Claim, Collateral, Pin, Release, Released, Slot, Stage, StageStep, State, Word,
};

/// What a page is, in words of the design.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs, reason = "the fields are those of the page word")]
pub enum Spec {
    /// The program never used it.
    Untouched,
    /// It is not managed.
    Foreign,
    /// Present, with the same bytes in a slot.
    Clean { slot: u64, chances: u8 },
    /// Present, and nowhere else.
    Dirty { chances: u8, guessed: bool, protected: bool },
    /// Its bytes are in a stage.
    Leaving { stage: u32, written: bool },
    /// Its bytes are in a slot alone.
    Out { slot: u64 },
}

/// A page and who is busy with it.
#[derive(Debug)]
pub struct Machine {
    word: AtomicWord,
    is: Spec,
    /// Somebody owns it; `is` is what the owner found.
    owned: bool,
    pins: u32,
    waiters: bool,
}

/// A call on [`AtomicWord`]: the method of the same name.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "calls and arguments are those of `AtomicWord`")]
pub enum Op {
    Fault { write: bool, protected: bool },
    Evict { chances: bool },
    ExpectProtection,
    Claim,
    Release(Spec),
    Restore,
    StageWritten(u32),
    RetireStage(u32, u64),
    Pin { write: bool },
    Unpin,
    Announce,
    SetForeign(bool),
}

fn slot(n: u64) -> Slot {
    Slot::new(n).unwrap()
}

fn access(write: bool) -> Access {
    if write { Access::Write } else { Access::Read }
}

fn as_release(to: Spec) -> Release {
    match to {
        Spec::Untouched => Release::Untouched,
        Spec::Foreign => Release::Foreign,
        Spec::Clean { slot: n, chances } => Release::Clean { slot: slot(n), chances },
        Spec::Dirty { chances, guessed, protected } => Release::Dirty { chances, guessed, protected },
        Spec::Leaving { stage, written } => Release::Leaving { stage: Stage(stage), written },
        Spec::Out { slot: n } => Release::Out { slot: slot(n) },
    }
}

impl Spec {
    /// What [`AtomicWord::claimed`] knows of a page.
    fn without_chances(self) -> Spec {
        match self {
            Spec::Clean { slot, .. } => Spec::Clean { slot, chances: 0 },
            Spec::Dirty { guessed, protected, .. } => Spec::Dirty { chances: 0, guessed, protected },
            other => other,
        }
    }
}

/// Reads a word back into the words of the design.
fn seen(word: Word) -> Spec {
    match word.state() {
        State::Untouched => Spec::Untouched,
        State::Foreign => Spec::Foreign,
        State::Busy => unreachable!("asked for owned pages only through `was`"),
        State::Resident => match word.slot() {
            Some(slot) => Spec::Clean { slot: slot.number(), chances: word.chances() },
            None => Spec::Dirty { chances: word.chances(), guessed: word.guessed(), protected: word.protected() },
        },
        State::Leaving => Spec::Leaving { stage: word.stage().unwrap().0, written: word.written() },
        State::Out => Spec::Out { slot: word.slot().unwrap().number() },
    }
}

impl Default for Machine {
    fn default() -> Machine {
        Machine::new()
    }
}

impl Machine {
    /// An untouched page.
    pub fn new() -> Machine {
        Machine { word: AtomicWord::new(Word::UNTOUCHED), is: Spec::Untouched, owned: false, pins: 0, waiters: false }
    }

    /// Makes a call, if whoever makes it may, and compares its outcome and the word after it.
    ///
    /// # Panics
    /// If the word does not do what the machine says.
    pub fn step(&mut self, op: Op) {
        if self.allows(op) {
            self.call(op);
            self.assert_seen_as(self.word.load());
        }
    }

    fn own(&mut self) -> Spec {
        self.owned = true;
        self.is
    }

    fn resident(&self) -> bool {
        !self.owned && matches!(self.is, Spec::Clean { .. } | Spec::Dirty { .. })
    }

    /// Calls that only an owner, or one who pinned, may make, and the one that is refused with a panic.
    fn allows(&self, op: Op) -> bool {
        match op {
            Op::Release(_) | Op::Restore => self.owned,
            Op::Unpin => self.pins > 0,
            Op::RetireStage(stage, _) => self.owned || self.is != Spec::Leaving { stage, written: false },
            _ => true,
        }
    }

    fn call(&mut self, op: Op) {
        let word = &self.word;
        match op {
            Op::Fault { write, protected } => self.fault(word.begin_fault(access(write), protected), write, protected),
            Op::Evict { chances } => self.evict(word.begin_evict(chances), chances),
            Op::ExpectProtection => self.expect_protection(word.expect_protection()),
            Op::Claim => match word.claim() {
                Claim::Owned { was } => {
                    assert!(!self.owned);
                    assert_eq!(seen(was), self.own());
                    assert_eq!(seen(self.word.claimed()), self.is.without_chances());
                }
                Claim::Wait => assert!(self.owned),
                Claim::Foreign => assert!(!self.owned && self.is == Spec::Foreign),
            },
            Op::Release(to) => {
                let woke = word.release(as_release(to));
                self.is = to;
                self.let_go(woke);
            }
            Op::Restore => {
                // What the owner found, taken anew from the word: every owner may ask it.
                let woke = word.restore(word.claimed());
                self.is = self.is.without_chances();
                self.let_go(woke);
            }
            Op::StageWritten(stage) => match (word.stage_written(Stage(stage)), self.is) {
                (StageStep::Held, Spec::Leaving { stage: s, .. }) => assert!(self.owned && s == stage),
                (StageStep::Done, Spec::Leaving { stage: s, .. }) => {
                    assert!(!self.owned && s == stage);
                    self.is = Spec::Leaving { stage, written: true };
                }
                (StageStep::Gone, Spec::Leaving { stage: s, .. }) => assert_ne!(s, stage),
                (step, _) => assert_eq!(step, StageStep::Gone),
            },
            Op::RetireStage(stage, to) => match (word.retire_stage(Stage(stage), slot(to)), self.is) {
                (StageStep::Held, Spec::Leaving { stage: s, .. }) => assert!(self.owned && s == stage),
                (StageStep::Done, Spec::Leaving { stage: s, written: true }) => {
                    assert!(!self.owned && s == stage);
                    self.is = Spec::Out { slot: to };
                }
                (StageStep::Gone, Spec::Leaving { stage: s, .. }) => assert_ne!(s, stage),
                (step, _) => assert_eq!(step, StageStep::Gone),
            },
            Op::Pin { write } => self.pin(word.pin(access(write)), write),
            Op::Unpin => {
                word.unpin();
                self.pins -= 1;
            }
            Op::Announce => {
                assert_eq!(word.announce_waiter(), self.owned);
                self.waiters |= self.owned;
            }
            Op::SetForeign(foreign) => {
                let may = !self.owned && matches!(self.is, Spec::Untouched | Spec::Foreign);
                assert_eq!(word.set_foreign(foreign), may, "only what nobody uses changes hands");
                if may {
                    self.is = if foreign { Spec::Foreign } else { Spec::Untouched };
                }
            }
        }
    }

    fn let_go(&mut self, woke: Released) {
        assert_eq!(woke.wake, self.waiters);
        self.owned = false;
        self.waiters = false;
    }

    fn fault(&mut self, outcome: BeginFault, write: bool, protected: bool) {
        match outcome {
            BeginFault::Owned { was } => {
                assert!(!self.owned && self.is != Spec::Foreign);
                assert!(!self.resident() || (write && protected), "only a write to a present page needs an owner");
                assert_eq!(seen(was), self.own());
            }
            BeginFault::Wait => assert!(self.owned),
            BeginFault::Satisfied => assert!(self.resident() && (!write || !protected)),
            BeginFault::Foreign => assert!(!self.owned && self.is == Spec::Foreign),
        }
    }

    fn evict(&mut self, outcome: BeginEvict, chances: bool) {
        let left = matches!(self.is, Spec::Clean { chances: 1.., .. } | Spec::Dirty { chances: 1.., .. });
        match outcome {
            BeginEvict::Owned { was } => {
                assert!(self.resident() && self.pins == 0 && !(chances && left));
                assert_eq!(seen(was), self.own());
            }
            BeginEvict::PassedOver => {
                assert!(self.resident() && self.pins == 0 && chances && left);
                match &mut self.is {
                    Spec::Clean { chances, .. } | Spec::Dirty { chances, .. } => *chances -= 1,
                    _ => unreachable!(),
                }
            }
            BeginEvict::Skip => assert!(!self.resident() || self.pins > 0),
        }
    }

    fn expect_protection(&mut self, outcome: Collateral) {
        let dirty = !self.owned && matches!(self.is, Spec::Dirty { .. });
        match outcome {
            Collateral::Avoid => assert!(self.owned || (dirty && self.pins > 0)),
            Collateral::Fine => {
                assert!(!(self.owned || dirty && self.pins > 0), "a page that may be pinned for writing stays out of the range");
                if let Spec::Dirty { protected, .. } = &mut self.is {
                    *protected = true;
                }
            }
        }
    }

    fn pin(&mut self, outcome: Pin, write: bool) {
        let writable = matches!(self.is, Spec::Dirty { protected: false, .. });
        match outcome {
            Pin::Pinned => {
                assert!(self.resident() && (!write || writable));
                self.pins += 1;
            }
            Pin::Fault => assert!(self.owned || (self.is != Spec::Foreign && !(self.resident() && (!write || writable)))),
            Pin::Foreign => assert!(!self.owned && self.is == Spec::Foreign),
        }
    }

    fn assert_seen_as(&self, word: Word) {
        assert_eq!(word.pins(), self.pins);
        if self.owned {
            assert_eq!((word.state(), word.slot(), word.stage()), (State::Busy, None, None));
        } else {
            assert_eq!(seen(word), self.is);
        }
    }
}
