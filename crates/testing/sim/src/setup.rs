//! How a run is set up: from the command line, and from the seed where the command line says nothing.

use crate::rng::{self, Rng};
use farshore_config::Ablate;
use farshore_core::ablated::Ablated;
use farshore_core::limits::WRITES_MAX;
use farshore_core::seams::HugePages;
use farshore_engine::evict::control::Wanted;

/// What the user asked for.
#[derive(Clone, Copy, Default, Debug)]
pub struct Wish {
    /// The seed.
    pub seed: u64,
    /// Steps of the scheduler.
    pub steps: u64,
    /// Threads of the program; `None`: the seed chooses.
    pub threads: Option<usize>,
    /// Pages that the program has at a time, about.
    pub pages: Option<u64>,
    /// Memory limit, bytes.
    pub memory: Option<u64>,
    /// Memory calls as often as possible, side by side, and races with them.
    pub rough: bool,
    /// See [`Setup::spaces`]; `None`: the seed chooses.
    pub spaces: Option<usize>,
    /// See [`Setup::single`].
    pub single: Option<Single>,
    /// All threads are workers with this many unithreads each, or (0) none is; `None`: the seed chooses.
    pub unithreads: Option<usize>,
    /// What an experiment leaves out.
    pub ablated: Ablated,
}

/// How a run is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// What was asked for.
    pub wish: Wish,
    /// The seed.
    pub seed: u64,
    /// Steps of the scheduler.
    pub steps: u64,
    /// Threads of the program.
    pub threads: usize,
    /// Threads that make memory calls.
    pub callers: usize,
    /// Longest pause between two of their calls, nanoseconds.
    pub call_pause: u64,
    /// Evictors.
    pub evictors: usize,
    /// Cores.
    pub cores: usize,
    /// Pages that the program has at a time, about.
    pub pages: u64,
    /// Pages of the arena that regions lie in.
    pub arena: u64,
    /// Memory limit, bytes.
    pub memory: u64,
    /// Slots of the swap space.
    pub capacity: Option<u64>,
    /// How often a place where actors may switch is a switch, of 10,000.
    pub switch_rate: u32,
    /// Writes of 10,000 accesses.
    pub write_rate: u32,
    /// Faults are injected.
    pub inject: bool,
    /// Corruption stays in a slot, so that pages are lost (and must be reported, not read wrongly).
    pub rot: bool,
    /// Memory calls come although the program's threads do not keep out of their way.
    pub racy: bool,
    /// The program does little else than map and unmap a few whole granules, which it touches meanwhile.
    pub churn: bool,
    /// Depth of a write queue.
    pub depth: u32,
    /// Spaces that extents go round; each fails independently.
    pub spaces: usize,
    /// One operation of the device fails, and nothing else does.
    pub single: Option<Single>,
    /// The program forks now and then.
    pub forks: bool,
    /// Spaces come and go.
    pub changes: bool,
    /// Which parts of the evictors' pace are fixed at first.
    pub wanted: Wanted,
    /// What an experiment leaves out.
    pub ablated: Ablated,
    /// The fixed parts change while the run goes on.
    pub paces: bool,
    /// Room that is no longer needed is given back.
    pub trims: bool,
    /// Where fresh memory comes as huge pages.
    pub huge: HugePages,
    /// This many of the threads are workers of unithreads.
    pub workers: usize,
    /// Unithreads of each worker.
    pub unithreads: usize,
}

/// The one fault of a run that has no other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Single {
    /// Which operation of the device (reads and writes), from 0.
    pub nth: u64,
    /// How it fails.
    pub fault: Fault,
}

/// How one operation of the device fails. Some of these apply to reads only, or to writes only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The device reports an error.
    Error,
    /// The operation ends early.
    Short,
    /// There is no room. (Writes.)
    Full,
    /// Other bytes than were written, without an error. (Reads.)
    Corrupt,
    /// The operation takes longer than any patience.
    Hang,
}

impl Fault {
    /// All faults.
    pub const ALL: [Fault; 5] = [Fault::Error, Fault::Short, Fault::Full, Fault::Corrupt, Fault::Hang];
}

impl std::str::FromStr for Fault {
    type Err = ();
    fn from_str(name: &str) -> Result<Fault, ()> {
        Fault::ALL.into_iter().find(|fault| fault.to_string() == name).ok_or(())
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Fault::Error => "error",
            Fault::Short => "short",
            Fault::Full => "full",
            Fault::Corrupt => "corrupt",
            Fault::Hang => "hang",
        })
    }
}

impl Setup {
    /// Two cores to a NUMA node.
    pub fn nodes(&self) -> farshore_engine::Nodes {
        farshore_engine::Nodes::new(|core| (core / 2) as u8)
    }
}

impl Wish {
    /// The command that runs the same again, in the workspace's root. Assertions are among the checks that may break the
    /// run.
    pub fn command(&self) -> String {
        let checked = if cfg!(debug_assertions) { "CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true " } else { "" };
        let mut command = format!("{checked}cargo run --release -p farshore-sim -- --seed {} --steps {}", self.seed, self.steps);
        let mut add = |flag: &str, value: Option<String>| {
            if let Some(value) = value {
                command += &format!(" {flag} {value}");
            }
        };
        add("--threads", self.threads.map(|n| n.to_string()));
        add("--pages", self.pages.map(|n| n.to_string()));
        add("--memory", self.memory.map(|n| n.to_string()));
        add("--spaces", self.spaces.map(|n| n.to_string()));
        add("--unithreads", self.unithreads.map(|n| n.to_string()));
        add("--fail", self.single.map(|single| format!("{},{}", single.nth, single.fault)));
        if self.ablated != Ablated::default() {
            command += &format!(" --ablate {}", Ablate(self.ablated));
        }
        if self.rough {
            command += " --rough";
        }
        command
    }

