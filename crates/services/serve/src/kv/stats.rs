//! `stats`, under memcached's names.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use super::protocol::Words;
use super::reply::{Replies, Sink};
use super::session::{Service, VERSION};
use super::store::{Count, HEADER, NAMES, START, View};

type Put = io::Result<()>;

/// Answers `stats` with these arguments.
pub(super) fn answer<S: Sink>(service: &Service, mut words: Words<'_>, replies: &mut Replies<'_, S>) -> Put {
    match words.next() {
        None => general(service, replies)?,
        Some(b"settings") => settings(service, replies)?,
        Some(b"items") => items(service, replies)?,
        Some(b"slabs") => slabs(service, replies)?,
        Some(b"sizes") => stat("sizes_status", "disabled", replies)?,
        Some(b"conns") => {}
        Some(b"reset") => {
            service.store.counters.reset();
            return replies.line("RESET");
        }
        Some(b"detail") => return replies.line("CLIENT_ERROR usage: stats detail on|off|dump"),
        Some(_) => return replies.line("ERROR"),
    }
    replies.line("END")
}

fn stat<S: Sink>(name: &str, value: impl std::fmt::Display, replies: &mut Replies<'_, S>) -> Put {
    replies.line(&format!("STAT {name} {value}"))
}

fn general<S: Sink>(service: &Service, replies: &mut Replies<'_, S>) -> Put {
    let now = service.clock.now();
    let store = &service.store;
    stat("pid", std::process::id(), replies)?;
    stat("uptime", now - START, replies)?;
    stat("time", service.clock.unix(now), replies)?;
    stat("version", VERSION, replies)?;
    stat("pointer_size", usize::BITS, replies)?;
    stat("max_connections", service.connections_max, replies)?;
    stat("curr_connections", service.connections.now.load(Relaxed), replies)?;
    stat("total_connections", service.connections.ever.load(Relaxed), replies)?;
    stat("rejected_connections", service.connections.refused.load(Relaxed), replies)?;
    for (count, name) in NAMES {
        stat(name, store.counters.get(*count), replies)?;
    }
    stat("limit_maxbytes", store.memory(), replies)?;
    stat("threads", service.workers, replies)?;
    stat("hash_buckets", store.buckets(), replies)?;
    stat("hash_bytes", store.buckets() * 4096, replies)?;
    stat("bytes", store.classes().iter().map(|class| class.used * class.bytes as u64).sum::<u64>(), replies)?;
    stat("curr_items", store.items(), replies)
}

fn settings<S: Sink>(service: &Service, replies: &mut Replies<'_, S>) -> Put {
    let store = &service.store;
    stat("maxbytes", store.memory(), replies)?;
    stat("maxconns", service.connections_max, replies)?;
    stat("verbosity", 0, replies)?;
    stat("oldest", 0, replies)?;
    stat("evictions", "on", replies)?;
    stat("growth_factor", "1.25", replies)?;
    stat("item_header", HEADER + size_of::<View>(), replies)?;
    stat("num_threads", service.workers, replies)?;
    stat("cas_enabled", "yes", replies)?;
    stat("item_size_max", store.item_max(), replies)?;
    stat("flush_enabled", "yes", replies)?;
    stat("dump_enabled", "no", replies)?;
    stat("binding_protocol", "ascii", replies)?;
    stat("auth_enabled_sasl", "no", replies)
}

fn items<S: Sink>(service: &Service, replies: &mut Replies<'_, S>) -> Put {
    for class in service.store.classes() {
        stat(&format!("items:{}:number", class.number), class.used, replies)?;
        stat(&format!("items:{}:evicted", class.number), class.evicted, replies)?;
        stat(&format!("items:{}:mem_requested", class.number), class.used * class.bytes as u64, replies)?;
    }
    Ok(())
}

fn slabs<S: Sink>(service: &Service, replies: &mut Replies<'_, S>) -> Put {
    let classes = service.store.classes();
    for class in &classes {
        let chunks = class.pages as u64 * u64::from(class.chunks);
        for (name, value) in [
            ("chunk_size", class.bytes as u64),
            ("chunks_per_page", class.chunks.into()),
            ("total_pages", class.pages as u64),
            ("total_chunks", chunks),
            ("used_chunks", class.used),
            ("free_chunks", chunks.saturating_sub(class.used)),
        ] {
            stat(&format!("{}:{name}", class.number), value, replies)?;
        }
    }
    stat("active_slabs", classes.len(), replies)?;
    stat("total_malloced", service.store.memory(), replies)?;
    stat("cmd_get", service.store.counters.get(Count::Gets), replies)
}
