//! What happens to a fleet, and what comes of it.

use crate::fleet::{Event, Fleet};
use crate::part::{NodeId, Pages};
use crate::setup::{GIB, PAGE, SECOND, Setup, Time};
use serde::Serialize;

/// What is done to a node, or a rack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Step {
    /// A node is lost for good.
    Lose(NodeId),
    /// All nodes of a rack are.
    LoseRack(usize),
    /// A node does not answer.
    Away(NodeId),
    /// It answers again, with what it had.
    Back(NodeId),
    /// A node is started again, and has nothing.
    Restart(NodeId),
    /// A node is to be switched off.
    Drain(NodeId),
    /// A node joins.
    Join(NodeId),
    /// A node that has joined gets copies of others.
    Fill(NodeId),
}

/// How a fleet is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// A node is lost for good.
    Lost,
    /// A node is switched off, its copies having been exchanged.
    Leaves,
    /// A node is away for a minute.
    Away,
    /// A node joins, and nothing is moved to it.
    Joins,
    /// A node joins, and copies are moved to it until it is as full as the mean.
    Filled,
    /// A rack is lost.
    Rack,
    /// Two racks are lost, the second one while the copies of the first are made.
    TwoRacks,
    /// All nodes are started again, the next one when all copies are whole.
    Rolling,
    /// All nodes are started again, one each minute.
    Hasty,
}

/// All of them.
pub const SCENARIOS: [Scenario; 9] = [
    Scenario::Lost,
    Scenario::Leaves,
    Scenario::Away,
    Scenario::Joins,
    Scenario::Filled,
    Scenario::Rack,
    Scenario::TwoRacks,
    Scenario::Rolling,
    Scenario::Hasty,
];

/// For how long a node is away, µs.
const AWAY: Time = 60 * SECOND;
/// The second rack is lost so long after the first one was replaced, µs.
const SECOND_RACK: Time = 10 * SECOND;
/// A hasty operator starts a node again after so long, µs.
const HASTE: Time = 60 * SECOND;
/// For how long a fleet is watched at most, µs.
const WATCH: Time = 3600 * SECOND;
/// The same where each node has its turn.
const WATCH_ALL: Time = 48 * 3600 * SECOND;
/// How often it is looked how full nodes are, µs.
const LOOK: Time = 30 * SECOND;
/// A node that has joined is watched for so long, µs.
const JOINED: Time = 1800 * SECOND;

impl Scenario {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Lost => "a node is lost",
            Scenario::Leaves => "a node is switched off",
            Scenario::Away => "a node is away for a minute",
            Scenario::Joins => "a node joins",
            Scenario::Filled => "a node joins, and is filled",
            Scenario::Rack => "a rack is lost",
            Scenario::TwoRacks => "two racks, one after the other",
            Scenario::Rolling => "all nodes are restarted, each when all is whole",
            Scenario::Hasty => "all nodes are restarted, one a minute",
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// What happened.
    pub scenario: Scenario,
    /// What placed copies.
    pub choice: crate::place::Choice,
    /// In different racks.
    pub apart: bool,
    /// Copies of a page.
    pub copies: usize,
    /// GiB of a part that is placed by itself; none: all of a client.
    pub part_gib: Option<f64>,
    /// Pages that were lost.
    pub lost_pages: Pages,
    /// The same in GiB.
    pub lost_gib: f64,
    /// Clients that have lost pages.
    pub lost_clients: usize,
    /// Clients with a page on a node to which something happened.
    pub hit_clients: usize,
    /// What nodes had when they were lost, GiB.
    pub taken_gib: f64,
    /// What was copied, GiB.
    pub copied_gib: f64,
    /// Copied, as a part of what nodes had when they were lost.
    pub extra: Option<f64>,
    /// Seconds until all was whole; none: it was not, as long as it was watched.
    pub whole_s: Option<f64>,
    /// Seconds until half of the clients that were hit were whole.
    pub whole_median_s: f64,
    /// Seconds in which a client that was hit had a page on one copy alone: the mean, and the longest.
    pub single_mean_s: f64,
    /// See `single_mean_s`.
    pub single_most_s: f64,
    /// GiB on one copy, times seconds.
    pub single_gib_s: f64,
    /// The part of what clients wanted to read and write that the links did not carry.
    pub held_back: f64,
    /// How full the fullest node was, as a part of its memory, and of the mean: before, over ten looks.
    pub fullest: f64,
    /// See `fullest`.
    pub fullest_of_mean: f64,
    /// The fullest node, as a part of the mean, at the end.
    pub fullest_of_mean_after: f64,
    /// What the node that joined had at the end, as a part of the mean.
    pub joined_of_mean: Option<f64>,
    /// GiB that found no room, before and at the end.
    pub homeless_gib: f64,
    /// See `homeless_gib`.
    pub homeless_after_gib: f64,
    /// Seconds that were simulated, and events.
    pub simulated_s: f64,
    /// See `simulated_s`.
    pub events: u64,
}

