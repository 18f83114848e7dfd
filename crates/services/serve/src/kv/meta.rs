//! Answers to meta commands. Flags are answered in the order in which they were asked for.

use std::io;

use super::protocol::{Key, Meta, Mode, base64};
use super::reply::{Replies, Sink};
use super::session::{NO_NUMBER, Service, count_arithmetic, no_room};
use super::store::{Arithmetic, Changed, Clock, Commit, Count, Deleted, Draft, Item, Miss, NoRoom, Outcome, Store, View, flag};

type Put = io::Result<()>;

fn put_key<S: Sink>(key: &[u8], binary: bool, replies: &mut Replies<'_, S>) -> Put {
    replies.put(b" k")?;
    if !binary {
        return replies.put(key);
    }
    let mut result = Ok(());
    base64::encode(key, |four| {
        if result.is_ok() {
            result = replies.put(&four);
        }
    });
    result?;
    replies.put(b" b")
}

fn put_number<S: Sink>(letter: &[u8; 2], number: u64, replies: &mut Replies<'_, S>) -> Put {
    replies.put(letter)?;
    replies.number(number)
}

/// Seconds that are left; `None`: for ever.
fn put_left<S: Sink>(expires: u32, now: u32, replies: &mut Replies<'_, S>) -> Put {
    match expires {
        0 => replies.put(b" t-1"),
        // As memcached: what is over is a large number.
        _ => put_number(b" t", expires.wrapping_sub(now).into(), replies),
    }
}

fn put_opaque<S: Sink>(flag: &[u8], replies: &mut Replies<'_, S>) -> Put {
    replies.put(b" ")?;
    replies.put(flag)
}

/// The flags that every answer has: key and opaque.
fn put_common<S: Sink>(meta: &Meta<'_>, replies: &mut Replies<'_, S>) -> Put {
    for flag in meta.flags {
        match flag[0] {
            b'O' => put_opaque(flag, replies)?,
            b'k' => put_key(meta.key.bytes(), meta.key.is_binary(), replies)?,
            _ => {}
        }
    }
    replies.put(b"\r\n")
}

/// What a `mg` found.
struct Found<'s> {
    item: Item<'s>,
    /// When the item expires where the flag `t` stands, and for good.
    left: u32,
    won: bool,
    view: View,
}

/// `mg`.
pub(super) fn get<S: Sink>(service: &Service, meta: &Meta<'_>, now: u32, replies: &mut Replies<'_, S>) -> Put {
    let store = &service.store;
    let counters = &store.counters;
    let touches = meta.expires.is_some();
    counters.add(if touches { Count::Touches } else { Count::Gets });
    let found = loop {
        match store.find(meta.key.bytes(), now, !meta.unseen) {
            Ok(item) => {
                if let Some(found) = look(service, meta, item, now) {
                    break Some(Ok(found));
                }
            }
            Err(miss) => {
                let Some(time) = meta.vivify else {
                    miss.over.iter().for_each(|why| counters.add(*why));
                    break None;
                };
                match vivify(service, meta, miss, time, now) {
                    Ok(None) => {}
                    Ok(Some(found)) => break Some(Ok(found)),
                    Err(error) => break Some(Err(error)),
                }
            }
        }
    };
    let found = match found {
        Some(Ok(found)) => found,
        // There is no memory to make it: as if it were not asked to be made.
        Some(Err(_)) | None => {
            counters.add(if touches { Count::TouchMisses } else { Count::GetMisses });
            if meta.quiet {
                return Ok(());
            }
            replies.put(b"EN")?;
            return put_common(meta, replies);
        }
    };
    counters.add(if touches { Count::TouchHits } else { Count::GetHits });
    put_found(meta, &found, now, replies)
}

