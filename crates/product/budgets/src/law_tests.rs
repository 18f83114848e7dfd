//! The law against families that are simulated: they look in any order, their pages leave slowly, they stop, end and come.

use super::*;
use farshore_random::Rng;

/// A family.
#[derive(Clone, Debug)]
struct Family {
    share: Share,
    most: u64,
    /// Its limit is chosen by its own autopilot; what it wants is what it takes.
    pilot: bool,
    /// Pages that it has touched, and those of them that it touches all the time.
    used: u64,
    hot: u64,
    /// Pages that are in memory.
    there: u64,
    stopped: bool,
    /// It has not begun: there is no room for its least yet.
    waits: bool,
}

impl Family {
    fn new(least: u64, used: u64, hot: u64, pilot: bool) -> Family {
        let share = Share { limit: 0, held: 0, least, wants: least, need: NEED_TO_BEGIN };
        Family { share, most: u64::MAX, pilot, used, hot, there: 0, stopped: false, waits: true }
    }

    /// What it loses: a page in so many is absent when it is touched.
    fn loses(&self) -> u64 {
        self.hot.saturating_sub(self.share.limit) * 1_000_000 / self.hot.max(1)
    }

    fn in_use(&self) -> u64 {
        self.used.min(self.share.limit)
    }

    fn wants(&self) -> u64 {
        let (limit, spare) = (self.share.limit, self.share.limit / 16);
        let full = self.in_use() + spare >= limit;
        match self.pilot {
            true if self.loses() > 50_000 => limit + limit / 4,
            true => (limit - limit / 12).max(self.hot + self.hot / 16).min(limit),
            false => wants(limit, self.in_use(), spare, full, self.loses() > 1_000),
        }
    }

    /// Its pages come, or leave, so many at most.
    fn moves(&mut self, pages: u64) {
        let goal = self.in_use();
        self.there = if self.there > goal { self.there.saturating_sub(pages).max(goal) } else { goal };
    }
}

/// All families of a budget.
#[derive(Clone, Debug)]
struct World {
    size: u64,
    families: Vec<Family>,
    /// More is not held together, and not allowed; above the size only after that was lowered.
    bound: u64,
    limits: u64,
}

impl World {
    fn new(size: u64, families: &[Family]) -> World {
        World { size, families: families.to_vec(), bound: size, limits: size }
    }

    fn others(&self, of: usize) -> Vec<Other> {
        let others = self.families.iter().enumerate().filter(|(at, _)| *at != of);
        others.map(|(_, it)| Other { share: it.share, looks: !it.stopped }).collect()
    }

    /// One family looks, as the library does.
    fn look(&mut self, at: usize) {
        let others = self.others(at);
        let held = self.held();
        let it = &mut self.families[at];
        if it.stopped || it.waits && held + it.share.least > self.size {
            return;
        }
        if it.waits {
            let least = it.share.least;
            it.share = Share { limit: least, held: least, wants: least, least, need: 0 };
            let pages = first(self.size, &Own { share: it.share, most: it.most, keeps: !it.pilot }, &others);
            (it.share.limit, it.share.held, it.waits) = (pages, pages, false);
            self.check();
            return;
        }
        it.share.held = it.share.limit.max(it.there);
        it.share.need = it.loses();
        it.share.wants = it.wants().clamp(it.share.least, it.most.max(it.share.least));
        let own = Own { share: it.share, most: it.most, keeps: !it.pilot };
        let next = next(self.size, &own, &others);
        it.share.held = it.share.held.max(next);
        it.share.limit = next;
        self.check();
    }

    fn held(&self) -> u64 {
        self.families.iter().map(|it| it.share.held).sum()
    }

    fn check(&mut self) {
        let held = self.held();
        let limits: u64 = self.families.iter().map(|it| it.share.limit).sum();
        assert!(limits <= self.limits.max(self.size), "{limits} allowed: {self:?}");
        self.limits = limits.max(self.size);
        assert!(held <= self.bound, "{held} held, {} at most: {self:?}", self.bound);
        self.bound = self.bound.min(held.max(self.size));
        for it in &self.families {
            let Share { limit, held, least, .. } = it.share;
            assert!(it.waits || least <= limit && limit <= held && limit <= it.most.max(least), "{it:?}");
            assert!(it.there <= held, "{it:?}");
        }
    }