/// The looks at a fleet before anything happens to it.
#[derive(Clone, Copy, Default, Debug)]
struct Looks {
    count: f64,
    fullest: f64,
    of_mean: f64,
}

impl Fleet {
    fn plan(&mut self, after: Time, step: Step) {
        self.at(self.now + after, Event::Happens(step));
    }

    fn run_to(&mut self, until: Time) {
        while self.next(until) {}
        self.now = until;
    }

    /// What is planned for this scenario from now on. For how long it is watched at least, and at most.
    fn begin(&mut self, scenario: Scenario, victim: NodeId, joins: NodeId) -> (Time, Time) {
        let rack = self.nodes.0[victim].rack;
        match scenario {
            Scenario::Lost => self.plan(0, Step::Lose(victim)),
            Scenario::Leaves => self.plan(0, Step::Drain(victim)),
            Scenario::Away => {
                self.plan(0, Step::Away(victim));
                self.plan(AWAY, Step::Back(victim));
                return (AWAY, WATCH);
            }
            Scenario::Joins => {
                self.plan(0, Step::Join(joins));
                return (JOINED, JOINED);
            }
            Scenario::Filled => {
                self.plan(0, Step::Join(joins));
                self.plan(0, Step::Fill(joins));
            }
            Scenario::Rack => self.plan(0, Step::LoseRack(rack)),
            Scenario::TwoRacks => {
                let second = self.setup.exchange + SECOND_RACK;
                self.plan(0, Step::LoseRack(rack));
                // Not a neighbour: a copy in turn may be in the next rack.
                self.plan(second, Step::LoseRack((rack + self.setup.racks / 2) % self.setup.racks));
                return (second, second + WATCH);
            }
            Scenario::Rolling => self.plan(0, Step::Restart(0)),
            Scenario::Hasty => {
                let all = self.setup.nodes as Time;
                (0..self.setup.nodes).for_each(|node| self.plan(HASTE * node as Time, Step::Restart(node)));
                return (HASTE * all, HASTE * all + WATCH);
            }
        }
        (0, if scenario == Scenario::Rolling { WATCH_ALL } else { WATCH })
    }
}

/// A fleet to which nothing has happened yet, and how it was.
#[derive(Clone, Debug)]
pub struct Warm {
    fleet: Fleet,
    looks: Looks,
    homeless: f64,
}

/// Lets a fleet run for a while, and looks at it.
///
/// # Panics
/// If a law is broken.
#[must_use]
pub fn warm(setup: &Setup) -> Warm {
    let mut fleet = Fleet::new(setup.clone(), 1);
    let mut looks = Looks::default();
    for look in (0..10).rev() {
        fleet.run_to(setup.warm.saturating_sub(look * LOOK));
        let (most, mean) = fleet.nodes.fullest();
        looks.count += 1.0;
        looks.fullest += most as f64 / setup.memory as f64;
        looks.of_mean += most as f64 / mean.max(1.0);
    }
    let homeless = fleet.homeless();
    Warm { fleet, looks, homeless }
}

