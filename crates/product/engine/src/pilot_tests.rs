//! The law against programs whose curve of misses is known: each is a set of pages that it touches at random, all alike, beside pages
//! that it never touches again. Nothing tells which are which, so pages leave by chance ([`Program`]), or as they lie, the hot ones together, and
//! what has come back stays for longer ([`Clock`]: evictors go round, and give chances).

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
        let (mut lost, mut ran, mut faults) = (0.0, 0.0, 0.0);
        let pieces = (LOOK_NS as f64 / PIECE_NS) as u64;
        for _ in 0..pieces {
            self.evict();
            let misses = (1.0 - self.there / self.hot).clamp(0.0, 1.0);
            let touches = PIECE_NS * self.busy / (self.touch_ns + misses * self.fault_ns);
            let came = (touches * misses).min(self.hot - self.there);
            self.there += came;
            lost += came * self.fault_ns;
            faults += came;
            ran += touches * self.touch_ns;
        }
        self.evict();
        self.lost += lost;
        self.ran += ran;
        let off = 1.0 + self.noise * (2.0 * self.random() - 1.0);
        let look = Look {
            wall_ns: LOOK_NS,
            lost_ns: (lost * off) as u64,
            came: faults as u64,
            ran_ns: ran as u64,
            grown: 0,
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
    program.run(100);
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
    let calm = Look {
        wall_ns: LOOK_NS,
        lost_ns: 0,
        came: 0,
        ran_ns: LOOK_NS,
        grown: 0,
        in_use: 1000 * MIB,
        limit: 1100 * MIB,
        settled: true,
    };
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
    let look =
        Look { wall_ns: LOOK_NS, lost_ns: 0, came: 0, ran_ns: 1, grown: 0, in_use: 1, limit: AIM.most + 1, settled: false };
    assert_eq!(Pilot::new().look(AIM, look), Some(AIM.most));
    assert_eq!(Pilot::new().look(AIM, Look { limit: AIM.least - 1, ..look }), Some(AIM.least));
}

/// Pages as they lie: some cold ones, the hot ones, the rest. Evictors go round them; a hot page that leaves comes back at once, and is passed
/// over for some rounds. Of the pages that left last, some thousand linger: these come back cheaply.
struct Clock {
    /// The granule, in pages, of what is simulated.
    hot: std::ops::Range<usize>,
    /// Chances of each piece; `None`: it is out.
    pieces: Vec<Option<u8>>,
    hand: usize,
    there: usize,
    limit: u64,
    fault_ns: f64,
    rescue_ns: f64,
    threads: f64,
    pilot: Pilot,
    lost: Vec<f64>,
    ran: Vec<f64>,
}

/// Pages of a piece, and of the stages in which pages linger.
const PIECE: u64 = 64;
const LINGER: f64 = 1500.0;

impl Clock {
    fn new(mib: u64, hot_mib: u64, begins_mib: u64) -> Clock {
        let piece = |mib: u64| (mib * MIB / PIECE) as usize;
        Clock {
            hot: piece(begins_mib)..piece(begins_mib + hot_mib),
            pieces: vec![Some(0); piece(mib)],
            hand: 0,
            there: piece(mib),
            limit: AIM.most,
            fault_ns: 60_000.0,
            rescue_ns: 12_000.0,
            threads: 1.0,
            pilot: Pilot::new(),
            lost: Vec::new(),
            ran: Vec::new(),
        }
    }

    fn make_hot(&mut self, mib: u64) {
        self.hot.end = self.hot.start + (mib * MIB / PIECE) as usize;
    }

    /// Evictors make room; returns the pages that have left.
    fn evict(&mut self) -> f64 {
        let room = ((self.limit - slack(self.limit)) / PIECE) as usize;
        let before = self.there;
        while self.there > room {
            let at = self.hand;
            self.hand = (at + 1) % self.pieces.len();
            match &mut self.pieces[at] {
                Some(0) => (self.pieces[at], self.there) = (None, self.there - 1),
                Some(chances) => *chances -= 1,
                None => {}
            }
        }
        ((before - self.there) as u64 * PIECE) as f64
    }

