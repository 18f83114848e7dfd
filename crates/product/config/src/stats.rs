//! The counters that a run leaves behind: `--stats`, `farshore stat`. JSON, schema 1.
//!
//! Names are stable: scripts rely on them. Fields may be added within a schema; when a field disappears or changes its
//! meaning, that makes the next schema. A reader takes missing fields as 0 and leaves fields that it does not know, so
//! that a command and a library of neighbouring versions understand each other.
//!
//! Units are in the names (`_bytes`, `_ns`); `pages` are of 4 KiB; everything else counts events.

use crate::error::one_line;
use crate::plain::plain_json;
use farshore_core::canary::{Canary, is_planted};
use serde::{Deserialize, Serialize};

/// The schema of this version.
pub const SCHEMA: u32 = 1;

/// All counters of one program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Stats {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The program's name.
    pub program: String,
    /// Its process.
    pub pid: u32,
    /// `upcall` or `poll`.
    pub fault_mode: String,
    /// The built-in policy in force, which chooses the pages that leave.
    pub policy: String,
    /// The built-in prefetcher in force.
    pub prefetcher: String,
    /// What an experiment leaves out of Farshore (`--ablate`): figures of such a run are not Farshore's. Empty: nothing.
    pub ablated: String,
    /// How long Farshore has been at work, in ns.
    pub uptime_ns: u64,
    /// The memory limit now.
    pub memory_limit_bytes: u64,
    /// Memory that is managed now, touched or not.
    pub managed_bytes: u64,
    /// The most that was managed at a time.
    pub managed_bytes_peak: u64,
    /// The most of it that had bytes at a time, in RAM or in swap space, or more: clean pages may count twice. 0 if it always fitted.
    pub used_bytes_peak: u64,
    /// Managed memory that is local now.
    pub resident_bytes: u64,
    /// The most that was local at a time.
    pub resident_bytes_peak: u64,
    /// Memory that Farshore itself uses now.
    pub overhead_bytes: u64,
    /// The most that Farshore used at a time.
    pub overhead_bytes_peak: u64,
    /// What faults needed.
    pub faults: Faults,
    /// Pages that left.
    pub evictions: Evictions,
    /// The evictors, which make pages leave.
    pub evictors: Evictors,
    /// Memory that came as huge pages.
    pub huge_pages: HugePages,
    /// Traffic with the swap spaces.
    pub swap: Swap,
    /// Pages that were fetched before a fault asked for them.
    pub prefetch: Prefetch,
    /// How long faults took.
    pub fault_latency_ns: Latency,
    /// Calls that flush TLBs.
    pub flushes: Flushes,
    /// Bytes that were copied.
    pub copies: Copies,
    /// What faults have waited for.
    pub waits: Waits,
    /// What fetches are made of.
    pub fetch_parts: FetchParts,
    /// Where the frames of the limit are.
    pub frames: Frames,
    /// The processes that share a limit.
    pub family: Family,
    /// Each swap space.
    pub spaces: Vec<Space>,
    /// The pool of compressed pages in front of them; `null`: there is none.
    pub pool: Option<Pool>,
    /// Policies that have attached.
    pub policies: Vec<Attached>,
    /// Pages that their scans have looked at.
    pub scans: Scans,
    /// What of the process lies in RAM, by kind. `farshore stat` asks the kernel for it; `null` in `--stats`.
    pub kinds: Option<Kinds>,
    /// The memory limit is chosen by what is lost to faults (`--slowdown`); `null`: it stays as it was set.
    pub autopilot: Option<Autopilot>,
    /// The limit is a share of a budget that several programs of one user have together (`--budget`); `null`: it is not.
    pub budget: Option<Budget>,
    /// Of a virtual machine whose page tables are looked at (`farshore vm run --prefetch guest`); `null`: they are not.
    pub guest: Option<Guest>,
    /// Processor time that the process has used, all its threads and Farshore's, from its start on, in ns.
    pub processor_ns: u64,
    /// The program goes over more than its memory again and again ([`crate::advice`]); `null`: it does not.
    pub thrashing: Option<Thrashing>,
}