/// Lets it happen.
///
/// # Panics
/// If a law is broken.
#[must_use]
pub fn run(warm: &Warm, scenario: Scenario) -> Outcome {
    let Warm { mut fleet, looks, homeless } = warm.clone();
    let setup = fleet.setup.clone();
    let joins = setup.nodes;
    let victim = crate::draws::Draws::new(setup.seed, 3).below(setup.nodes);
    fleet.keep_books();
    let (before, began, events) = (fleet.books, fleet.now, fleet.count);
    let (at_least, at_most) = fleet.begin(scenario, victim, joins);
    let mut restarted = 0;
    let mut whole_at = began;
    loop {
        let was_hurt = fleet.hurts > 0;
        let is_more = fleet.next(began + at_most);
        let restarts = scenario == Scenario::Rolling && restarted + 1 < setup.nodes;
        // A node that is being started again has copies that are hurt, so that one is done when none is.
        let is_whole = fleet.began.is_some() && fleet.hurts == 0;
        if is_whole && restarts && fleet.nodes.0[restarted].state == crate::nodes::State::Up {
            restarted += 1;
            fleet.plan(0, Step::Restart(restarted));
            continue;
        }
        if was_hurt || fleet.hurts > 0 {
            whole_at = fleet.now;
        }
        if !is_more || (is_whole && !restarts && fleet.now >= began + at_least) {
            break;
        }
    }
    fleet.audit().unwrap_or_else(|why| panic!("at the end: {why}"));
    fleet.keep_books();
    outcome(&mut fleet, scenario, Before { books: before, began, events, homeless, looks, whole_at, joins })
}

struct Before {
    books: crate::fleet::Books,
    began: Time,
    events: u64,
    homeless: f64,
    looks: Looks,
    whole_at: Time,
    joins: NodeId,
}

fn seconds(time: Time) -> f64 {
    time as f64 / SECOND as f64
}

fn outcome(fleet: &mut Fleet, scenario: Scenario, was: Before) -> Outcome {
    let gib = |pages: Pages| pages as f64 / GIB as f64;
    let setup = &fleet.setup;
    let is_whole = fleet.hurts == 0;
    let mut whole: Vec<Time> = Vec::new();
    let (mut single, mut longest) = (0, 0);
    for client in fleet.clients.iter().filter(|client| client.hit) {
        whole.push(if client.hurts > 0 { fleet.now } else { client.whole_at.max(was.began) } - was.began);
        let open = if client.singles > 0 { fleet.now - client.single_since.max(was.began) } else { 0 };
        let all = client.single_for + open;
        single += all;
        longest = all.max(longest);
    }
    whole.sort_unstable();
    let hit = whole.len();
    let books = &fleet.books;
    let (copied, taken) = (books.copied - was.books.copied, books.taken - was.books.taken);
    let (most, mean) = fleet.nodes.fullest();
    let joined = &fleet.nodes.0[was.joins];
    let wanted = books.wanted - was.books.wanted;
    Outcome {
        scenario,
        choice: setup.choice,
        apart: setup.apart,
        copies: setup.copies,
        part_gib: setup.part.map(gib),
        lost_pages: books.lost - was.books.lost,
        lost_gib: gib(books.lost - was.books.lost),
        lost_clients: fleet.clients.iter().filter(|client| client.lost > 0).count(),
        hit_clients: hit,
        taken_gib: gib(taken),
        copied_gib: gib(copied),
        extra: (taken > 0).then(|| copied as f64 / taken as f64),
        whole_s: is_whole.then(|| seconds(was.whole_at.max(was.began) - was.began)),
        whole_median_s: whole.get(hit / 2).copied().map_or(0.0, seconds),
        single_mean_s: seconds(single) / hit.max(1) as f64,
        single_most_s: seconds(longest),
        single_gib_s: (books.single - was.books.single) * PAGE as f64 / (1_u64 << 30) as f64,
        held_back: if wanted > 0.0 { (books.held_back - was.books.held_back) / wanted } else { 0.0 },
        fullest: was.looks.fullest / was.looks.count,
        fullest_of_mean: was.looks.of_mean / was.looks.count,
        fullest_of_mean_after: most as f64 / mean.max(1.0),
        joined_of_mean: (joined.state == crate::nodes::State::Up).then(|| joined.used as f64 / mean.max(1.0)),
        homeless_gib: was.homeless,
        homeless_after_gib: fleet.homeless(),
        simulated_s: seconds(fleet.now - was.began),
        events: fleet.count - was.events,
    }
}