    fn round(&mut self, pages: u64) {
        for at in 0..self.families.len() {
            self.look(at);
            self.families[at].moves(pages);
        }
    }

    /// So many rounds, as a second has five; and the limits then.
    fn rounds(&mut self, rounds: usize) -> Vec<u64> {
        (0..rounds).for_each(|_| self.round(2_000));
        self.families.iter().map(|it| it.share.limit).collect()
    }

    /// A program comes; false: there is no room for what all need at least.
    fn join(&mut self, family: Family) -> bool {
        let leasts: u64 = self.families.iter().map(|it| it.share.least).sum();
        let fits = leasts + family.share.least <= self.size;
        if fits {
            self.families.push(family);
        }
        fits
    }

    fn set_size(&mut self, size: u64) {
        if size >= self.families.iter().map(|it| it.share.least).sum() {
            self.size = size;
            self.bound = size.max(self.held());
            self.limits = size.max(self.families.iter().map(|it| it.share.limit).sum());
        }
    }
}

#[test]
fn nothing_beyond_the_size_is_held_whatever_happens_in_whatever_order() {
    for seed in 0..300 {
        let mut random = Rng::new(seed);
        let mut world = World::new(random.between(20_000, 200_000), &[]);
        for _ in 0..2_000 {
            let at = random.below(world.families.len() as u64) as usize;
            match random.below(20) {
                0 if world.families.len() < 12 => {
                    let used = random.between(1, world.size * 2);
                    let hot = random.between(1, used);
                    let mut new = Family::new(random.between(512, 4_096), used, hot, random.chance(5_000));
                    new.most = random.pick(&[u64::MAX, 10_000, new.share.least]);
                    world.join(new);
                }
                _ if world.families.is_empty() => {}
                // Killed: all that it had is free.
                1 if random.chance(2_000) => drop(world.families.swap_remove(at)),
                2 if random.chance(2_000) => world.families[at].stopped ^= true,
                3 if random.chance(1_000) => world.set_size(random.between(10_000, 200_000)),
                4 => {
                    let it = &mut world.families[at];
                    it.used = random.between(1, 200_000);
                    it.hot = random.between(1, it.used);
                }
                5..=9 if !world.families[at].stopped && !world.families[at].waits => {
                    world.families[at].moves(random.pick(&[1, 100, 5_000]))
                }
                _ => world.look(at),
            }
        }
    }
}

#[test]
fn what_fits_is_what_each_wants() {
    for pilot in [false, true] {
        let mut world = World::new(100_000, &[]);
        for hot in [10_000, 30_000, 40_000] {
            assert!(world.join(Family::new(4_096, hot, hot, pilot)));
            world.rounds(20);
        }
        let limits = world.rounds(50);
        // The autopilot of a family is content with losing a little.
        let enough = |hot: u64| if pilot { hot - hot / 20 } else { hot };
        assert!(
            limits.iter().zip([10_000, 30_000, 40_000]).all(|(&limit, hot)| limit >= enough(hot)),
            "pilot {pilot}: {limits:?}"
        );
    }
}

#[test]
fn an_idle_one_gives_back_to_a_greedy_one_and_keeps_its_least() {
    let mut world = World::new(100_000, &[]);
    // It has filled all of the budget, and looks at none of it any more.
    assert!(world.join(Family::new(4_096, 200_000, 1, false)));
    assert_eq!(world.rounds(20), [100_000], "alone it has all");
    assert!(world.join(Family::new(4_096, 300_000, 300_000, false)));
    world.rounds(5);
    assert!(!world.families[1].waits, "it has made room within a second: {world:?}");
    let limits = world.rounds(60);
    assert!(limits[0] == 4_096 && limits[1] >= 95_000, "{limits:?}");
    // Now it is the other one that works.
    (world.families[0].hot, world.families[1].hot) = (50_000, 1);
    let limits = world.rounds(60);
    assert!(limits[0] >= 50_000, "{limits:?}");
}

