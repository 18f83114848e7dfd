//! The law against programs whose curve of misses is known: each is a set of pages that it touches at random, all alike, beside pages
//! that it never touches again. Nothing tells which are which, so pages leave by chance, as they lie.

use super::*;

/// Pages of a MiB.
const MIB: u64 = 256;
const AIM: Aim = Aim { target: 0.05, least: 16 * MIB, most: 4096 * MIB };

struct Program {
    /// Pages that it touches, and how many of them are there.
    hot: f64,
    there: f64,
    /// Pages that are there, and not touched.
    cold: f64,
    limit: u64,
    /// Time of one touch, and of one fault, ns.
    touch_ns: f64,
    fault_ns: f64,
    /// The part of the time in which it does anything.
    busy: f64,
    /// What is measured is this much off, to and fro.
    noise: f64,
    seed: u64,
    pilot: Pilot,
    lost: f64,
    ran: f64,
}

impl Program {
    fn new(hot_mib: u64, cold_mib: u64) -> Program {
        Program {
            hot: (hot_mib * MIB) as f64,
            there: (hot_mib * MIB) as f64,
            cold: (cold_mib * MIB) as f64,
            limit: AIM.most,
            touch_ns: 500.0,
            fault_ns: 60_000.0,
            busy: 1.0,
            noise: 0.0,
            seed: 7,
            pilot: Pilot::new(),
            lost: 0.0,
            ran: 0.0,
        }
    }

    fn random(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as f64 / f64::from(1u32 << 31)
    }

    fn evict(&mut self) {
        // Evictors keep some frames free.
        let room = self.limit - (self.limit / 16).clamp(16, 512);
        let over = self.there + self.cold - room as f64;
        if over > 0.0 {
            let part = over / (self.there + self.cold);
            self.there -= self.there * part;
            self.cold -= self.cold * part;
        }
    }

    /// Runs for one look, and returns the limit afterwards.
    fn look(&mut self) -> u64 {
        const PIECE_NS: f64 = 2e6;
        let (mut lost, mut ran) = (0.0, 0.0);
        let pieces = (LOOK_NS as f64 / PIECE_NS) as u64;
        for _ in 0..pieces {
            self.evict();
            let misses = (1.0 - self.there / self.hot).clamp(0.0, 1.0);
            let touches = PIECE_NS * self.busy / (self.touch_ns + misses * self.fault_ns);
            let came = (touches * misses).min(self.hot - self.there);
            self.there += came;
            lost += came * self.fault_ns;
            ran += touches * self.touch_ns;
        }
        self.evict();
        self.lost += lost;
        self.ran += ran;
        let off = 1.0 + self.noise * (2.0 * self.random() - 1.0);
        let look = Look {
            wall_ns: LOOK_NS,
            lost_ns: (lost * off) as u64,
            ran_ns: ran as u64,
            in_use: (self.there + self.cold) as u64,
            limit: self.limit,
            settled: true,
        };
        if let Some(next) = self.pilot.look(AIM, look) {
            assert!((AIM.least..=AIM.most).contains(&next), "{next} is outside");
            assert_ne!(next, self.limit);
            self.limit = next;
        }
        self.limit
    }

    fn run(&mut self, seconds: u64) -> Vec<u64> {
        (0..seconds * 1_000_000_000 / LOOK_NS).map(|_| self.look()).collect()
    }

    /// What was lost by what it ran, in the next so many seconds.
    fn slowdown_over(&mut self, seconds: u64) -> f64 {
        (self.lost, self.ran) = (0.0, 0.0);
        self.run(seconds);
        self.lost / self.ran
    }

    fn is_near(&self, mib: u64) -> bool {
        let knee = (mib * MIB) as f64;
        (self.limit as f64) < knee * 1.15 && self.limit as f64 > knee * 0.85
    }
}

#[test]
fn finds_the_knee_and_stays_there() {
    for (hot, cold, noise) in [(100, 900, 0.0), (100, 900, 0.3), (600, 300, 0.3), (40, 4, 0.3)] {
        let mut program = Program { noise, ..Program::new(hot, cold) };
        // Pages that leave by chance come back, each by a fault that the target has to have room for, and push others out.
        program.run(600);
        assert!(program.is_near(hot), "{hot} of {}: {} MiB", hot + cold, program.limit / MIB);
        let limits = program.run(60);
        let (least, most) = (limits.iter().min().unwrap(), limits.iter().max().unwrap());
        assert!(*most as f64 <= *least as f64 * 1.25, "{hot}: {} to {} MiB", least / MIB, most / MIB);
        let slowdown = program.slowdown_over(120);
        assert!(slowdown < AIM.target * 1.2, "{hot}: {slowdown}");
    }
}

