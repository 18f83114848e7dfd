//! Victims of one granule: taken, and write-protected with one TLB flush.
//!
//! A victim's bytes must not change while they are copied. Protecting page by page costs a TLB shootdown each (10 µs a
//! page when another core runs the program: `docs/src/decisions/costs.md`); one call over the range from the first to the
//! last victim costs one. The call protects the pages between them too, so the word of each of those is marked *before*
//! the call (`expect_protection`). Pages that a system call has pinned for writing are left out by cutting the range.
//!
//! # The window that must be closed
//!
//! A page between the victims may be absent when we look, and a fault may map it writable before our call protects it.
//! Its word would say "writable" and the kernel would refuse a system call's write. So we make the granule's
//! `protection_epoch` odd, **then** look at the words. A fault takes its page, **then** reads the epoch, maps, reads the
//! epoch again, and says `protected` unless the epoch was even and did not move.

use super::pipeline::Victim;
use crate::Engine;
use crate::expected::Marks;
use crate::wishes::{Bits, NO_PAGES};
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{Kernel, Policy, Verdict, World};
use farshore_core::table::GranuleRef;
use farshore_core::word::{AtomicWord, BeginEvict, Collateral, Release, State, Word};

/// Between two victims there may be this many writable pages before two calls are better than one: each such page may
/// cost a fault when it is written next, and a call costs a TLB flush.
const COLLATERAL_MAX: usize = 8;
/// A page that is known to be used counts for this many.
const COLLATERAL_USED: usize = 3;

/// Which pages of a granule are looked at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    /// All but those that are wished to stay and those that are expected soon, as the policy says; a page that is expected late has no
    /// chances.
    AllBut {
        /// Pages that are wished to stay.
        stay: Bits,
        /// Pages that are expected soon, or late.
        marks: Marks,
    },
    /// Those that are wished to leave.
    Wished(Bits),
    /// Those that are expected late, before others.
    Late(Bits),
}

fn has(bits: &Bits, index: usize) -> bool {
    bits[index / 64] >> (index % 64) & 1 != 0
}

fn add(bits: &mut Bits, index: usize) {
    bits[index / 64] |= 1 << (index % 64);
}

/// What a look at a granule found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// The page to continue with; 512: the granule is done.
    pub next: usize,
    /// Some page of the granule is resident or owned by a thread.
    pub populated: bool,
    /// Pages were passed over because they are expected soon.
    pub passed_soon: bool,
}

impl<W: World> Engine<W> {
    /// Takes victims of granule `g` from page `from` on until there are `room` in `victims`, and protects them.
    /// With `dirty_max` reached only clean pages are taken.
    pub(super) fn select(
        &self,
        g: &GranuleRef<'_>,
        from: usize,
        room: usize,
        dirty_max: usize,
        which: Which,
        victims: &mut Vec<Victim>,
    ) -> Look {
        let first_victim = victims.len();
        let mut dirty = victims.iter().filter(|v| v.dirty).count();
        let mut look = Look { next: from, populated: false, passed_soon: false };
        let (mut soon_passed, mut late_taken) = (NO_PAGES, NO_PAGES);
        let some_are_closed = self.health.some_are_closed();
        while look.next < GRANULE_PAGES && victims.len() < room {
            let index = look.next;
            let word = &g.words[index];
            let page = g.id.first().plus(index as u64);
            let (passed, wished, soon, late) = match &which {
                Which::AllBut { stay, marks } => (has(stay, index), false, has(&marks.soon, index), has(&marks.late, index)),
                Which::Wished(bits) => (!has(bits, index), true, false, false),
                Which::Late(bits) => (!has(bits, index), true, false, true),
            };
            look.next += 1;
            let now = word.load();
            look.populated |= matches!(now.state(), State::Resident | State::Busy);
            if now.state() != State::Resident || passed || (now.slot().is_none() && dirty >= dirty_max) {
                continue;
            }
            let chances = match self.policy.verdict(page, now) {
                _ if wished => false,
                Verdict::Keep => continue,
                Verdict::EvictUnlessChances => !late,
                Verdict::Evict => false,
            };
            // Chances are used up first: so it stays for longer than a page with as many of which nothing is expected.
            if soon && !(chances && now.chances() > 0) {
                add(&mut soon_passed, index);
                continue;
            }
            if let BeginEvict::Owned { was } = word.begin_evict(chances) {
                if late {
                    add(&mut late_taken, index);
                }
                if some_are_closed && dirty < dirty_max && self.save(page, word, was) {
                    continue;
                }
                let victim = Victim::new(page, was);
                dirty += usize::from(victim.dirty);
                victims.push(victim);
            }
        }
        look.passed_soon = soon_passed != NO_PAGES;
        if look.passed_soon || late_taken != NO_PAGES {
            self.expected.use_up(g.id, &soon_passed, &late_taken);
        }
        if victims.len() > first_victim {
            self.evictors.loops.note_leaving(g.granule);
            // Each page that leaves is to give its RAM back by itself.
            self.split_huge(g);
        }
        if victims[first_victim..].iter().any(|v| v.dirty) && !self.protect_victims(g, &victims[first_victim..]) {
            for victim in victims.drain(first_victim..) {
                self.put_back(&victim);
            }
        }
        look
    }

