//! The law by which shares of a budget move, for one family that looks. Pure arithmetic; numbers are pages.
//!
//! ```text
//!  the limits together │ a family that wants more           │ one that does not
//!  ────────────────────┼────────────────────────────────────┼─────────────────────────────────────────────────────
//!  above the size      │ gives its part of the excess, measured by what each has above its least
//!  below               │ takes what is free; what families  │ stays; if another is short, it gives what it does
//!                      │ in much greater need want is left  │ not use
//!  just the size       │ gives as the one beside it         │ gives a step if the other's need is much greater
//! ```
//!
//! * **Need** is the time that a family loses to faults, by the time that it runs. (By the time that passes, a family that loses nearly all of it
//!   could not be told from one that loses half.) One that sleeps counts as running a twentieth of the time, so its need fades. A family that is in
//!   no need, since it sleeps or its memory is cold, gives a step of 1/8 at each look. One that was in need lately gives 1/32: what it loses
//!   by that shows a little later.
//! * **Much greater** is more than twice, and half a per cent. Between that nothing moves, or two that are equally short would push pages to and fro.
//! * **Who gives looks at limits, who takes looks at what is held.** A family that has been told to shrink is not told again because its
//!   pages have not left yet, and nobody gets them before they have.
//! * **No family gets less than its least**; all leasts together fit, or the last one was not let in.
//! * A family that has not looked for two seconds is stopped, dormant or without threads of Farshore's. What it holds counts; what it wants does not.

/// How much greater a need must be, beside twice: millionths.
const NEED_MARGIN: u64 = 5_000;
/// A family that loses less than this is in no need: millionths.
const CALM: u64 = 100;
/// Parts of its limit that a family gives at a look, in no need and otherwise; and at least this.
const STEP_CALM: u64 = 8;
const STEP: u64 = 32;
const STEP_MIN: u64 = 64;
/// A family runs at least this part of the time.
const RUNS_AT_LEAST: f64 = 0.05;
/// The need of a program that waits to be let in.
pub const NEED_TO_BEGIN: u64 = 1 << 32;
/// How long what was lost counts, ns.
const LOSS_NS: f64 = 2e9;
/// The slowdown by which needs are weighed, millionths.
const TARGET: f64 = 50_000.0;

/// A family, as its line tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// What it may have.
    pub limit: u64,
    /// What it has, or may have.
    pub held: u64,
    /// It is never left with less.
    pub least: u64,
    /// What it would take.
    pub wants: u64,
    /// Time lost to faults, in millionths of the time that it runs.
    pub need: u64,
}

/// The family that looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    /// What it tells the others.
    pub share: Share,
    /// The most that it takes, whatever is free.
    pub most: u64,
    /// It keeps what it does not want while nobody else wants it.
    pub keeps: bool,
}

/// Another family of the same budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Other {
    /// What it tells.
    pub share: Share,
    /// It has looked lately.
    pub looks: bool,
}

impl Share {
    /// What it is short of.
    fn lacks(&self) -> u64 {
        self.wants.saturating_sub(self.limit)
    }

    fn spare(&self) -> u64 {
        self.limit.saturating_sub(self.least)
    }
}

fn is_much_greater(one: u64, other: u64) -> bool {
    one > other.saturating_mul(2).saturating_add(NEED_MARGIN)
}

fn sum(own: u64, others: &[Other], of: impl Fn(&Share) -> u64) -> u64 {
    others.iter().fold(own, |sum, other| sum.saturating_add(of(&other.share)))
}

/// The limit that a family takes, which has just the least: at the start of a program, half of what is free; all of it, if it is alone.
pub fn first(size: u64, own: &Own, others: &[Other]) -> u64 {
    let me = &own.share;
    let wanted = others.iter().filter(|other| other.looks).fold(0, |sum: u64, other| sum.saturating_add(other.share.lacks()));
    let free = size.saturating_sub(sum(me.held, others, |share| share.held)).saturating_sub(wanted);
    let part = if others.is_empty() { free } else { free / 2 };
    me.held.saturating_add(part).min(own.most).max(me.least)
}

