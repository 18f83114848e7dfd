//! The kernel's own: a memory cgroup, and swap space that is a file, a zram device, or a file behind zswap.
//!
//! # Order
//!
//! ```text
//! set_up   files and devices, with a swap area's head
//! before   zswap on, read-ahead off ─▶ areas on ─▶ controller ─▶ cgroup
//! after    cgroup (whoever is still in it is ended) ─▶ controller ─▶ areas off ─▶ settings back
//! ```
//!
//! Without the cgroup nobody needs the swap space any more, and what is brought back from it is nobody's limit.
//!
//! What the limit counts besides the program's data: its text, stacks and page tables, and in version 2 what zswap has compressed of it. What
//! zram has compressed is counted by no limit; it is told among the settings. With `pool=counted` the limit shrinks by it while the program runs
//! ([`super::total`]); zswap then needs version 2, since in version 1 nothing bounds its pool but a share of the whole machine's RAM.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::plain::{add_traffic, environment_settings, kernel_counters};
use super::{Place, Target};
use crate::journal::{Journal, Thing};
use crate::output;
use crate::result::{Counters, Round};
use crate::targets::cgroup::{Cgroup, Hierarchy, Version};
use crate::targets::total::{Keeper, Seen};
use crate::targets::{setting, swap, tools, zram, zswap};

/// Room in swap space beyond what it must hold, in bytes: its head, and what is not the program's data.
const SPARE: u64 = 64 << 20;
/// Areas are whole pages, in bytes; a size that every page size of Linux divides.
const GRAIN: u64 = 64 << 10;

/// What the swap space is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Files.
    File,
    /// Compressed RAM.
    Zram,
    /// Files behind a compressed cache.
    Zswap,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::File => "linux-swap",
            Kind::Zram => "zram",
            Kind::Zswap => "zswap",
        })
    }
}

/// `linux-swap`, `zram`, `zswap`.
#[derive(Debug)]
pub struct Kernel {
    kind: Kind,
    /// Whether what is compressed counts within the limit.
    counted: bool,
    /// Whether the kernel reads ahead, as it is set.
    ahead: bool,
    environment: BTreeMap<String, String>,
    journal: Arc<Journal>,
    place: Option<Place>,
    hierarchy: Option<Hierarchy>,
    areas: Vec<Area>,
    /// What was made in `set_up`, in order.
    lasting: Vec<Thing>,
    /// What was made in `before`, in order.
    passing: Vec<Thing>,
    cgroup: Option<Cgroup>,
    traffic: (u64, u64),
    compressor: String,
    /// The most memory that all zram devices have taken in a run, in bytes.
    pool_peak: u64,
    /// Keeps the limit while a program runs, where zram counts within it.
    keeper: Option<Keeper>,
    /// The most that such a limit has seen, in bytes.
    total_peak: u64,
}

#[derive(Debug)]
struct Area {
    path: PathBuf,
    device: Option<zram::Id>,
}

impl Kernel {
    /// A target of this kind, which writes down in `journal` what it makes. `counted`: what is compressed counts within the limit; `ahead`: swap reads ahead as it is set.
    #[must_use]
    pub fn new(kind: Kind, counted: bool, ahead: bool, environment: BTreeMap<String, String>, journal: &Arc<Journal>) -> Kernel {
        Kernel {
            kind,
            counted,
            ahead,
            environment,
            journal: Arc::clone(journal),
            place: None,
            hierarchy: None,
            areas: Vec::new(),
            lasting: Vec::new(),
            passing: Vec::new(),
            cgroup: None,
            traffic: (0, 0),
            compressor: String::new(),
            pool_peak: 0,
            keeper: None,
            total_peak: 0,
        }
    }

    fn make_areas(&mut self, place: &Place) -> Result<(), String> {
        if self.kind == Kind::Zram && !zram::is_loaded() {
            self.note_lasting(Thing::ZramModule)?;
            zram::load()?;
        }
        for _ in 0..place.swap_files.max(1) {
            if self.journal.is_stopping() {
                return Err("interrupted".to_string());
            }
            let area = if self.kind == Kind::Zram { self.make_device(place)? } else { self.make_file(place)? };
            self.areas.push(area);
        }
        Ok(())
    }

    fn make_file(&mut self, place: &Place) -> Result<Area, String> {
        let path = place.directory.join(self.journal.new_name());
        self.note_lasting(Thing::File { path: path.clone() })?;
        swap::make_file(&path, area_bytes(place), || self.journal.is_stopping())?;
        Ok(Area { path, device: None })
    }

