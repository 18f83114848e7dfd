//! What an engine tells at the control socket, and what of it can be set there: of a program's, and of the manager's for another process.

use core::sync::atomic::Ordering;
use farshore_backend::AnyBackend;
use farshore_backend::compressed::{Compressed, Decided};
use farshore_backend::mirror::{Mirror, Seen};
use farshore_config::pace::Knob;
use farshore_config::{Ablate, Named, stats};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::{Clock, Kernel, Spaces, World};
use farshore_engine::Engine;
use farshore_engine::health::{Usage, Writing};
use farshore_engine::stats::{Count, FaultKind};
use farshore_policy::Chosen;
use farshore_sys::raw::getpid;

const PAGE: u64 = PAGE_SIZE as u64;

/// One swap space, as the counters tell of it.
fn space<W: World<Backend = AnyBackend>>(engine: &Engine<W>, number: usize) -> stats::Space {
    let Engine { backend, health, slots, .. } = engine;
    let used = slots.live_in(number);
    let usage = health.usage(number);
    let state = match health.writing(number) {
        _ if health.hangs(number) => "hangs",
        _ if usage == Usage::Left => "left",
        _ if usage != Usage::InUse => "draining",
        Writing::Works => "works",
        Writing::Full => "full",
        Writing::Fails => "fails",
    };
    stats::Space {
        name: slots.some_slot_of(number).map_or(backend.name(), |slot| backend.name_of(slot)).to_owned(),
        capacity_bytes: backend.capacity_of(number).map(|slots| slots * PAGE),
        used_bytes: used * PAGE,
        encrypted: backend.is_encrypted(),
        write_errors: health.errors(number),
        state: state.to_owned(),
        drained_percent: if state == "draining" { health.drained_percent(number, used) } else { 0 },
        copies: backend.mirror().into_iter().flat_map(Mirror::seen).map(copy).collect(),
    }
}

fn copy(seen: Seen) -> stats::SpaceCopy {
    let state = match seen {
        _ if seen.leaving => "leaving",
        _ if !seen.up => "down",
        _ if seen.full => "full",
        _ if seen.filling => "filling",
        _ => "works",
    };
    stats::SpaceCopy {
        name: seen.name.to_owned(),
        state: state.to_owned(),
        stale_pages: seen.stale,
        hedged_reads: seen.hedged,
        hedged_reads_won: seen.hedged_won,
    }
}

fn pool_stats(pool: &Compressed) -> stats::Pool {
    let counters = pool.counters();
    let counter = |c: &core::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
    let (capacity_bytes, used_bytes) = pool.bytes();
    let decided = pool.decided();
    let of_decision = |what: fn(&Decided) -> u64| decided.as_ref().map_or(0, what);
    stats::Pool {
        name: pool.pool_name().to_owned(),
        capacity_bytes,
        used_bytes,
        pages: counter(&counters.pages),
        repeated_pages: counter(&counters.repeated),
        compressed_bytes: counter(&counters.compressed_bytes),
        refused_pages: counter(&counters.passed_on),
        moved_pages: counter(&counters.moved),
        chosen_bytes: of_decision(|it| it.bytes),
        page_ns: of_decision(|it| it.here_ns as u64),
        behind_page_ns: of_decision(|it| it.below_ns as u64),
    }
}

fn evictors<W: World>(engine: &Engine<W>) -> stats::Evictors {
    let paced = engine.paced();
    let (pace, wanted) = (paced.pace, paced.wanted);
    let counters = &engine.stats;
    stats::Evictors {
        count: paced.evictors.into(),
        awake: pace.evictors.into(),
        awake_fixed: wanted.evictors.is_some(),
        batch_pages: pace.batch.into(),
        batch_fixed: wanted.batch.is_some(),
        batch_pages_most: engine.sizes().batch as u64,
        writes_each: pace.writes.into(),
        writes_fixed: wanted.writes.is_some(),
        writes_in_flight: paced.writes_in_flight.into(),
        writes_in_flight_peak: paced.writes_in_flight_peak.into(),
        batches_in_flight_peak: paced.batches_in_flight_peak.into(),
        bound: paced.bound.into(),
        lists: engine.lists() as u64,
        low_pages: paced.watermarks.0,
        high_pages: paced.watermarks.1,
        changes: paced.changes,
        frame_waits: counters.total(Count::FrameWaits),
        frame_wait_ns: counters.total(Count::FrameWaitNs),
    }
}

/// Fixes one number of the evictors' pace, or lets it adapt.
///
/// # Errors
/// It is more than this run has threads or stages for.
pub fn set_pace<W: World>(engine: &Engine<W>, knob: Knob, number: Option<u32>) -> Result<(), String> {
    if let Some(batch) = engine.ablated().batch.filter(|_| knob == Knob::Batch) {
        let why = format!("this run is an experiment with batch={batch} (--ablate): start it without");
        return Err(format!("{}: {why}", knob.name()));
    }
    let paced = engine.paced();
    let (most, why) = match knob {
        Knob::Evictors => (paced.evictors, "so many threads were started"),
        Knob::Batch => (engine.sizes().batch as u32, "staging memory is for so many pages"),
        Knob::Writes => (*knob.range().end(), "no evictor has room for more"),
        Knob::Free => (*knob.range().end(), "the rest is the program's"),
    };
    if let Some(number) = number.filter(|&number| number > most) {
        let name = knob.name();
        return Err(format!("{name}={number}: at most {most} in this run: {why}; for more, start it with --{name} {number}"));
    }
    let mut wanted = paced.wanted;
    *match knob {
        Knob::Evictors => &mut wanted.evictors,
        Knob::Batch => &mut wanted.batch,
        Knob::Writes => &mut wanted.writes,
        Knob::Free => &mut wanted.free,
    } = number;
    engine.fix_pace(wanted);
    Ok(())
}