    /// A clean page whose slot is in a space that fails, or is to go, would be in that space only. So the page is made dirty, and
    /// leaves later, to another space. Returns whether it was.
    fn save(&self, page: Page, word: &AtomicWord, was: Word) -> bool {
        let Some(slot) = was.slot().filter(|&slot| self.is_closed(slot)) else { return false };
        if !self.health.any_open() {
            return false;
        }
        self.slots.free(slot);
        self.release(page, word, Release::Dirty { chances: 0, guessed: was.guessed(), protected: true });
        true
    }

    /// Protects the dirty ones of `victims`, all in granule `g` and in order. False when the kernel refused.
    fn protect_victims(&self, g: &GranuleRef<'_>, victims: &[Victim]) -> bool {
        g.granule.protection_epoch.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut fine = true;
        let mut rest = victims;
        while fine {
            let Some(skip) = rest.iter().position(|v| v.dirty) else { break };
            rest = &rest[skip..];
            let taken = self.extent_of_call(g, rest);
            let range = PageRange { start: rest[0].page, end: rest[taken - 1].page.plus(1) };
            fine = self.kernel.protect(range).is_ok();
            rest = &rest[taken..];
        }
        g.granule.protection_epoch.fetch_add(1, Ordering::SeqCst);
        fine
    }

    /// How many of `victims` (the first is dirty) one call can protect. Marks the word of every page in between first.
    fn extent_of_call(&self, g: &GranuleRef<'_>, victims: &[Victim]) -> usize {
        let mut reach = 1;
        for (i, victim) in victims.iter().enumerate().skip(1) {
            let between = victims[i - 1].page.index_in_granule() + 1..victim.page.index_in_granule();
            let weight = |word: Word| match word.state() {
                State::Resident if word.slot().is_none() && !word.protected() => {
                    if word.chances() > 0 {
                        COLLATERAL_USED
                    } else {
                        1
                    }
                }
                _ => 0,
            };
            let collateral: usize = g.words[between.clone()].iter().map(|w| weight(w.load())).sum();
            if collateral > COLLATERAL_MAX || g.words[between].iter().any(|w| w.expect_protection() == Collateral::Avoid) {
                break;
            }
            if victim.dirty {
                reach = i + 1;
            }
        }
        reach
    }

    /// A victim that cannot be evicted after all becomes resident as before. Its page may be protected by now.
    pub(super) fn put_back(&self, victim: &Victim) {
        let Some(at) = self.page(victim.page) else { return };
        if victim.dirty {
            let to = Release::Dirty { chances: 0, guessed: victim.was.guessed(), protected: true };
            self.release(victim.page, at.word, to);
        } else {
            self.restore(victim.page, at.word, victim.was);
        }
    }
}