    fn look(&mut self) -> u64 {
        let wall = LOOK_NS as f64;
        let (mut lost, mut faults) = (0.0, 0.0);
        // Hot pages that are out come back, one thread at one; not all have to.
        let mut lingers = LINGER.min(self.evict());
        for at in self.hot.clone() {
            if lost < wall * self.threads && self.pieces[at].is_none() {
                let pages = PIECE as f64;
                let rescued = lingers.min(pages);
                lingers -= rescued;
                lost += rescued * self.rescue_ns + (pages - rescued) * self.fault_ns;
                faults += pages;
                (self.pieces[at], self.there) = (Some(2), self.there + 1);
                self.evict();
            }
        }
        let ran = (wall * self.threads - lost).max(0.0);
        self.lost.push(lost);
        self.ran.push(ran);
        let look = Look {
            wall_ns: LOOK_NS,
            lost_ns: lost as u64,
            came: faults as u64,
            ran_ns: ran as u64,
            grown: 0,
            in_use: self.there as u64 * PIECE,
            limit: self.limit,
            settled: true,
        };
        self.limit = self.pilot.look(AIM, look).unwrap_or(self.limit);
        self.limit
    }

    /// Runs until the limit is so small, at most so many seconds; returns how many it took.
    fn until(&mut self, mib: u64, seconds: u64) -> f64 {
        let looks = (1..=seconds * 5).find(|_| self.look() <= mib * MIB);
        looks.map_or(f64::INFINITY, |looks| looks as f64 / 5.0)
    }

    /// The largest part of its time that it has lost over ten seconds.
    fn worst(&self) -> f64 {
        let over = |at: usize, of: &[f64]| of[at..(at + 50).min(of.len())].iter().sum::<f64>();
        (0..self.lost.len().saturating_sub(49)).map(|at| over(at, &self.lost) / over(at, &self.ran)).fold(0.0, f64::max)
    }
}

#[test]
fn large_cold_memory_leaves_wherever_the_hot_part_lies() {
    for begins in [0, 300, 700, 940] {
        for threads in [1.0, 16.0] {
            // Faults as with --swap delay:20us; with slower ones the hot part alone, which comes back once, takes more than the target has.
            let mut program = Clock { threads, fault_ns: 30_000.0, ..Clock::new(1000, 60, begins) };
            let took = program.until(69, 180);
            assert!(took <= 90.0, "hot from {begins} MiB, {threads} threads: {took} s, {} MiB", program.limit / MIB);
            (0..250).for_each(|_| _ = program.look());
            assert!(program.limit < 69 * MIB * 11 / 10, "hot from {begins}: {} MiB", program.limit / MIB);
            assert!(program.worst() < AIM.target * 2.0, "hot from {begins}, {threads} threads: {:.3}", program.worst());
        }
    }
}

/// A program that goes round and round through all of its pages, in so long a time if all are there, and may stay in its first pages for a while between two rounds.
/// Evictors take pages as they lie.
struct Round {
    there: Vec<bool>,
    hand: usize,
    at: f64,
    count: usize,
    limit: u64,
    lap_ns: f64,
    /// How long it stays in how many pieces, and how much of that is left.
    stays_ns: f64,
    first: usize,
    left_ns: f64,
    fault_ns: f64,
    pilot: Pilot,
    lost: Vec<f64>,
    ran: Vec<f64>,
}

impl Round {
    fn new(mib: u64, lap_ns: f64) -> Round {
        let pieces = (mib * MIB / PIECE) as usize;
        Round {
            there: vec![true; pieces],
            hand: 0,
            at: 0.0,
            count: pieces,
            limit: AIM.most,
            lap_ns,
            stays_ns: 0.0,
            first: 0,
            left_ns: 0.0,
            fault_ns: 60_000.0,
            pilot: Pilot::new(),
            lost: Vec::new(),
            ran: Vec::new(),
        }
    }

    fn evict(&mut self) {
        let room = ((self.limit - slack(self.limit)) / PIECE) as usize;
        while self.count > room {
            self.count -= usize::from(std::mem::take(&mut self.there[self.hand]));
            self.hand = (self.hand + 1) % self.there.len();
        }
    }