/// What a look at an item changes. `None`: it is another one now.
fn look<'s>(service: &'s Service, meta: &Meta<'_>, item: Item<'s>, now: u32) -> Option<Found<'s>> {
    let seen = item.view;
    let stale_new = seen.flags & flag::STALE != 0 && seen.flags & flag::WON == 0;
    if !stale_new && meta.expires.is_none() && meta.recache.is_none() {
        return Some(Found { left: seen.expires, won: false, view: seen, item });
    }
    let clock = &service.clock;
    let changed = service.store.edit(&item, |view| {
        let (mut left, mut won) = (view.expires, false);
        for flag in meta.flags {
            match flag[0] {
                b'T' => view.expires = meta.expires.map_or(0, |time| clock.expires(time, now)),
                b'R' => {
                    let soon = meta.recache.map_or(0, |time| clock.expires(time, now));
                    won |= view.flags & flag::WON == 0 && view.expires != 0 && view.expires < soon;
                }
                b't' => left = view.expires,
                _ => {}
            }
        }
        won |= view.flags & (flag::STALE | flag::WON) == flag::STALE;
        let before = View { used: seen.used, flags: (view.flags & !flag::FETCHED) | (seen.flags & flag::FETCHED), ..*view };
        if won {
            view.flags |= flag::WON;
        }
        (left, won, before)
    });
    let (left, won, view) = changed?;
    Some(Found { item, left, won, view })
}

/// Makes an item without a value. `Ok(None)`: there is one now.
fn vivify<'s>(service: &'s Service, meta: &Meta<'_>, miss: Miss, time: i32, now: u32) -> Result<Option<Found<'s>>, NoRoom> {
    let store = &service.store;
    let key = meta.key.bytes();
    let draft = store.draft(key, 0, 0)?;
    let (mut expires, mut left) = (0, 0);
    for flag in meta.flags {
        match flag[0] {
            b'N' => expires = service.clock.expires(time, now),
            b'T' => expires = meta.expires.map_or(0, |time| service.clock.expires(time, now)),
            b't' => left = expires,
            _ => {}
        }
    }
    let seen = if meta.unseen { 0 } else { flag::FETCHED };
    let view = View { cas: 0, expires, used: now, flags: flag::WON | seen };
    let Some(made) = store.make(draft, view, miss) else { return Ok(None) };
    let cas = made?;
    // Pinned, for the answer. It may be over at once, or replaced by now: then the next turn tells.
    let before = View { cas, flags: 0, ..view };
    Ok(match store.find(key, if expires == 0 { now } else { now.min(expires - 1) }, false) {
        Ok(item) if item.view.cas == cas => Some(Found { item, left, won: true, view: before }),
        _ => None,
    })
}

fn put_found<S: Sink>(meta: &Meta<'_>, found: &Found<'_>, now: u32, replies: &mut Replies<'_, S>) -> Put {
    let Found { item, left, won, view } = found;
    if meta.value {
        replies.put(b"VA ")?;
        replies.number(item.length() as u64)?;
    } else {
        replies.put(b"HD")?;
    }
    for flag in meta.flags {
        match flag[0] {
            b's' => put_number(b" s", item.length() as u64, replies)?,
            b't' => put_left(*left, now, replies)?,
            b'c' => put_number(b" c", view.cas, replies)?,
            b'f' => put_number(b" f", item.flags().into(), replies)?,
            b'l' => put_number(b" l", now.saturating_sub(view.used).into(), replies)?,
            b'h' => replies.put(if view.flags & flag::FETCHED != 0 { b" h1" } else { b" h0" })?,
            b'O' => put_opaque(flag, replies)?,
            b'k' => put_key(meta.key.bytes(), view.flags & flag::BINARY != 0, replies)?,
            _ => {}
        }
    }
    for (shown, text) in [(view.flags & flag::WON != 0, b" Z"), (view.flags & flag::STALE != 0, b" X"), (*won, b" W")] {
        if shown {
            replies.put(text)?;
        }
    }
    replies.put(b"\r\n")?;
    if meta.value {
        replies.fill(item.length(), |at, piece| item.read(at, piece))?;
        replies.put(b"\r\n")?;
    }
    Ok(())
}