/// A budget of several programs, as this one has last seen it, and the share of its family.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Budget {
    /// Its name.
    pub name: String,
    /// What all programs may have together.
    pub size_bytes: u64,
    /// What this one's family may have, or still has after its limit was lowered.
    pub share_bytes: u64,
    /// The least that it may be left with.
    pub least_bytes: u64,
    /// What it would take if all of it were free.
    pub wanted_bytes: u64,
    /// How much longer it takes than without faults, in millionths, over the last two seconds or so; weighed by its `--slowdown`, if it has
    /// one: a program that may lose 10 % counts half as much as one that may lose 5 %.
    pub need_ppm: u64,
    /// What all programs have together.
    pub taken_bytes: u64,
    /// How many programs have a share.
    pub programs: u64,
}

/// How the memory limit is chosen, for all processes that share it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Autopilot {
    /// How much longer the program may take than without faults, in millionths.
    pub target_ppm: u64,
    /// How much longer it takes, in millionths, over the last ten seconds or so.
    pub measured_ppm: u64,
    /// The limit that is chosen now.
    pub limit_bytes: u64,
    /// The smallest limit that may be chosen.
    pub least_bytes: u64,
    /// The largest.
    pub most_bytes: u64,
    /// Time that was lost to faults since limits are chosen, of all threads, in ns.
    pub lost_ns: u64,
    /// Processor time that the program had meanwhile, without Farshore's threads, in ns.
    pub ran_ns: u64,
    /// How often the limit was raised or lowered.
    pub changes: u64,
    /// Whether this process decides for all that share the limit.
    pub decides: bool,
}

/// What a guest's own page tables say of its faults, and what was fetched for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Guest {
    /// Address spaces of the guest that are known now.
    pub address_spaces: u64,
    /// How often its processors were asked what they run.
    pub looks: u64,
    /// Faults that found the one who follows them busy: nothing was asked for them.
    pub unheard: u64,
    /// Faults whose virtual address was asked for.
    pub asked: u64,
    /// Of them, those for which one was found.
    pub found: u64,
    /// Virtual addresses that were remembered and not true any more.
    pub stale: u64,
    /// Page tables that were needed and out of RAM: they were wished to come.
    pub tables_out: u64,
    /// Pages that were out and wished to come.
    pub prefetched: u64,
    /// Of them, those that the program went over afterwards.
    pub used: u64,
}

/// A program that goes over more than its memory again and again.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Thrashing {
    /// How often each page came back, on the average.
    pub times: u64,
    /// How much of the time faults took.
    pub waited_percent: u64,
    /// What helps, in one line.
    pub advice: String,
}

/// What of a process lies in RAM, by kind: bytes, as the kernel counts them. Each mapping is of one kind, the first that fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Kinds {
    /// Memory that Farshore manages, which the limit is for.
    pub managed_bytes: u64,
    /// Farshore's own memory, and its library.
    pub farshore_bytes: u64,
    /// Memory that the program has locked.
    pub locked_bytes: u64,
    /// Pages of hugetlbfs.
    pub huge_bytes: u64,
    /// Shared mappings, of files or not.
    pub shared_bytes: u64,
    /// Private mappings of files: text, and data that begin in a file.
    pub file_bytes: u64,
    /// Private memory of no file that may be executed.
    pub executable_bytes: u64,
    /// The main thread's stack, and others that grow.
    pub stack_bytes: u64,
    /// Data of programs and libraries that are in no file (`.bss`).
    pub static_bytes: u64,
    /// All else: small mappings, stacks of threads, memory that was handed to the kernel.
    pub other_bytes: u64,
}

/// Calls of evictors that flush TLBs: each interrupts every processor that runs the program. (Besides, each of `faults.write_protect` and `huge_pages.mapped` is one.)
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Flushes {
    /// Calls that write-protected pages that were about to leave.
    pub protect_calls: u64,
    /// Calls that unmapped pages.
    pub unmap_calls: u64,
    /// Ranges of pages side by side that these unmapped. Before Linux 6.16 each is a flush.
    pub unmap_ranges: u64,
}