#[test]
fn two_that_lose_get_what_brings_their_losses_together_and_then_nothing_moves() {
    for (pilots, hots) in
        [([false, false], [100_000, 100_000]), ([false, false], [60_000, 120_000]), ([true, true], [90_000, 70_000])]
    {
        let mut world = World::new(100_000, &[]);
        for (pilot, hot) in pilots.into_iter().zip(hots) {
            assert!(world.join(Family::new(4_096, hot, hot, pilot)));
            world.rounds(30);
        }
        world.rounds(200);
        let needs: Vec<u64> = world.families.iter().map(Family::loses).collect();
        assert!(!is_much_greater(needs[0], needs[1]) && !is_much_greater(needs[1], needs[0]), "{hots:?}: {needs:?} {world:?}");
        let before = world.rounds(1);
        assert_eq!(world.rounds(100), before, "{hots:?}");
    }
}

#[test]
fn a_smaller_size_is_kept_to_by_all_and_a_larger_one_is_used() {
    let mut world = World::new(100_000, &[]);
    for (used, hot) in [(60_000, 60_000), (60_000, 10_000), (60_000, 1)] {
        assert!(world.join(Family::new(4_096, used, hot, false)));
        world.rounds(30);
    }
    world.set_size(30_000);
    let limits = world.rounds(20);
    assert!(limits.iter().sum::<u64>() <= 30_000, "{limits:?}");
    world.rounds(40);
    assert!(world.held() <= 30_000, "{world:?}");
    world.set_size(200_000);
    let limits = world.rounds(60);
    assert!(limits[0] >= 60_000 && limits[1] >= 10_000, "{limits:?}");
}

#[test]
fn a_stopped_one_keeps_what_it_has_and_its_wishes_move_nothing() {
    let mut world = World::new(100_000, &[]);
    for _ in 0..2 {
        assert!(world.join(Family::new(4_096, 100_000, 100_000, false)));
    }
    let before = world.rounds(50);
    world.families[0].stopped = true;
    world.families[1].hot = 1;
    assert_eq!(world.rounds(50), before, "nobody that looks is short");
    world.families[0].stopped = false;
    let limits = world.rounds(50);
    assert!(limits[0] > 90_000, "{limits:?}");
}

#[test]
fn a_list_of_noise_leaves_the_limit_between_its_bounds() {
    let mut random = Rng::new(7);
    let number = |random: &mut Rng| random.pick(&[0, 1, 4_096, 100_000, 1 << 44]);
    for _ in 0..20_000 {
        let mut share = || Share {
            limit: number(&mut random),
            held: number(&mut random),
            least: number(&mut random),
            wants: number(&mut random),
            need: number(&mut random),
        };
        let others: Vec<Other> = (0..5).map(|_| Other { share: share(), looks: true }).collect();
        let mine = Share { least: 1_024, held: 50_000, limit: 50_000, ..share() };
        let size = number(&mut random);
        let own = Own { share: mine, most: 60_000, keeps: random.chance(5_000) };
        for pages in [next(size, &own, &others), first(size, &own, &others)] {
            assert!((1_024..=60_000).contains(&pages), "{pages} {size} {own:?} {others:?}");
        }
    }
}

#[test]
fn need_is_what_is_lost_of_the_time_that_a_family_runs() {
    const LOOK: u64 = 200_000_000;
    let mut loss = Loss::NONE;
    assert_eq!(loss.need(None), 0);
    (0..100).for_each(|_| loss.add(LOOK / 20, LOOK / 2, LOOK));
    assert_eq!(loss.need(None), 100_000);
    assert_eq!((loss.need(Some(100_000)), loss.need(Some(50_000)), loss.need(Some(10_000))), (50_000, 100_000, 500_000));
    // One that goes on and loses nothing more: it fades within seconds.
    let mut runs = loss;
    (0..10).for_each(|_| runs.add(0, LOOK / 2, LOOK));
    assert!((35_000..45_000).contains(&runs.need(None)), "{}", runs.need(None));
    // One that sleeps: it fades too.
    (0..150).for_each(|_| loss.add(0, 0, LOOK));
    assert!(loss.need(None) < CALM, "{}", loss.need(None));
    (0..100).for_each(|_| loss.add(u64::MAX, 0, 1));
    assert!(loss.need(Some(1)) < NEED_TO_BEGIN, "nobody is in greater need than a program that waits to begin");
}