/// What `ms` will answer when the value has come.
pub(super) struct MetaReply {
    quiet: bool,
    binary: bool,
    /// The flags to answer, as they came.
    flags: [u8; 48],
    length: usize,
}

/// How `ms` stores, and what it will answer.
pub(super) fn commit(meta: &Meta<'_>, clock: &Clock, now: u32) -> (Commit, MetaReply) {
    let mode = match meta.mode {
        b'E' => Mode::Add,
        b'A' => Mode::Append,
        b'P' => Mode::Prepend,
        b'R' if meta.cas.is_none() => Mode::Replace,
        _ if meta.cas.is_some() => Mode::Cas,
        _ => Mode::Set,
    };
    let binary = meta.key.is_binary();
    let mut reply = MetaReply { quiet: meta.quiet, binary, flags: [0; 48], length: 0 };
    for flag in meta.flags.filter(|flag| matches!(flag[0], b'O' | b'k' | b'c')) {
        // One each, and an opaque of 32 bytes at most; a token of the others means nothing.
        let flag = if flag[0] == b'O' { flag } else { &flag[..1] };
        let place = &mut reply.flags[reply.length..reply.length + flag.len() + 1];
        place[0] = b' ';
        place[1..].copy_from_slice(flag);
        reply.length += place.len();
    }
    let how = Commit {
        mode,
        cas: meta.cas.unwrap_or(0),
        expires: meta.expires.map_or(0, |time| clock.expires(time, now)),
        flags: if binary { flag::BINARY } else { 0 },
        invalidate: meta.invalidate,
    };
    (how, reply)
}

impl MetaReply {
    /// Stores, and answers.
    pub(super) fn finish<S: Sink>(
        self,
        store: &Store,
        draft: Draft<'_>,
        how: Commit,
        now: u32,
        replies: &mut Replies<'_, S>,
    ) -> Put {
        let mut buffer = [0; 256];
        let key_bytes = draft.key(&mut buffer).len();
        let (code, cas) = match store.commit(draft, how, now) {
            Outcome::Stored(_) if self.quiet => return Ok(()),
            Outcome::Stored(cas) => (b"HD", cas),
            Outcome::NotStored => (b"NS", 0),
            Outcome::Exists => (b"EX", 0),
            Outcome::NotFound => (b"NF", 0),
            Outcome::NoRoom(error) => return replies.line(no_room(error)),
        };
        replies.put(code)?;
        for flag in self.flags[..self.length].split(|byte| *byte == b' ').filter(|flag| !flag.is_empty()) {
            match flag[0] {
                b'k' => put_key(&buffer[..key_bytes], self.binary, replies)?,
                b'c' => put_number(b" c", cas, replies)?,
                _ => put_opaque(flag, replies)?,
            }
        }
        replies.put(b"\r\n")
    }
}

/// `md`.
pub(super) fn delete<S: Sink>(service: &Service, meta: &Meta<'_>, now: u32, replies: &mut Replies<'_, S>) -> Put {
    let store = &service.store;
    let key = meta.key.bytes();
    let deleted = if meta.invalidate { invalidate(service, meta, now) } else { store.delete(key, meta.cas, now) };
    match deleted {
        Deleted::Gone if !meta.invalidate => store.counters.add(Count::DeleteHits),
        Deleted::Gone => {}
        Deleted::Exists | Deleted::NotFound => store.counters.add(Count::DeleteMisses),
    }
    match deleted {
        Deleted::Gone if meta.quiet => return Ok(()),
        Deleted::Gone => replies.put(b"HD")?,
        Deleted::Exists => replies.put(b"EX")?,
        Deleted::NotFound => replies.put(b"NF")?,
    }
    put_common(meta, replies)
}

