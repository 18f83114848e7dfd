//! The fleet: its parts, nodes and links at one moment, and how it gets to the next one.

use crate::draws::Draws;
use crate::link::{Links, Route, Wish};
use crate::nodes::{Node, Nodes, State};
use crate::part::{NodeId, PLACES, Pages, Part, SETS, members};
use crate::place::{Offer, Placer};
use crate::scenario::Step;
use crate::setup::{PAGE, SECOND, Setup, Time};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// A part's number.
pub type PartId = usize;
/// A client's number.
pub type ClientId = usize;

/// When a repair would end, it is said to have ended at the next of these: many end together, and the links are shared once.
const GRID: Time = SECOND / 10;
/// A step of what goes on steadily, µs, at most; and at most so small a part of the time in which all is written.
const STEP: Time = 5 * SECOND;
const STEP_OF_REWRITE: f64 = 0.01;
/// A repair that has so little left is at its end: it was reckoned in fractions of pages.
const REST: Pages = 64;
/// After so long a copy that was full is asked again, µs.
const REFUSED: Time = SECOND;

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Event {
    /// A client needs more or less.
    Change(ClientId, u32),
    /// A client ends, and another one comes.
    Renew(ClientId),
    /// A place of a part has all that there is, if nothing has come between.
    Repaired(PartId, usize, u32),
    /// A part was reckoned, and may have become whole by that.
    Settle(PartId),
    /// Copies that were lost are replaced.
    Mend,
    /// Copies that were full are asked again.
    Ask,
    /// What is done to nodes.
    Happens(Step),
}

/// A part, and what goes on with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub part: Part,
    pub client: ClientId,
    /// Up to when it was reckoned.
    pub since: Time,
    /// Pages that are copied to each place, a second.
    pub repair: [f64; PLACES],
    /// The part of what its client reads and writes that the links carry.
    pub share: f64,
    /// Fractions of pages that were written and copied.
    pub written: [f64; SETS],
    pub copied: [f64; PLACES],
    /// Counts what was reckoned of when repairs end.
    pub turn: [u32; PLACES],
    /// When copies that were lost are replaced.
    pub mend_at: Option<Time>,
    /// Pages that its nodes are promised to have.
    pub promised: Pages,
    /// Not each copy has each page.
    pub hurt: bool,
    /// A page is on one copy that answers, or on none.
    pub single: bool,
    /// It was on a node to which something has happened.
    pub hit: bool,
    pub gone: bool,
}

impl Kept {
    /// Another part gets this number. What was foreseen of the one before does not hold for it.
    pub fn become_new(&mut self, new: Kept) {
        *self = Kept { turn: self.turn, ..new };
    }
}

/// A client.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub draws: Draws,
    pub base: f64,
    pub need: Pages,
    pub parts: Vec<PartId>,
    /// Counts programs.
    pub life: u32,
    /// The part that is repaired.
    pub repairs: Option<PartId>,
    /// Parts with a page on one copy.
    pub singles: usize,
    pub single_since: Time,
    pub single_for: Time,
    /// Parts that were hit and are hurt.
    pub hurts: usize,
    pub hit: bool,
    pub whole_at: Time,
    pub lost: Pages,
}

/// Pages that there were.
#[derive(Clone, Copy, Default, Debug)]
pub struct Books {
    /// Pages that clients have made.
    pub born: Pages,
    /// Pages that clients have freed.
    pub freed: Pages,
    /// Pages that were lost.
    pub lost: Pages,
    /// Pages that were copied by repairs.
    pub copied: Pages,
    /// Pages that nodes had when they were lost or started again.
    pub taken: Pages,
    /// Page-seconds on a single copy.
    pub single: f64,
    /// Bytes that clients wanted to read and write, and those for which the links had no room.
    pub wanted: f64,
    /// See `wanted`.
    pub held_back: f64,
}