/// Bytes that were copied from memory to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Copies {
    /// By the kernel, into pages that came: from a buffer, or from where they waited for their write.
    pub in_bytes: u64,
    /// By evictors, of pages that were to leave.
    pub out_bytes: u64,
}

/// What faults have waited for, besides free frames (`evictors.frame_waits`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Waits {
    /// Times another thread had the page in its hands.
    pub page: u64,
    /// How long those waits were, all together.
    pub page_ns: u64,
    /// Times the page was being written, in experiments without rescues (`--ablate rescue`).
    pub write: u64,
    /// How long those waits were, all together.
    pub write_ns: u64,
}

/// What fetches are made of: one of sixteen is measured, if it waits for nothing but its read. From its arrival in the handler on; that the kernel
/// takes it there is not in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FetchParts {
    /// Fetches that were measured; the other fields are of all of them together.
    pub measured: u64,
    /// Until a frame and the page were had.
    pub claim_ns: u64,
    /// Until the bytes were read.
    pub read_ns: u64,
    /// Until they were checked.
    pub check_ns: u64,
    /// Until the page was mapped.
    pub map_ns: u64,
    /// The rest: pages that came along, and what is noted.
    pub rest_ns: u64,
}

/// Frames (pages' worth of local memory) by where they are: `free + cached + taken = limit + debt`, except for frames that move
/// at that moment. The limit is without the pages of staging memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Frames {
    /// Frames of the limit.
    pub limit: u64,
    /// What a lowered limit still has to get back.
    pub debt: u64,
    /// Free, for all cores.
    pub free: u64,
    /// Free, for one core each.
    pub cached: u64,
    /// Frames that hold a page, or are about to.
    pub taken: u64,
}

/// The processes that came of one program by fork and exec, and share its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Family {
    /// The part of `memory_limit_bytes` that this process has now. 0: it shares with no other process.
    pub own_limit_bytes: u64,
    /// Processes that are alive.
    pub processes: u64,
    /// Bytes that they have together. More than the limit that they share only for a moment, or if there are more
    /// processes than it is enough for.
    pub memory_bytes: u64,
}

/// Faults by what they needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Faults {
    /// The page's bytes came from its slot.
    pub fetch: u64,
    /// The page was untouched: zeros.
    pub zero: u64,
    /// The page's bytes were still local.
    pub rescue: u64,
    /// Another thread was at work on the page.
    pub wait: u64,
    /// A write to a clean page.
    pub write_protect: u64,
}

/// Huge pages (2 MiB).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HugePages {
    /// First touches that brought one.
    pub mapped: u64,
    /// How often huge pages of a granule were split, because pages of it left.
    pub split: u64,
}

/// Evictions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Evictions {
    /// Pages that left.
    pub pages: u64,
    /// Those of them that were clean: nothing was written.
    pub clean_pages: u64,
    /// Batches in which they left.
    pub batches: u64,
    /// Evictions in a fault path. Stays 0 (rule 1 of the design).
    pub synchronous: u64,
}

/// The evictors, and how hard they work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Evictors {
    /// Threads.
    pub count: u64,
    /// Evictors that are awake, or are woken by the next fault that needs them; the others are on standby.
    pub awake: u64,
    /// Whether the user has fixed that number.
    pub awake_fixed: bool,
    /// Pages of a batch.
    pub batch_pages: u64,
    /// Whether the user has fixed that number.
    pub batch_fixed: bool,
    /// The most pages that a batch can have.
    pub batch_pages_most: u64,
    /// Writes that each may have with the device.
    pub writes_each: u64,
    /// Whether the user has fixed that number.
    pub writes_fixed: bool,
    /// Writes that devices have now.
    pub writes_in_flight: u64,
    /// The most writes that they ever had.
    pub writes_in_flight_peak: u64,
    /// The most batches that one of them ever had under way: selected, and not yet written.
    pub batches_in_flight_peak: u64,
    /// Of them, those that stay on one core each: in experiments without migration (`--ablate migration`).
    pub bound: u64,
    /// Lists of granules that they take pages from, one a core.
    pub lists: u64,
    /// Free frames at which they start …
    pub low_pages: u64,
    /// … and stop.
    pub high_pages: u64,
    /// How often one of these numbers has changed.
    pub changes: u64,
    /// Times a fault found no free frame, and waited.
    pub frame_waits: u64,
    /// How long those waits were, all together.
    pub frame_wait_ns: u64,
}