fn invalidate(service: &Service, meta: &Meta<'_>, now: u32) -> Deleted {
    loop {
        let Ok(item) = service.store.find(meta.key.bytes(), now, false) else { return Deleted::NotFound };
        let done = service.store.edit(&item, |view| {
            if meta.cas.is_some_and(|cas| cas != view.cas) {
                return Deleted::Exists;
            }
            if let Some(time) = meta.expires {
                view.expires = service.clock.expires(time, now);
            }
            view.flags = (view.flags | flag::STALE) & !flag::WON;
            view.cas = service.store.next_cas();
            Deleted::Gone
        });
        if let Some(done) = done {
            return done;
        }
    }
}

/// `ma`.
pub(super) fn arithmetic<S: Sink>(service: &Service, meta: &Meta<'_>, now: u32, replies: &mut Replies<'_, S>) -> Put {
    let store = &service.store;
    let up = !matches!(meta.mode, b'D' | b'-');
    let what = Arithmetic { up, delta: meta.delta, cas: meta.cas.unwrap_or(0), initial: meta.vivify.map(|_| meta.initial) };
    let left = std::cell::Cell::new(0);
    let time = |time: Option<i32>| time.map_or(0, |time| service.clock.expires(time, now));
    let changed = store.calculate(meta.key.bytes(), what, now, |view, made| {
        for flag in meta.flags {
            match flag[0] {
                b't' => left.set(view.expires),
                b'T' => view.expires = time(meta.expires),
                b'N' if made => view.expires = time(meta.vivify),
                _ => {}
            }
        }
    });
    count_arithmetic(store, up, &changed);
    let change = match changed {
        Changed::Done(change) if meta.quiet && !change.made => return Ok(()),
        Changed::Done(change) => change,
        Changed::Exists => {
            replies.put(b"EX")?;
            return put_common(meta, replies);
        }
        Changed::NotFound => {
            replies.put(b"NF")?;
            return put_common(meta, replies);
        }
        Changed::NoNumber => return replies.line(NO_NUMBER),
        Changed::NoRoom(_) => return replies.line("SERVER_ERROR out of memory"),
    };
    let value = change.value.bytes();
    if meta.value {
        replies.put(b"VA ")?;
        replies.number(value.len() as u64)?;
    } else {
        replies.put(b"HD")?;
    }
    for flag in meta.flags {
        match flag[0] {
            b'c' => put_number(b" c", change.view.cas, replies)?,
            b't' => put_left(left.get(), now, replies)?,
            b'O' => put_opaque(flag, replies)?,
            b'k' => put_key(meta.key.bytes(), meta.key.is_binary(), replies)?,
            _ => {}
        }
    }
    replies.put(b"\r\n")?;
    if meta.value {
        replies.put(value)?;
        replies.put(b"\r\n")?;
    }
    Ok(())
}

/// `me`.
pub(super) fn debug<S: Sink>(service: &Service, key: &Key<'_>, now: u32, replies: &mut Replies<'_, S>) -> Put {
    service.store.counters.add(Count::Metas);
    let Ok(item) = service.store.find(key.bytes(), now, false) else { return replies.line("EN") };
    replies.put(b"ME ")?;
    if item.view.flags & flag::BINARY != 0 {
        let mut text = Vec::with_capacity(key.bytes().len().div_ceil(3) * 4);
        base64::encode(key.bytes(), |four| text.extend_from_slice(&four));
        replies.put(&text)?;
    } else {
        replies.put(key.bytes())?;
    }
    let view = item.view;
    let expires = if view.expires == 0 { -1 } else { i64::from(now) - i64::from(view.expires) };
    let fetched = if view.flags & flag::FETCHED != 0 { "yes" } else { "no" };
    let used = now.saturating_sub(view.used);
    let (class, bytes) = (item.class(), item.bytes());
    replies.line(&format!(" exp={expires} la={used} cas={} fetch={fetched} cls={class} size={bytes}", view.cas))
}