/// The limit that the family has from now on, at least its least and at most its most; nothing is above the size, as far as that depends on this family.
pub fn next(size: u64, own: &Own, others: &[Other]) -> u64 {
    let me = &own.share;
    let most = own.most.min(size);
    let at_most = |pages: u64| pages.min(most).max(me.least);
    let limits = sum(me.limit, others, |share| share.limit);
    if limits > size {
        let spare = sum(me.spare(), others, Share::spare).max(1);
        let excess = limits - size;
        let part = (u128::from(excess) * u128::from(me.spare())).div_ceil(u128::from(spare)) as u64;
        // Others give at the same time, so what is left would become smaller for ever.
        let part = part.max(STEP_MIN.min(excess));
        return at_most(me.limit.saturating_sub(part).min(me.wants.max(me.least)));
    }
    let hungry = || others.iter().filter(|other| other.looks).map(|other| &other.share).filter(|share| share.lacks() > 0);
    if me.wants > me.limit {
        let ahead = |other: &&Share| is_much_greater(other.need, me.need);
        let left = hungry().filter(ahead).fold(0, |sum: u64, share| sum.saturating_add(share.lacks()));
        let rivals = hungry().filter(|share| !ahead(share) && !is_much_greater(me.need, share.need)).count() as u64;
        let free = size.saturating_sub(sum(me.held, others, |share| share.held)).saturating_sub(left);
        // What this family has not given up yet it may use again, as far as nobody else has been promised it.
        let may = me.held.saturating_add(free / (1 + rivals)).min(me.limit + (size - limits));
        let next = at_most(me.wants.min(may));
        if next > me.limit {
            return next;
        }
    }
    // What families have been told to give up is on its way.
    let lack = hungry().fold(0, |sum: u64, share| sum.saturating_add(share.lacks())).saturating_sub(size - limits);
    let greatest = hungry().map(|share| share.need).max().unwrap_or(0);
    let next = if lack == 0 {
        if own.keeps { me.limit } else { me.limit.min(me.wants) }
    } else if me.wants < me.limit {
        me.wants.max(if own.keeps { me.limit.saturating_sub(lack) } else { 0 })
    } else if is_much_greater(greatest, me.need) {
        let part = if me.need < CALM { STEP_CALM } else { STEP };
        me.limit.saturating_sub((me.limit / part).max(STEP_MIN).min(lack))
    } else {
        me.limit
    };
    at_most(next)
}

/// What a family wants whose limit is chosen by the budget alone. `full`: it uses all of its limit, but `spare`. `short`: pages have to leave for
/// those that come.
pub fn wants(limit: u64, in_use: u64, spare: u64, full: bool, short: bool) -> u64 {
    match (full, short) {
        (true, true) => limit.saturating_mul(2),
        (true, false) => limit,
        (false, _) => in_use.saturating_add(spare),
    }
}

/// How much time a family loses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loss {
    lost: f64,
    ran: f64,
}

impl Loss {
    /// Nothing yet.
    pub const NONE: Loss = Loss { lost: 0.0, ran: 0.0 };

    /// So much was lost, and so long it ran, in this time; of all threads, ns.
    pub fn add(&mut self, lost_ns: u64, ran_ns: u64, wall_ns: u64) {
        let (ran, wall) = (ran_ns as f64, (wall_ns as f64).max(1.0));
        let stays = LOSS_NS / (LOSS_NS + wall);
        // One fault that a disk has held for half a minute says no more than one that took all of this time.
        self.lost = self.lost * stays + (lost_ns as f64).min(2.0 * (wall + ran));
        self.ran = self.ran * stays + ran.max(wall * RUNS_AT_LEAST);
    }

    /// In millionths of the time that it ran; weighed by the slowdown that the family may have (`target`, millionths), if it has one.
    pub fn need(&self, target: Option<u32>) -> u64 {
        let weight = target.filter(|&target| target > 0).map_or(1.0, |target| TARGET / f64::from(target));
        let need = if self.ran > 0.0 { self.lost / self.ran * 1e6 * weight } else { 0.0 };
        (need.round() as u64).min(NEED_TO_BEGIN / 4)
    }
}

#[cfg(test)]
#[path = "law_tests.rs"]
mod tests;