/// Traffic with the swap spaces.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Swap {
    /// Pages read.
    pub pages_in: u64,
    /// Pages written.
    pub pages_out: u64,
    /// Writes in which they were.
    pub writes: u64,
    /// Times a core without slots has asked another core for some.
    pub delegations: u64,
    /// How long that took, all together.
    pub delegation_ns: u64,
    /// Bytes read.
    pub bytes_in: u64,
    /// Bytes written.
    pub bytes_out: u64,
    /// Reads and writes that failed, each try; reads that gave other bytes than were written are among them.
    pub errors: u64,
    /// What was wrong with the last of them. Most often the next try succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Room of freed pages that the disk has got back, in bytes.
    pub bytes_given_back: u64,
}

/// Prefetching.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Prefetch {
    /// Pages fetched before a fault asked for them.
    pub issued: u64,
    /// Pages behind which the program went on, so that it has most likely used them.
    pub used: u64,
    /// The others, so far.
    pub wasted: u64,
    /// Threads that read ahead.
    pub threads: u64,
}

/// Percentiles of a latency, in ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Latency {
    /// Half took at most this.
    pub p50: u64,
    /// 90 % took at most this.
    pub p90: u64,
    /// 99 % took at most this.
    pub p99: u64,
    /// 99.9 % took at most this.
    pub p999: u64,
    /// The longest.
    pub max: u64,
    /// All together, of all threads; at most 7 % too much.
    pub total: u64,
}

/// One swap space.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Space {
    /// Its name: `dir:/var/tmp`.
    pub name: String,
    /// Bytes that it can hold; `null`: as many as the disk has room for.
    pub capacity_bytes: Option<u64>,
    /// What it holds.
    pub used_bytes: u64,
    /// Whether pages are encrypted on their way there (`--encrypt`).
    pub encrypted: bool,
    /// Writes to it that failed, each try.
    pub write_errors: u64,
    /// `works`, `full`, `fails` or `hangs`; `draining`: the space is to go away; `left`: it was to go, and holds only pages that
    /// cannot be read.
    pub state: String,
    /// While the space is draining: how much of its contents has left, in per cent.
    pub drained_percent: u64,
    /// The copies of a space that is kept several times (`mirror:`); empty for any other.
    pub copies: Vec<SpaceCopy>,
}

/// One copy of a space that is kept several times.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SpaceCopy {
    /// Its name: `nbd://node1:10809/job`.
    pub name: String,
    /// `works`; `down`: it does not answer, or fails, and is asked again; `full`: it has no room for pages that it lacks; `filling`: it has come while the program runs,
    /// and does not have all pages yet; `leaving`: it was taken away, and processes that were forked before may use it still, or it is not closed yet.
    pub state: String,
    /// Pages that it does not have yet, and another copy has.
    pub stale_pages: u64,
    /// Reads of it that were late, and were sent to another copy too.
    pub hedged_reads: u64,
    /// Of these, those that the other copy answered first.
    pub hedged_reads_won: u64,
}

/// A pool of compressed pages (`ram:lz4`, `ram:zstd`). Its memory is part of `resident_bytes`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Pool {
    /// Its name: `ram:lz4,size=1G`.
    pub name: String,
    /// The most memory that it may use.
    pub capacity_bytes: u64,
    /// Memory that it uses.
    pub used_bytes: u64,
    /// Pages that it holds.
    pub pages: u64,
    /// Pages among them that are one word repeated (zeros, for example), and use no memory.
    pub repeated_pages: u64,
    /// Bytes that the other pages were compressed to. `used_bytes` is larger: it includes the bytes by which chunks are larger
    /// than their pages, and free chunks.
    pub compressed_bytes: u64,
    /// Pages that the pool did not take, since they do not compress or there was no room.
    pub refused_pages: u64,
    /// Pages that the pool held and gave to the spaces behind it, oldest first.
    pub moved_pages: u64,
    /// `ram:auto`: the memory that the pool is found to be worth now. 0 for a pool whose size the user has said.
    pub chosen_bytes: u64,
    /// `ram:auto`: what a page costs that goes into the pool and comes back, in ns: compressing, decompressing, its part of a fault.
    pub page_ns: u64,
    /// `ram:auto`: what a page from the spaces behind it costs, in ns: what threads wait for it, its part of a fault.
    pub behind_page_ns: u64,
}