    /// What the user asked for, and the rest from the seed.
    pub fn setup(&self) -> Setup {
        let mut rng = rng::seeded(self.seed.wrapping_mul(3));
        let memory = self.memory.unwrap_or_else(|| rng.pick(&[4, 4, 4, 5, 8]) << 20);
        let frames = memory / 4096;
        let drawn = frames * rng.between(5, 40) / 10;
        let pages = self.pages.unwrap_or(drawn).max(64);
        let capacity = match rng.below(10) {
            0 | 1 => Some((pages * 5 / 4).next_multiple_of(512)),
            2 => Some((pages / 2).next_multiple_of(512)),
            _ => None,
        };
        let setup = Setup {
            wish: *self,
            seed: self.seed,
            steps: self.steps,
            threads: self.threads.unwrap_or_else(|| rng.between(1, 6) as usize),
            callers: rng.between(0, 2) as usize,
            call_pause: rng.pick(&[10_000, 60_000, 400_000]),
            evictors: rng.pick(&[1, 1, 2, 4]),
            cores: rng.between(1, 4) as usize,
            pages,
            // Dense arenas make neighbours of regions, sparse ones make whole granules come and go.
            arena: (pages * rng.pick(&[13, 20, 30]) / 10).next_multiple_of(512) + 1024,
            memory,
            capacity,
            switch_rate: rng.pick(&[300, 1500, 5000, 10_000]),
            write_rate: rng.pick(&[500, 3000, 6000]),
            inject: rng.below(4) > 0 && self.single.is_none(),
            rot: rng.below(4) == 0,
            racy: rng.below(3) == 0,
            churn: false,
            depth: rng.pick(&[1, 2, 8, 256]),
            spaces: 1,
            single: self.single,
            forks: rng.below(2) == 0 && self.single.is_none(),
            changes: false,
            wanted: Wanted::default(),
            ablated: self.ablated,
            paces: false,
            trims: false,
            huge: HugePages::Never,
            workers: 0,
            unithreads: 0,
        };
        let spaces = self.spaces.unwrap_or_else(|| rng.pick(&[1, 1, 2, 3]));
        // Each space has room for an extent.
        let setup = Setup { spaces: capacity.map_or(spaces, |c| spaces.min(c as usize / 512)).max(1), ..setup };
        let setup = Setup { changes: rng.below(2) == 0 && self.single.is_none(), ..setup };
        // Separate dice, so that the rest of the seed's run is the same as without this choice.
        let mut dice = rng::seeded(self.seed.wrapping_mul(5) + 1);
        let wanted = draw_pace(&mut dice, setup.evictors);
        let setup = Setup { wanted, paces: dice.below(2) == 0, ..setup };
        let setup = Setup { trims: dice.below(3) > 0 && self.single.is_none(), ..setup };
        let (workers, unithreads) = self.draw_unithreads(&mut dice, setup.threads);
        let setup = Setup { workers, unithreads, ..setup };
        let setup =
            Setup { huge: dice.pick(&[HugePages::Never, HugePages::Asked, HugePages::Always, HugePages::Always]), ..setup };
        if !self.rough {
            return setup;
        }
        if rng.below(4) == 0 {
            return Setup {
                churn: true,
                pages: 1024,
                arena: 1536,
                threads: 4,
                callers: 3,
                call_pause: 1_500,
                switch_rate: 10_000,
                racy: true,
                ..setup
            };
        }
        let pages = rng.pick(&[700, 1500, 2500]);
        Setup {
            pages,
            arena: (pages * 5 / 4).next_multiple_of(512) + 1024,
            threads: setup.threads.max(3),
            callers: 3,
            call_pause: rng.pick(&[2_000, 20_000]),
            switch_rate: rng.pick(&[5000, 10_000]),
            racy: rng.below(2) == 0,
            ..setup
        }
    }
}

impl Wish {
    /// How many of the threads are workers, and how many unithreads each has: in two of five cases none.
    fn draw_unithreads(&self, dice: &mut Rng, threads: usize) -> (usize, usize) {
        let (some, workers, each) = (dice.below(5) > 1, dice.between(1, threads as u64) as usize, dice.between(2, 6) as usize);
        match self.unithreads {
            Some(0) => (0, 0),
            // More than there are threads; a rough run may add threads.
            Some(each) => (usize::MAX, each),
            None if some => (workers, each),
            None => (0, 0),
        }
    }
}

/// Which parts of the pace of this many evictors are fixed: each part in one of two cases. The engine cuts batches that are too
/// large.
pub fn draw_pace(rng: &mut Rng, evictors: usize) -> Wanted {
    let (evictors, writes) = (rng.between(1, evictors as u64), rng.between(1, u64::from(WRITES_MAX)));
    let batch = rng.pick(&[8, 30, 64, 146]);
    let mut perhaps = |n: u64| (rng.below(2) == 0).then_some(n as u32);
    let (evictors, batch, writes) = (perhaps(evictors), perhaps(batch), perhaps(writes));
    Wanted { evictors, batch, writes, free: perhaps(15) }
}