/// See the module's head.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// What is simulated.
    pub setup: Setup,
    /// The time.
    pub now: Time,
    /// Nodes.
    pub nodes: Nodes,
    /// The books.
    pub books: Books,
    pub(crate) parts: Vec<Kept>,
    pub(crate) unused: Vec<PartId>,
    pub(crate) clients: Vec<Client>,
    pub(crate) links: Links,
    pub(crate) placer: Placer,
    pub(crate) events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    sequence: u64,
    shared_at: Time,
    /// Parts with a copy that was full.
    full: BTreeSet<PartId>,
    asks: bool,
    /// Parts that were hit and are hurt.
    pub hurts: usize,
    /// When something was done to a node for the first time.
    pub began: Option<Time>,
    pub(crate) count: u64,
}

impl Fleet {
    /// A fleet whose clients have just started. `more`: nodes that may join later.
    ///
    /// # Panics
    /// If a client does not find what the setup has for it: see [`Setup::wrong`].
    #[must_use]
    pub fn new(setup: Setup, more: usize) -> Fleet {
        let all = setup.nodes + more;
        let rack_of = |node: NodeId| if node < setup.nodes { node * setup.racks / setup.nodes } else { node % setup.racks };
        let state = |node: NodeId| if node < setup.nodes { State::Up } else { State::Gone };
        let node = |n| Node { rack: rack_of(n), state: state(n), memory: setup.memory, used: 0, promised: 0 };
        let capacity = [(all, setup.node_link), (setup.racks, setup.rack_link), (setup.clients, setup.client_link)];
        let client = |n: ClientId| Client {
            draws: Draws::new(setup.seed, 1000 + n as u64),
            base: 0.0,
            need: 0,
            parts: Vec::new(),
            life: 0,
            repairs: None,
            singles: 0,
            single_since: 0,
            single_for: 0,
            hurts: 0,
            hit: false,
            whole_at: 0,
            lost: 0,
        };
        let mut fleet = Fleet {
            now: 0,
            nodes: Nodes((0..all).map(node).collect()),
            books: Books::default(),
            parts: Vec::new(),
            unused: Vec::new(),
            clients: (0..setup.clients).map(client).collect(),
            links: Links::new(capacity.into_iter().flat_map(|(count, rate)| std::iter::repeat_n(rate, 2 * count)).collect()),
            placer: Placer::new(setup.choice, setup.apart, Draws::new(setup.seed, 1)),
            events: BinaryHeap::new(),
            sequence: 0,
            shared_at: 0,
            full: BTreeSet::new(),
            asks: false,
            hurts: 0,
            began: None,
            count: 0,
            setup,
        };
        (0..fleet.setup.clients).for_each(|client| fleet.start(client));
        fleet
    }

    /// A link of a node (`kind` 0), rack (1) or client (2); `into` it or out of it.
    fn link(&self, kind: usize, number: usize, into: bool) -> usize {
        let before = [0, self.nodes.0.len(), self.nodes.0.len() + self.setup.racks][kind];
        2 * (before + number) + usize::from(into)
    }

    /// A route goes into a node, or out of it.
    fn over_node(&self, route: &mut Route, node: NodeId, into: bool) {
        route.over(self.link(0, node, into), 1);
        route.over(self.link(1, self.nodes.0[node].rack, into), 1);
    }