#[test]
fn while_it_looks_for_the_knee_it_loses_little_more_than_it_may() {
    let mut program = Program::new(100, 900);
    let slowdown = program.slowdown_over(60);
    assert!(slowdown < AIM.target * 1.5, "{slowdown}");
}

#[test]
fn answers_a_step_of_load_within_five_seconds() {
    for (small, large) in [(50, 200), (100, 800)] {
        let mut program = Program::new(small, 500);
        program.run(120);
        program.hot = (large * MIB) as f64;
        program.fault_ns = 10_000.0;
        program.run(5);
        assert!(program.limit as f64 > (large * MIB) as f64 * 0.95, "{small} to {large}: {} MiB", program.limit / MIB);
        program.run(60);
        assert!(program.is_near(large), "{small} to {large}: {} MiB", program.limit / MIB);
    }
}

#[test]
fn gives_back_what_gets_cold() {
    let mut program = Program::new(400, 100);
    program.run(90);
    assert!(program.is_near(400), "{} MiB", program.limit / MIB);
    let cold = program.there * 0.75;
    (program.hot, program.there, program.cold) = (program.hot / 4.0, program.there - cold, program.cold + cold);
    program.run(300);
    assert!(program.is_near(100), "{} MiB", program.limit / MIB);
}

#[test]
fn a_program_that_touches_nothing_gets_the_least() {
    for busy in [0.0, 1.0] {
        let mut program = Program { busy, touch_ns: 1e6, ..Program::new(1, 1000) };
        program.run(120);
        assert_eq!(program.limit, AIM.least, "busy {busy}");
    }
}

#[test]
fn a_program_that_needs_everything_keeps_it() {
    let mut program = Program::new(1000, 0);
    let limits = program.run(120);
    let low = limits.iter().skip(10).min().unwrap();
    assert!(*low as f64 > (1000 * MIB) as f64 * 0.9, "{} MiB", low / MIB);
    // Also where that is more than there may be.
    let mut program = Program::new(5000, 0);
    program.run(60);
    assert!(program.limit > AIM.most - AIM.most / 10, "{} MiB", program.limit / MIB);
}

#[test]
fn while_a_program_grows_nothing_is_taken_away() {
    let mut program = Program::new(10, 10);
    for _ in 0..50 {
        program.hot += (20 * MIB) as f64;
        program.there += (20 * MIB) as f64;
        assert_eq!(program.look(), AIM.most);
    }
}

#[test]
fn one_that_wakes_for_a_moment_may_lose_a_moment() {
    // It works for a hundredth of the time, on little; the rest has been cold for long.
    let mut program = Program { busy: 0.01, ..Program::new(30, 500) };
    program.run(1200);
    assert!(program.limit < 60 * MIB, "{} MiB", program.limit / MIB);
}

#[test]
fn one_fault_of_half_a_minute_is_no_shortage() {
    let mut pilot = Pilot::new();
    let calm = Look { wall_ns: LOOK_NS, lost_ns: 0, ran_ns: LOOK_NS, in_use: 1000 * MIB, limit: 1100 * MIB, settled: true };
    for _ in 0..60 {
        pilot.look(AIM, Look { limit: 1000 * MIB, ..calm });
    }
    let hit = pilot.look(AIM, Look { lost_ns: 30_000_000_000, ..calm });
    assert!(hit.is_none_or(|limit| limit <= 1150 * MIB), "{hit:?}");
    assert_eq!(pilot.look(AIM, calm), None);
    assert!(pilot.too_small.is_none());
}

#[test]
fn a_limit_outside_of_the_bounds_is_brought_back() {
    let look = Look { wall_ns: LOOK_NS, lost_ns: 0, ran_ns: 1, in_use: 1, limit: AIM.most + 1, settled: false };
    assert_eq!(Pilot::new().look(AIM, look), Some(AIM.most));
    assert_eq!(Pilot::new().look(AIM, Look { limit: AIM.least - 1, ..look }), Some(AIM.least));
}
