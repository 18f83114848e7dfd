//! Steps that look first and then change: each is tried until nothing came in between.

use super::{Count, Draft, Item, Miss, NoRoom, Published, Store, View, flag};
use crate::kv::protocol::Mode;
use crate::kv::protocol::number::{Decimal, unsigned};

/// Of a value that is read as a number, so many bytes at most.
const NUMBER_MAX: usize = 64;

/// How a draft is to be stored.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    /// What it does with what is there.
    pub mode: Mode,
    /// The number that must be there; 0: any.
    pub cas: u64,
    /// When it expires.
    pub expires: u32,
    /// Flags of the new item.
    pub flags: u16,
    /// A number lower than what is there stores it too, as stale.
    pub invalidate: bool,
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Stored, with this number.
    Stored(u64),
    /// Not stored: there is something, or there is nothing.
    NotStored,
    /// Something else is there.
    Exists,
    /// Nothing is there to compare with.
    NotFound,
    /// There is no memory.
    NoRoom(NoRoom),
}

/// What came of a deletion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deleted {
    /// It is gone.
    Gone,
    /// Something else is there.
    Exists,
    /// Nothing is there.
    NotFound,
}

/// A calculation.
#[derive(Clone, Copy, Debug)]
pub struct Arithmetic {
    /// Up, else down to 0.
    pub up: bool,
    /// By how much.
    pub delta: u64,
    /// The number that must be there; 0: any.
    pub cas: u64,
    /// The value if there is nothing.
    pub initial: Option<u64>,
}

/// What an item became.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Its number in decimal.
    pub value: Decimal,
    /// What is known of it.
    pub view: View,
    /// It was not there before.
    pub made: bool,
}

/// What came of a calculation.
#[derive(Clone, Copy, Debug)]
pub enum Changed {
    /// Done.
    Done(Change),
    /// Something else is there.
    Exists,
    /// Nothing is there.
    NotFound,
    /// What is there is no number.
    NoNumber,
    /// There is no memory.
    NoRoom(NoRoom),
}

impl Store {
    /// Stores a draft.
    pub fn commit(&self, draft: Draft<'_>, how: Commit, now: u32) -> Outcome {
        let view = View { cas: 0, expires: how.expires, used: now, flags: how.flags };
        self.counters.add(Count::Sets);
        if how.mode == Mode::Set {
            return self.set(draft, view).map_or(Outcome::NoRoom(NoRoom::NoMemory), Outcome::Stored);
        }
        let mut buffer = [0; 256];
        let key = draft.key(&mut buffer);
        let mut draft = draft;
        loop {
            let published = match self.find(key, now, false) {
                Err(miss) => match how.mode {
                    Mode::Add => self.publish(draft, view, miss.seen, None),
                    Mode::Cas => {
                        self.counters.add(Count::CasMisses);
                        return Outcome::NotFound;
                    }
                    _ => return Outcome::NotStored,
                },
                Ok(old) => match how.mode {
                    Mode::Append | Mode::Prepend => {
                        if how.cas != 0 && how.cas != old.view.cas {
                            return Outcome::Exists;
                        }
                        match self.join(key, &old, &draft, how.mode) {
                            Ok(joined) => {
                                let view = View { expires: old.view.expires, flags: 0, ..view };
                                match self.publish(joined, view, old.seen, Some(&old)) {
                                    Published::Changed(_) => continue,
                                    other => other,
                                }
                            }
                            Err(error) => return Outcome::NoRoom(error),
                        }
                    }
                    Mode::Add => {
                        self.slabs.seen(old.place);
                        return Outcome::NotStored;
                    }
                    Mode::Cas if how.cas != 0 && how.cas == old.view.cas => {
                        self.counters.add(Count::CasHits);
                        self.publish(draft, view, old.seen, Some(&old))
                    }
                    Mode::Cas if how.cas != 0 && how.invalidate && how.cas < old.view.cas => {
                        let flags = view.flags | flag::STALE | (old.view.flags & flag::WON);
                        let view = View { expires: old.view.expires, flags, ..view };
                        self.publish(draft, view, old.seen, Some(&old))
                    }
                    Mode::Cas => {
                        self.counters.add(Count::CasBad);
                        return Outcome::Exists;
                    }
                    Mode::Set | Mode::Replace => self.publish(draft, view, old.seen, Some(&old)),
                },
            };
            draft = match published {
                Published::Done(cas) => return Outcome::Stored(cas),
                Published::NoRoom => return Outcome::NoRoom(NoRoom::NoMemory),
                Published::Changed(draft) => draft,
            };
        }
    }