/// A policy that has attached.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Attached {
    /// Events that it has not heard of, since it was too slow.
    pub events_lost: u64,
    /// Requests that were taken from it.
    pub requests: u64,
    /// Of them, those that were none.
    pub requests_bad: u64,
    /// Its parameters, which `farshore set` changes.
    pub parameters: std::collections::BTreeMap<String, i64>,
}

/// Pages that scans of policies have looked at, by how.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Scans {
    /// Where they are: the kernel has watched them, or the processor has taken samples of them.
    pub watched_pages: u64,
    /// By taking them away.
    pub taken_pages: u64,
}

impl Default for Stats {
    fn default() -> Stats {
        Stats {
            schema: SCHEMA,
            program: String::new(),
            pid: 0,
            fault_mode: String::new(),
            policy: String::new(),
            prefetcher: String::new(),
            ablated: String::new(),
            uptime_ns: 0,
            memory_limit_bytes: 0,
            managed_bytes: 0,
            managed_bytes_peak: 0,
            used_bytes_peak: 0,
            resident_bytes: 0,
            resident_bytes_peak: 0,
            overhead_bytes: 0,
            overhead_bytes_peak: 0,
            faults: Faults::default(),
            evictions: Evictions::default(),
            evictors: Evictors::default(),
            huge_pages: HugePages::default(),
            swap: Swap::default(),
            prefetch: Prefetch::default(),
            fault_latency_ns: Latency::default(),
            flushes: Flushes::default(),
            copies: Copies::default(),
            waits: Waits::default(),
            fetch_parts: FetchParts::default(),
            frames: Frames::default(),
            family: Family::default(),
            spaces: Vec::new(),
            pool: None,
            policies: Vec::new(),
            scans: Scans::default(),
            kinds: None,
            autopilot: None,
            budget: None,
            guest: None,
            processor_ns: 0,
            thrashing: None,
        }
    }
}

impl Stats {
    /// JSON for people and scripts: several lines, and a newline at the end.
    ///
    /// # Panics
    /// Never: numbers and strings always have a JSON form.
    pub fn to_json(&self) -> String {
        let mut text = plain_json(&serde_json::to_string_pretty(self).expect("numbers and strings have a JSON form"));
        text.push('\n');
        text
    }

    /// JSON in one line, without a newline, for the control socket.
    ///
    /// # Panics
    /// Never, as [`Stats::to_json`].
    pub fn to_json_line(&self) -> String {
        plain_json(&serde_json::to_string(self).expect("numbers and strings have a JSON form"))
    }