    fn make_device(&mut self, place: &Place) -> Result<Area, String> {
        let intent = Thing::ZramIntent { before: zram::present().into_iter().collect() };
        self.journal.note(intent.clone())?;
        let added = zram::add();
        if let Ok(device) = added
            && let Err(why) = self.note_lasting(Thing::Zram { device })
        {
            zram::remove(device)?;
            return Err(why);
        }
        self.journal.done(&intent);
        let device = added?;
        let path = zram::configure(device, area_bytes(place), self.journal.work())?;
        Ok(Area { path, device: Some(device) })
    }

    fn note_lasting(&mut self, thing: Thing) -> Result<(), String> {
        self.journal.note(thing.clone())?;
        self.lasting.push(thing);
        Ok(())
    }

    fn note_passing(&mut self, thing: Thing) -> Result<(), String> {
        self.journal.note(thing.clone())?;
        self.passing.push(thing);
        Ok(())
    }

    fn switch_on(&mut self) -> Result<(), String> {
        if self.kind == Kind::Zswap {
            zswap::switch_on(&self.journal, &mut self.passing)?;
            self.compressor = zswap::get("compressor")?;
        }
        if !self.ahead {
            setting::change(&self.journal, Path::new(setting::READ_AHEAD), "0", &mut self.passing)?;
        }
        let priority = swap::priority()?;
        for index in 0..self.areas.len() {
            let (path, device) = (self.areas[index].path.clone(), self.areas[index].device);
            if let Some(device) = device {
                zram::forget_peak(device);
            }
            self.note_passing(Thing::Swap { path: path.clone(), device })?;
            swap::on(&path, priority)?;
        }
        Ok(())
    }

    fn enter_limit(&mut self) -> Result<(), String> {
        let (Some(place), Some(hierarchy)) = (&self.place, self.hierarchy.clone()) else {
            return Err("this target was not set up".to_string());
        };
        let limit = limit_bytes(place);
        let parent = hierarchy.parent()?;
        if parent.enable {
            let controller = hierarchy.controller.to_string();
            self.note_passing(Thing::Controller { path: parent.path.clone(), controller })?;
            hierarchy.enable(&parent.path)?;
        }
        let cgroup = Cgroup::at(parent.path.join(self.journal.new_name()), hierarchy.version);
        self.note_passing(Thing::Cgroup { path: cgroup.path.clone() })?;
        cgroup.make(limit)?;
        if self.counted && self.kind == Kind::Zram {
            let devices: Vec<zram::Id> = self.areas.iter().filter_map(|area| area.device).collect();
            let pool = move || devices.iter().map(|device| zram::used(*device)).sum();
            self.keeper = Some(Keeper::start(cgroup.clone(), limit, pool)?);
        }
        self.cgroup = Some(cgroup);
        Ok(())
    }

    /// Ends the thread that keeps the limit, and tells `round` what it has seen.
    fn end_keeper(&mut self, round: &mut Round, limit: u64) {
        let Some(Seen { total_peak, pool_peak, does_not_fit }) = self.keeper.take().map(Keeper::end) else { return };
        self.total_peak = self.total_peak.max(total_peak);
        round.peak_limited_bytes = total_peak;
        if does_not_fit {
            round.wrong.push(format!(
                "it does not fit: what was compressed took {pool_peak} of the {limit} bytes that it has for both, and left too little"
            ));
        }
    }

    fn undo(&self, things: &mut Vec<Thing>) {
        while let Some(thing) = things.pop() {
            if let Err(why) = self.journal.undo(&thing) {
                // It stays noted: the journal's end tries once more, and the next start too.
                output::tell(&format!("bench: {}: {why}", self.kind));
            }
        }
    }

    fn undo_passing(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.end();
        }
        self.cgroup = None;
        let mut things = std::mem::take(&mut self.passing);
        self.undo(&mut things);
    }
}

/// Bytes of one area.
fn area_bytes(place: &Place) -> u64 {
    let share = place.swap_bytes.div_ceil(u64::from(place.swap_files.max(1)));
    (share + SPARE).next_multiple_of(GRAIN)
}

/// The cgroup's limit, in bytes.
fn limit_bytes(place: &Place) -> u64 {
    place.memory_bytes.saturating_add(place.extra_bytes)
}