    fn look(&mut self) {
        let (wall, pieces) = (LOOK_NS as f64, self.there.len());
        let (mut ran, mut lost, mut came) = (0.0, 0.0, 0);
        self.evict();
        while ran + lost < wall {
            let stays = self.left_ns > 0.0;
            let at = self.at as usize % if stays { self.first } else { pieces };
            if !std::mem::replace(&mut self.there[at], true) {
                (self.count, came) = (self.count + 1, came + PIECE);
                lost += PIECE as f64 * self.fault_ns;
                self.evict();
            }
            let takes = self.lap_ns / pieces as f64;
            ran += takes;
            self.at += 1.0;
            self.left_ns -= takes;
            if stays && self.left_ns <= 0.0 {
                self.at = 0.0;
            } else if !stays && self.at >= pieces as f64 {
                (self.at, self.left_ns) = (0.0, self.stays_ns);
            }
        }
        self.lost.push(lost);
        self.ran.push(ran);
        let look = Look {
            wall_ns: (ran + lost) as u64,
            lost_ns: lost as u64,
            came,
            ran_ns: ran as u64,
            grown: 0,
            in_use: self.count as u64 * PIECE,
            limit: self.limit,
            settled: true,
        };
        self.limit = self.pilot.look(AIM, look).unwrap_or(self.limit);
    }

    /// What is lost by what it runs, in the next so many looks.
    fn slowdown_over(&mut self, looks: usize) -> f64 {
        let from = self.lost.len();
        (0..looks).for_each(|_| self.look());
        self.lost[from..].iter().sum::<f64>() / self.ran[from..].iter().sum::<f64>()
    }
}

#[test]
fn short_rounds_through_all_between_long_stays_in_a_part_are_heard() {
    // All that is lost is lost in one look or two, and the next ones lose nothing: the last ten seconds and the last minute have to say how much it was.
    for (stays_ns, fault_ns) in
        [(0.5e9, 10_000.0), (1e9, 10_000.0), (1e9, 4000.0), (2e9, 10_000.0), (2.4e9, 8000.0), (4e9, 10_000.0)]
    {
        for pieces in [10, 100] {
            let mut program = Round { stays_ns, first: pieces, fault_ns, ..Round::new(200, 0.1e9) };
            let (first, then) = (program.slowdown_over(75), program.slowdown_over(600));
            let what = format!("{} s, {fault_ns} ns: {first:.3}, then {then:.3}", stays_ns / 1e9);
            assert!(first < AIM.target * 2.0 && then < AIM.target * 1.1, "{what}");
        }
    }
}

#[test]
fn one_that_goes_round_and_round_loses_little_before_that_is_known() {
    for lap in [0.3e9, 1e9, 2e9, 5e9, 12e9] {
        let mut program = Round::new(400, lap);
        let mut looks = |count: usize| program.slowdown_over(count);
        let (first, then) = (looks(65), looks(600));
        assert!(first < AIM.target * 2.5, "{} s: {first:.3} in the first 13 s", lap / 1e9);
        assert!(then < AIM.target * 1.4, "{} s: {then:.3} later", lap / 1e9);
    }
}

#[test]
fn on_a_slow_disk_it_goes_slowly_once_it_knows() {
    let mut program = Clock { fault_ns: 1e6, ..Clock::new(1000, 60, 500) };
    (0..12_000).for_each(|_| _ = program.look());
    let (lost, ran) = (program.lost.iter().sum::<f64>(), program.ran.iter().sum::<f64>());
    assert!(lost / ran < AIM.target, "{:.3} in forty minutes", lost / ran);
    assert!(program.limit < 80 * MIB, "{} MiB", program.limit / MIB);
}

#[test]
fn follows_phases_up_within_five_seconds() {
    let mut program = Clock { fault_ns: 20_000.0, ..Clock::new(1000, 60, 100) };
    for _ in 0..4 {
        program.until(69, 120);
        program.make_hot(300);
        (0..25).for_each(|_| _ = program.look());
        assert!(program.limit > 295 * MIB, "{} MiB after 5 s", program.limit / MIB);
        program.make_hot(60);
    }
    assert!(program.until(69, 120) < 60.0, "{} MiB", program.limit / MIB);
}