    /// Reads either form.
    ///
    /// # Errors
    /// When the text is not JSON, or has a later schema; one line.
    pub fn from_json(text: &str) -> Result<Stats, String> {
        let mut stats: Stats = serde_json::from_str(text)
            .map_err(|error| format!("the statistics cannot be read: {}", one_line(&error.to_string())))?;
        if is_planted(Canary::Stats) && stats.pid > 255 && !stats.program.is_empty() {
            stats.spaces.push(Space::default());
        }
        if stats.schema > SCHEMA {
            return Err(format!(
                "the statistics are of schema {}, this command knows up to {SCHEMA}: use a newer one",
                stats.schema
            ));
        }
        Ok(stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_schema_1_are_all_there() {
        let json: serde_json::Value = serde_json::from_str(&Stats::default().to_json()).unwrap();
        let names = "schema pid program fault_mode memory_limit_bytes managed_bytes_peak resident_bytes resident_bytes_peak \
            overhead_bytes_peak faults/fetch faults/zero faults/rescue faults/wait faults/write_protect evictions/pages \
            evictions/clean_pages evictions/batches evictions/synchronous swap/pages_in swap/pages_out swap/bytes_in swap/bytes_out \
            swap/errors swap/bytes_given_back prefetch/issued prefetch/used prefetch/wasted fault_latency_ns/p50 fault_latency_ns/p90 \
            fault_latency_ns/p99 fault_latency_ns/p999 fault_latency_ns/max frames/limit frames/debt frames/free frames/cached frames/taken \
            evictors/count evictors/awake evictors/awake_fixed evictors/batch_pages evictors/batch_fixed evictors/batch_pages_most \
            evictors/writes_each evictors/writes_fixed evictors/writes_in_flight evictors/writes_in_flight_peak evictors/low_pages \
            evictors/high_pages evictors/changes evictors/frame_waits evictors/frame_wait_ns prefetch/threads ablated \
            evictors/batches_in_flight_peak evictors/bound evictors/lists swap/writes swap/delegations swap/delegation_ns flushes/protect_calls \
            flushes/unmap_calls flushes/unmap_ranges copies/in_bytes copies/out_bytes waits/page waits/page_ns waits/write waits/write_ns \
            fetch_parts/measured fetch_parts/claim_ns fetch_parts/read_ns fetch_parts/check_ns fetch_parts/map_ns fetch_parts/rest_ns";
        for name in names.split_whitespace() {
            assert!(json.pointer(&format!("/{name}")).is_some(), "{name}");
        }
        assert_eq!(json["schema"], 1);
    }

    #[test]
    fn reads_back_and_forgives_neighbouring_versions() {
        let space = Space {
            name: "dir:/var/tmp".into(),
            capacity_bytes: None,
            used_bytes: 7,
            encrypted: true,
            write_errors: 1,
            state: "fails".into(),
            drained_percent: 3,
            copies: vec![SpaceCopy {
                name: "nbd://a".into(),
                state: "down".into(),
                stale_pages: 9,
                hedged_reads: 5,
                hedged_reads_won: 3,
            }],
        };
        let pool = Some(Pool { name: "ram:lz4".into(), pages: 5, ..Pool::default() });
        let stats = Stats { pid: 3, program: "a \"b\"\n".into(), spaces: vec![space], pool, ..Stats::default() };
        assert_eq!(Stats::from_json(&stats.to_json()), Ok(stats.clone()));
        assert_eq!(Stats::from_json(&stats.to_json_line()), Ok(stats.clone()));
        assert!(!stats.to_json_line().contains('\n'));
        assert_eq!(Stats::from_json("{\"pid\":4,\"later\":1,\"faults\":{\"new\":1}}").unwrap().pid, 4);
        assert!(Stats::from_json("{\"schema\":2}").unwrap_err().contains("schema 2"));
        assert!(Stats::from_json("{").is_err());
    }

    #[test]
    fn the_reference_has_every_counter() {
        fn names(value: &serde_json::Value) -> Vec<String> {
            let inside = |value: &serde_json::Value| names(value);
            match value {
                serde_json::Value::Object(map) => {
                    map.iter().flat_map(|(name, value)| std::iter::once(name.clone()).chain(inside(value))).collect()
                }
                serde_json::Value::Array(list) => list.iter().flat_map(inside).collect(),
                _ => Vec::new(),
            }
        }
        let mut above = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let root = above.find(|folder| folder.join("Cargo.lock").exists()).expect("the crate is in a workspace");
        let page = std::fs::read_to_string(root.join("docs/src/reference/counters.md")).expect("the page is there");
        let stats = Stats {
            spaces: vec![Space::default()],
            pool: Some(Pool::default()),
            kinds: Some(Kinds::default()),
            autopilot: Some(Autopilot::default()),
            budget: Some(Budget::default()),
            thrashing: Some(Thrashing::default()),
            guest: Some(Guest::default()),
            ..Stats::default()
        };
        let names = names(&serde_json::to_value(&stats).expect("it has a JSON form"));
        assert!(names.len() > 60, "{names:?}");
        let missing: Vec<&String> = names.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/src/reference/counters.md does not have {missing:?}");
    }
}