    /// A new item with the value of one and that of a draft behind or in front of it.
    fn join<'s>(&'s self, key: &[u8], old: &Item<'_>, draft: &Draft<'_>, mode: Mode) -> Result<Draft<'s>, NoRoom> {
        let mut joined = self.draft(key, old.length() + draft.length(), old.flags())?;
        let (old_at, new_at) = if mode == Mode::Append { (0, old.length()) } else { (draft.length(), 0) };
        let mut buffer = [0; 2048];
        let from = [(&old.head, old.place, old_at), (&draft.head, draft.place, new_at)];
        for (head, place, to) in from {
            let start = self.slabs.value_at(place, head.key);
            for at in (0..head.value).step_by(buffer.len()) {
                let piece = &mut buffer[..(head.value - at).min(2048)];
                self.slabs.read(start + at, piece);
                joined.write(to + at, piece);
            }
        }
        Ok(joined)
    }

    /// Removes an item, if its number is `cas` where that is given.
    pub fn delete(&self, key: &[u8], cas: Option<u64>, now: u32) -> Deleted {
        loop {
            let Ok(item) = self.find(key, now, false) else { return Deleted::NotFound };
            let locked = self.index.lock(item.hash);
            let Some((slot, true)) = locked.find_place(item.hash, item.place) else {
                drop(locked);
                continue;
            };
            if cas.is_some_and(|cas| cas != slot.entry().view().cas) {
                // The lock goes before the pin.
                drop(locked);
                return Deleted::Exists;
            }
            let free = self.remove(&locked, slot);
            debug_assert!(free.is_none(), "it is pinned");
            drop(locked);
            return Deleted::Gone;
        }
    }

    /// Removes whatever is there for a key, since its value is not what it should be.
    pub fn forget(&self, key: &[u8], now: u32) {
        self.delete(key, None, now);
    }

    /// Makes an item that is not there. `None`: it is there now.
    pub fn make(&self, draft: Draft<'_>, view: View, miss: Miss) -> Option<Result<u64, NoRoom>> {
        match self.publish(draft, view, miss.seen, None) {
            Published::Done(cas) => Some(Ok(cas)),
            Published::NoRoom => Some(Err(NoRoom::NoMemory)),
            Published::Changed(_) => None,
        }
    }

    /// Calculates with a value. What is known of the item beside its bytes goes through `adjust`, with whether the item is made.
    pub fn calculate(&self, key: &[u8], what: Arithmetic, now: u32, adjust: impl Fn(&mut View, bool)) -> Changed {
        loop {
            let (draft, mut view, value, seen, old) = match self.find(key, now, false) {
                Ok(old) => {
                    if old.length() == 0 {
                        return Changed::NoNumber;
                    }
                    if what.cas != 0 && what.cas != old.view.cas {
                        return Changed::Exists;
                    }
                    let mut text = [0; NUMBER_MAX];
                    let text = &mut text[..old.length().min(NUMBER_MAX)];
                    old.read(0, text);
                    let Some(number) = unsigned(text) else { return Changed::NoNumber };
                    let number = if what.up { number.wrapping_add(what.delta) } else { number.saturating_sub(what.delta) };
                    let value = Decimal::new(number);
                    let digits = value.bytes().len();
                    // As memcached: a number that got shorter is filled up with blanks, and the item counts as the same.
                    let length = digits.max(old.length());
                    let mut draft = match self.draft(key, length, old.flags()) {
                        Ok(draft) => draft,
                        Err(error) => return Changed::NoRoom(error),
                    };
                    draft.write(0, value.bytes());
                    for at in digits..length {
                        draft.write(at, b" ");
                    }
                    let flags = if digits <= old.length() { old.view.flags } else { 0 };
                    (draft, View { flags, used: now, ..old.view }, value, old.seen, Some(old))
                }
                Err(miss) => {
                    let Some(initial) = what.initial else { return Changed::NotFound };
                    let value = Decimal::new(initial);
                    let mut draft = match self.draft(key, value.bytes().len(), 0) {
                        Ok(draft) => draft,
                        Err(error) => return Changed::NoRoom(error),
                    };
                    draft.write(0, value.bytes());
                    (draft, View { used: now, ..View::default() }, value, miss.seen, None)
                }
            };
            adjust(&mut view, old.is_none());
            match self.publish(draft, view, seen, old.as_ref()) {
                Published::Done(cas) => {
                    return Changed::Done(Change { value, view: View { cas, ..view }, made: old.is_none() });
                }
                Published::NoRoom => return Changed::NoRoom(NoRoom::NoMemory),
                Published::Changed(_) => {}
            }
        }
    }
}