/// Whether another prefetcher may be chosen.
///
/// # Errors
/// The run is an experiment without.
pub fn check_prefetcher<W: World>(engine: &Engine<W>, name: &Named) -> Result<(), String> {
    match engine.ablated().prefetch && name.name != "none" {
        true => Err(format!("prefetch={name}: this run is an experiment without (--ablate prefetch): start it without that")),
        false => Ok(()),
    }
}

/// All that the engine counts, which began to work at `started_ns`. What is not the engine's is left as nothing: the name of the program, how faults come, Farshore's own memory, whom it shares
/// a limit with.
#[must_use]
pub fn of<W: World<Backend = AnyBackend, Policy = Chosen>>(engine: &Engine<W>, started_ns: u64) -> stats::Stats {
    let count = |what| engine.stats.total(what);
    let (read, written) = (count(Count::PagesIn), count(Count::PagesOut));
    let issued = count(Count::Prefetched);
    let used = count(Count::PrefetchUsed).min(issued);
    let latency = engine.stats.latency();
    let frames = engine.frames().counts();
    let flushes = engine.kernel.flushes();
    stats::Stats {
        pid: getpid(),
        policy: engine.policy.evict().name().to_owned(),
        prefetcher: engine.policy.prefetch().name().to_owned(),
        ablated: Ablate(engine.ablated()).to_string(),
        uptime_ns: engine.clock.now_ns().saturating_sub(started_ns),
        memory_limit_bytes: engine.memory_limit(),
        managed_bytes: engine.stats.managed() * PAGE,
        managed_bytes_peak: engine.stats.managed_peak() * PAGE,
        used_bytes_peak: engine.stats.used_peak() * PAGE,
        resident_bytes: engine.resident_bytes(),
        resident_bytes_peak: engine.resident_bytes_peak(),
        faults: stats::Faults {
            fetch: engine.stats.faults(FaultKind::Fetch),
            zero: engine.stats.faults(FaultKind::Zero),
            rescue: engine.stats.faults(FaultKind::Rescue),
            wait: engine.stats.faults(FaultKind::Wait),
            write_protect: engine.stats.faults(FaultKind::WriteProtect),
        },
        evictions: stats::Evictions {
            pages: count(Count::Evicted),
            clean_pages: count(Count::EvictedClean),
            batches: count(Count::Batches),
            synchronous: count(Count::Synchronous),
        },
        evictors: evictors(engine),
        huge_pages: stats::HugePages { mapped: count(Count::HugeMapped), split: count(Count::HugeSplit) },
        swap: stats::Swap {
            pages_in: read,
            pages_out: written,
            writes: count(Count::Writes),
            delegations: engine.slots.all_asked(),
            delegation_ns: count(Count::DelegateNs),
            bytes_in: read * PAGE,
            bytes_out: written * PAGE,
            errors: count(Count::IoErrors),
            last_error: engine.health.last_trouble().map(|trouble| trouble.to_string()),
            bytes_given_back: count(Count::GivenBack),
        },
        prefetch: stats::Prefetch { issued, used, wasted: issued - used, threads: u64::from(engine.readers()) },
        scans: stats::Scans { watched_pages: count(Count::Watched), taken_pages: count(Count::TakenAway) },
        fault_latency_ns: stats::Latency {
            p50: latency.p50,
            p90: latency.p90,
            p99: latency.p99,
            p999: latency.p999,
            max: latency.max,
            total: latency.total,
        },
        flushes: stats::Flushes { protect_calls: flushes.protects, unmap_calls: flushes.unmaps, unmap_ranges: flushes.ranges },
        copies: stats::Copies { in_bytes: (read + count(Count::Unstaged)) * PAGE, out_bytes: count(Count::CopiedOut) * PAGE },
        waits: stats::Waits {
            page: count(Count::PageWaits),
            page_ns: count(Count::PageWaitNs),
            write: count(Count::WriteWaits),
            write_ns: count(Count::WriteWaitNs),
        },
        fetch_parts: stats::FetchParts {
            measured: count(Count::Sampled),
            claim_ns: count(Count::ClaimNs),
            read_ns: count(Count::ReadNs),
            check_ns: count(Count::CheckNs),
            map_ns: count(Count::MapNs),
            rest_ns: count(Count::RestNs),
        },
        frames: stats::Frames {
            limit: frames.limit,
            debt: frames.debt,
            free: frames.free,
            cached: frames.cached,
            taken: frames.taken,
        },
        spaces: (0..engine.health.spaces())
            .filter(|&number| engine.health.usage(number) != Usage::Absent)
            .map(|number| space(engine, number))
            .collect(),
        pool: engine.backend.pool().map(pool_stats),
        ..stats::Stats::default()
    }
}