    pub(crate) fn at(&mut self, time: Time, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time.max(self.now), self.sequence, event)));
    }

    /// Reckons a part up to now.
    pub(crate) fn reckon(&mut self, id: PartId) {
        let Fleet { parts, nodes, books, setup, now, .. } = self;
        let kept = &mut parts[id];
        let mut left = *now - std::mem::replace(&mut kept.since, *now);
        let counts = setup.copies > 1;
        let most = STEP.min((setup.rewrite * STEP_OF_REWRITE * SECOND as f64) as Time).max(1);
        while left > 0 {
            let step = left.min(most);
            left -= step;
            let seconds = step as f64 / SECOND as f64;
            let single = if counts { kept.part.single() } else { 0 };
            let part = 1.0 - (-kept.share * seconds / setup.rewrite).exp();
            let up = kept.part.up();
            for set in (1..SETS).filter(|&set| set != up) {
                let pages = kept.part.have[set] as f64 * part + kept.written[set];
                kept.written[set] = pages.fract();
                kept.part.write(set, pages as Pages, nodes);
            }
            for place in 0..PLACES {
                if kept.repair[place] > 0.0 {
                    let pages = kept.repair[place] * seconds + kept.copied[place];
                    kept.copied[place] = pages.fract();
                    books.copied += kept.part.repair(place, pages as Pages, nodes);
                }
            }
            if counts {
                books.single += (single + kept.part.single()) as f64 / 2.0 * seconds;
            }
        }
    }

    /// After each change of a part, which was reckoned up to now before it: counts it anew, and sets what flows.
    pub(crate) fn settle(&mut self, id: PartId) {
        self.finish_exchange(id);
        let kept = &self.parts[id];
        let pages = kept.part.pages();
        if pages != kept.promised {
            for copy in kept.part.places.iter().flatten() {
                let promised = &mut self.nodes.0[copy.node].promised;
                *promised = *promised + pages - kept.promised;
            }
        }
        let hurt = !kept.gone && !kept.part.is_whole(self.setup.copies);
        let single = !kept.gone && self.setup.copies > 1 && kept.part.single() > 0;
        if kept.part.set(|copy| copy.full) == 0 {
            self.full.remove(&id);
        } else {
            self.full.insert(id);
            if !self.asks {
                self.asks = true;
                self.at(self.now + REFUSED, Event::Ask);
            }
        }
        let kept = &mut self.parts[id];
        kept.promised = pages;
        let client = &mut self.clients[kept.client];
        let (was, is) = (kept.hit && kept.hurt, kept.hit && hurt);
        match (std::mem::replace(&mut kept.single, single), single) {
            (false, true) => {
                if client.singles == 0 {
                    client.single_since = self.now;
                }
                client.singles += 1;
            }
            (true, false) => {
                client.singles -= 1;
                if client.singles == 0 {
                    client.single_for += self.now - client.single_since;
                }
            }
            _ => {}
        }
        kept.hurt = hurt;
        client.hurts = client.hurts + usize::from(is) - usize::from(was);
        self.hurts = self.hurts + usize::from(is) - usize::from(was);
        if was && client.hurts == 0 {
            client.whole_at = self.now;
        }
        let of = kept.client;
        self.flow(id);
        self.repair_next(of);
        self.check_part(id);
    }

    /// Something happens to a node with a copy of this part.
    pub(crate) fn hit(&mut self, id: PartId) {
        let kept = &mut self.parts[id];
        let client = &mut self.clients[kept.client];
        if !std::mem::replace(&mut kept.hit, true) && kept.hurt {
            client.hurts += 1;
            self.hurts += 1;
        }
        client.hit = true;
    }

    /// What a client reads and writes of a part: each page that comes makes another one leave, so both go at one pace, that of the slowest copy.
    fn flow(&mut self, id: PartId) {
        let kept = &self.parts[id];
        let up = kept.part.up();
        let wants = (kept.promised as f64 * PAGE as f64 / self.setup.rewrite) as u64;
        let mut route = Route::default();
        if up != 0 {
            route.over(self.link(2, kept.client, false), up.count_ones() as usize);
            route.over(self.link(2, kept.client, true), 1);
            for place in members(up) {
                let Some(copy) = kept.part.places[place] else { continue };
                self.over_node(&mut route, copy.node, true);
                if place == up.trailing_zeros() as usize {
                    self.over_node(&mut route, copy.node, false);
                }
            }
        }
        let flow = id * (PLACES + 1) + PLACES;
        self.links.set(flow, Wish { rate: wants, route, is_own: true });
        self.parts[id].share = if up == 0 { 0.0 } else { self.share_of(flow, wants) };
    }

    fn share_of(&self, flow: usize, wants: u64) -> f64 {
        if wants == 0 { 1.0 } else { self.links.rate(flow) / wants as f64 }
    }

    /// Places of a part to which something can be copied.
    fn work(part: &Part) -> impl Iterator<Item = usize> {
        members(part.set(|copy| copy.up && !copy.full && !copy.leaving)).filter(|&place| part.behind(place) > 0)
    }

    /// A client repairs one part at a time, all of its copies side by side, as the mirror does.
    pub(crate) fn repair_next(&mut self, client: ClientId) {
        let has_work = |id: PartId| !self.parts[id].gone && Self::work(&self.parts[id].part).next().is_some();
        let before = self.clients[client].repairs;
        let next = before.filter(|&id| has_work(id)).or_else(|| {
            let parts = &self.clients[client].parts;
            // Those with a page on one copy first.
            let single = parts.iter().copied().find(|&id| self.parts[id].single && has_work(id));
            single.or_else(|| parts.iter().copied().find(|&id| has_work(id)))
        });
        self.clients[client].repairs = next;
        if let Some(id) = before.filter(|_| before != next) {
            self.reckon(id);
            (0..PLACES).for_each(|place| self.set_repair(id, place, None));
            self.look_again(id);
        }
        let Some(id) = next else { return };
        self.reckon(id);
        self.look_again(id);
        for place in 0..PLACES {
            let part = &self.parts[id].part;
            let is_due = Self::work(part).any(|of| of == place);
            let up = part.up();
            // From the first copy that has the most of what is missing.
            let set = (1..SETS).filter(|set| set >> place & 1 == 0 && set & up != 0).max_by_key(|&set| part.have[set]);
            let source = set.filter(|_| is_due).map(|set| (set & up).trailing_zeros() as usize);
            self.set_repair(id, place, source);
        }
    }

    /// What is counted of a part may not be so any more.
    fn look_again(&mut self, id: PartId) {
        let kept = &self.parts[id];
        if kept.hurt && kept.part.is_whole(self.setup.copies) {
            self.at(self.now, Event::Settle(id));
        }
    }

    /// Copies to a place from another one, through the client, or no more.
    fn set_repair(&mut self, id: PartId, place: usize, source: Option<usize>) {
        let flow = id * (PLACES + 1) + place;
        let kept = &self.parts[id];
        let copy = |place: usize| kept.part.places[place];
        let mut route = Route::default();
        let ends = source.and_then(copy).zip(copy(place));
        if let Some((from, to)) = ends {
            self.over_node(&mut route, from.node, false);
            route.over(self.link(2, kept.client, true), 1);
            route.over(self.link(2, kept.client, false), 1);
            self.over_node(&mut route, to.node, true);
        }
        self.links.set(flow, Wish { rate: if ends.is_some() { self.setup.repair } else { 0 }, route, is_own: false });
        self.parts[id].repair[place] = self.links.rate(flow) / PAGE as f64;
        self.foresee(id, place);
    }

    /// When a repair will end, as things stand. Writes help: with a part `w` of all pages written each second, and `r` copied, `b` pages are behind for ln(1 + wb/r)/w.
    fn foresee(&mut self, id: PartId, place: usize) {
        let kept = &mut self.parts[id];
        kept.turn[place] += 1;
        let (rate, behind) = (kept.repair[place], kept.part.behind(place) as f64);
        if rate <= 0.0 {
            kept.copied[place] = 0.0;
            return;
        }
        let writes = kept.share / self.setup.rewrite;
        let seconds = if writes > 0.0 { (writes * behind / rate).ln_1p() / writes } else { behind / rate };
        let turn = kept.turn[place];
        let end = self.now + (seconds * SECOND as f64) as Time;
        self.at((end / GRID + 1) * GRID, Event::Repaired(id, place, turn));
    }

    /// Gives the links' flows their shares, and lets what they carry follow.
    pub(crate) fn share(&mut self) {
        if !self.links.is_changed() {
            return;
        }
        let mut changed = Vec::new();
        self.keep_books();
        self.links.share(&mut |flow, _| changed.push(flow));
        for flow in changed {
            let (id, place) = (flow / (PLACES + 1), flow % (PLACES + 1));
            self.reckon(id);
            self.look_again(id);
            if place < PLACES {
                self.parts[id].repair[place] = self.links.rate(flow) / PAGE as f64;
                self.foresee(id, place);
            } else {
                let wants = (self.parts[id].promised as f64 * PAGE as f64 / self.setup.rewrite) as u64;
                self.parts[id].share = self.share_of(flow, wants);
                (0..PLACES).filter(|&place| self.parts[id].repair[place] > 0.0).collect::<Vec<_>>().into_iter().for_each(
                    |place| {
                        self.foresee(id, place);
                    },
                );
            }
        }
    }

    /// What the links have carried since they were shared last.
    pub(crate) fn keep_books(&mut self) {
        let seconds = (self.now - std::mem::replace(&mut self.shared_at, self.now)) as f64 / SECOND as f64;
        let (wanted, missing) = self.links.own();
        self.books.wanted += wanted as f64 * seconds;
        self.books.held_back += missing * seconds;
    }

    /// Nodes that may have a copy. Whoever knows of racks goes round from rack to rack.
    pub(crate) fn offers(&self) -> Vec<Offer> {
        let (racks, in_rack) = (self.setup.racks, self.setup.nodes / self.setup.racks);
        let turn = |node: NodeId, rack: usize| {
            if self.setup.apart && node < self.setup.nodes { node % in_rack * racks + rack } else { node }
        };
        let is_up = |(_, node): &(NodeId, &Node)| node.state == State::Up;
        self.nodes
            .0
            .iter()
            .enumerate()
            .filter(is_up)
            .map(|(node, it)| Offer { node, rack: it.rack, turn: turn(node, it.rack), free: it.free() })
            .collect()
    }

    /// A copy comes to a free place of a part, or goes. Its node is promised its pages, or not any more.
    pub(crate) fn promise(&mut self, id: PartId, node: NodeId, is_there: bool) {
        let (pages, promised) = (self.parts[id].promised, &mut self.nodes.0[node].promised);
        *promised = if is_there { *promised + pages } else { *promised - pages };
    }

    /// The next moment at which something happens. `false`: there is none before `until`.
    ///
    /// # Panics
    /// If a law is broken.
    pub fn next(&mut self, until: Time) -> bool {
        let Some(&Reverse((time, ..))) = self.events.peek() else { return false };
        if time > until {
            return false;
        }
        self.now = time;
        let before = self.count;
        // Shares may make something happen at once.
        while let Some(&Reverse((_, _, event))) = self.events.peek().filter(|Reverse((at, ..))| *at == time) {
            self.events.pop();
            self.count += 1;
            self.take(event);
            if self.events.peek().is_none_or(|Reverse((at, ..))| *at != time) {
                self.share();
            }
        }
        if before / self.setup.audit != self.count / self.setup.audit {
            self.audit().unwrap_or_else(|why| panic!("at {time} µs: {why}"));
        }
        true
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Change(client, life) if self.clients[client].life == life => self.change(client),
            Event::Change(..) => {}
            Event::Renew(client) => self.renew(client),
            Event::Repaired(id, place, turn) if self.parts[id].turn[place] == turn => self.repaired(id, place),
            Event::Repaired(..) => {}
            Event::Settle(id) => {
                self.reckon(id);
                self.settle(id);
            }
            Event::Mend => self.mend_due(),
            Event::Ask => self.ask(),
            Event::Happens(step) => self.happens(step),
        }
    }

    /// The end of a repair, as it was foreseen.
    fn repaired(&mut self, id: PartId, place: usize) {
        self.reckon(id);
        let kept = &mut self.parts[id];
        let rest = kept.part.behind(place);
        if rest <= REST {
            self.books.copied += kept.part.repair(place, rest, &mut self.nodes);
        }
        if Self::work(&self.parts[id].part).any(|of| of == place) {
            self.foresee(id, place);
        }
        self.settle(id);
    }

    /// Copies that were full are asked again.
    fn ask(&mut self) {
        self.asks = false;
        for id in std::mem::take(&mut self.full) {
            self.reckon(id);
            for place in 0..PLACES {
                let kept = &mut self.parts[id];
                let behind = kept.part.behind(place);
                let Some(copy) = &mut kept.part.places[place] else { continue };
                let node = &self.nodes.0[copy.node];
                copy.full &= behind > 0 && node.used == node.memory;
            }
            self.settle(id);
        }
    }
}