impl Target for Kernel {
    fn kind(&self) -> &'static str {
        match self.kind {
            Kind::File => "linux-swap",
            Kind::Zram => "zram",
            Kind::Zswap => "zswap",
        }
    }

    fn settings(&self) -> BTreeMap<String, String> {
        let mut settings = environment_settings(&self.environment);
        let mut tell = |name: &str, value: String| settings.insert(name.to_string(), value);
        if let Some(place) = &self.place {
            tell("limit_bytes", limit_bytes(place).to_string());
            tell("areas", place.swap_files.max(1).to_string());
            tell("area_bytes", area_bytes(place).to_string());
        }
        if let Some(hierarchy) = &self.hierarchy {
            tell("cgroup", if hierarchy.version == Version::One { "version 1" } else { "version 2" }.to_string());
        }
        if self.kind == Kind::Zram {
            tell("algorithm", zram::ALGORITHM.to_string());
            tell("compressed_bytes_peak", self.pool_peak.to_string());
        }
        if self.counted {
            tell("pool", "counted".to_string());
        }
        if !self.ahead {
            tell("readahead", "none".to_string());
        }
        if self.counted && self.kind == Kind::Zram {
            tell("total_bytes_peak", self.total_peak.to_string());
        }
        if self.kind == Kind::Zswap {
            for name in ["max_pool_percent", "accept_threshold_percent", "shrinker_enabled"] {
                if let Ok(value) = zswap::get(name) {
                    tell(name, value);
                }
            }
            if !self.compressor.is_empty() {
                tell("compressor", self.compressor.clone());
            }
        }
        settings
    }

    fn uses_device(&self) -> bool {
        self.kind != Kind::Zram
    }

    fn set_up(&mut self, place: &Place) -> Result<(), String> {
        if self.place.as_ref() == Some(place) {
            return Ok(());
        }
        self.take_down();
        tools::need_root("a memory cgroup and swap space are the kernel's")?;
        swap::need_tools()?;
        swap::active()?;
        if self.kind == Kind::Zswap {
            zswap::need()?;
        }
        let hierarchy = Hierarchy::find()?;
        hierarchy.parent()?;
        if self.counted && self.kind == Kind::Zswap && hierarchy.version == Version::One {
            return Err("pool=counted: the memory cgroups of this machine are of version 1, whose limit does not count what zswap has compressed: start Linux with systemd.unified_cgroup_hierarchy=1, or leave pool=counted out".to_string());
        }
        self.journal.claim_kernel()?;
        self.hierarchy = Some(hierarchy);
        if let Err(why) = self.make_areas(place) {
            self.take_down();
            return Err(why);
        }
        self.place = Some(place.clone());
        Ok(())
    }

    fn before(&mut self) -> Result<(), String> {
        self.undo_passing();
        self.traffic = swap::traffic();
        let ready = self.switch_on().and_then(|()| self.enter_limit());
        if ready.is_err() {
            self.undo_passing();
        }
        ready
    }

    fn command(&self, program: &[OsString]) -> Command {
        // Without a cgroup the program would run without its limit: it must not run at all.
        let nowhere = Cgroup::at(PathBuf::from("/nonexistent"), Version::Two);
        let mut command = self.cgroup.as_ref().unwrap_or(&nowhere).command(program);
        command.envs(&self.environment);
        command
    }

    fn sample(&self, pid: u32) -> Option<Counters> {
        Some(kernel_counters(pid, self.traffic))
    }

    fn set_memory(&self, _pid: u32, memory_bytes: u64) -> Result<(), String> {
        let (Some(cgroup), Some(place)) = (&self.cgroup, &self.place) else {
            return Err("its limit cannot be changed: it has no cgroup".to_string());
        };
        // A keeper follows a limit of its own.
        if self.keeper.is_some() {
            return Err("its limit cannot be changed: pool=counted changes it".to_string());
        }
        cgroup.set_limit(memory_bytes.saturating_add(place.extra_bytes))
    }

    fn after(&mut self, round: &mut Round) {
        add_traffic(round, self.traffic);
        if !self.ahead
            && let Ok(now) = tools::read(Path::new(setting::READ_AHEAD))
            && now != "0"
        {
            round.wrong.push(format!("somebody else set {} to {now} meanwhile", setting::READ_AHEAD));
        }
        if let (Some(cgroup), Some(limit)) = (self.cgroup.clone(), self.place.as_ref().map(limit_bytes)) {
            round.peak_limited_bytes = cgroup.peak_bytes();
            self.end_keeper(round, limit);
            let killed = cgroup.killed();
            if killed > 0 {
                round.wrong.push(format!(
                    "the kernel ended {killed} of its processes: out of memory in its cgroup, whose limit is {limit} bytes{}",
                    if self.counted { ", what is compressed included" } else { "" }
                ));
            }
        }
        let devices = self.areas.iter().filter_map(|area| area.device);
        self.pool_peak = self.pool_peak.max(devices.map(zram::peak).sum());
        self.undo_passing();
    }

    fn take_down(&mut self) {
        self.undo_passing();
        let mut things = std::mem::take(&mut self.lasting);
        self.undo(&mut things);
        self.areas.clear();
        self.place = None;
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.take_down();
    }
}