#[test]
fn one_fault_of_a_disk_that_stood_still_does_not_slow_the_way_down() {
    let aim = Aim { target: 0.05, least: 4096, most: 1 << 20 };
    let seconds_to_half = |slow: &[(u64, u64)]| {
        let (mut pilot, mut limit, start) = (Pilot::new(), 256_000, 256_000);
        let calm = [(0, 0); 25];
        for (n, &(lost_ns, faults)) in calm.iter().chain(slow).chain(&[(0, 0); 3000]).enumerate() {
            if limit <= start / 2 {
                return n as u64 * LOOK_NS / 1_000_000_000;
            }
            let look =
                Look { wall_ns: LOOK_NS, lost_ns, came: faults, ran_ns: LOOK_NS, grown: 0, in_use: limit, limit, settled: true };
            let next = pilot.look(aim, look);
            limit = next.filter(|_| n >= calm.len()).unwrap_or(limit);
        }
        panic!("it stays at {limit} pages");
    };
    assert!(seconds_to_half(&[]) <= 60, "{} s", seconds_to_half(&[]));
    // Five looks in a row that lose nearly all raise the limit meanwhile.
    for (slow, most) in [(&[(400_000_000, 1)][..], 90), (&[(30_000_000_000, 1)], 90), (&[(150_000_000, 1); 5], 180)] {
        assert!(seconds_to_half(slow) <= most, "{slow:?}: {} s", seconds_to_half(slow));
    }
}

#[test]
fn memory_that_is_built_does_not_wait_for_its_limit() {
    // It has little for some seconds, and then builds much, as fast as it may: where it is full, an eighth of that, in the place of what leaves.
    const A_LOOK: u64 = 200 * MIB;
    let (mut pilot, mut limit, mut built, mut waited) = (Pilot::new(), AIM.most, 24 * MIB, 0.0);
    for number in 0..200 {
        let wants = if number < 50 { 24 * MIB } else { (built + A_LOOK).min(600 * MIB) };
        let room = limit - slack(limit);
        let fits = wants.min(room.max(built));
        let now = if fits < wants { (fits + A_LOOK / 8).min(wants) } else { wants };
        // What did not fit took as long as it would have taken to be there.
        let lost_ns = LOOK_NS * (wants - now) / A_LOOK;
        waited += lost_ns as f64 / 1e9;
        let (grown, ran_ns) = (now - built, LOOK_NS - lost_ns);
        built = now;
        let look = Look { wall_ns: LOOK_NS, lost_ns, came: 0, ran_ns, grown, in_use: built.min(room), limit, settled: true };
        limit = pilot.look(AIM, look).unwrap_or(limit);
        assert!(number != 49 || limit < 32 * MIB, "what nobody uses goes: {limit}");
    }
    assert_eq!(built, 600 * MIB);
    assert!(waited < 0.5, "it has waited {waited} s for room");
}

#[test]
fn one_that_gives_up_as_much_as_it_takes_does_not_grow() {
    // Pieces of 4 MiB, a ring of 16, and looks that come between: what is given up before a look comes back behind it.
    const PIECE: i64 = 1024;
    let (mut growth, mut most) = (Growth::of(0), 0);
    for number in 0..400 {
        let has = 15 * PIECE + number * 379 % (PIECE + 1);
        most = most.max(if number > 20 { growth.beyond(has) } else { 0 });
        growth.note(has, LOOK_NS / 4);
    }
    assert!(!grows(most, 64 * MIB, 64 * MIB), "{most} pages");
    // One that has all of a piece for a moment: of 15 looks one sees the most.
    const FEW: u64 = 32 * MIB;
    for number in 0..2000 {
        let has = if number % 15 == 14 { 16 * PIECE } else { 15 * PIECE };
        let beyond = if number > 20 { growth.beyond(has) } else { 0 };
        assert!(!grows(beyond, FEW, FEW), "{beyond} pages at look {number}");
        growth.note(has, LOOK_NS);
    }
    // One that builds grows by all that it builds; and so does one that builds anew what it gave up long ago.
    assert!((4 * PIECE as u64..5 * PIECE as u64).contains(&growth.beyond(20 * PIECE)), "{} pages", growth.beyond(20 * PIECE));
    (0..50).for_each(|_| growth.note(0, LOOK_NS));
    assert!(!grows(growth.beyond(4 * PIECE), 64 * MIB, 64 * MIB), "after ten seconds");
    (0..150).for_each(|_| growth.note(0, LOOK_NS));
    assert!(grows(growth.beyond(4 * PIECE), 64 * MIB, 64 * MIB), "{} pages", growth.beyond(4 * PIECE));
    // A forked child gives up what its parent has touched, and then builds.
    growth.note(-20 * PIECE, 1000 * MOST_NS);
    assert!(growth.beyond(-10 * PIECE) > 9 * PIECE as u64);
}
