//! Links, and how flows share them: max-min fair (Bertsekas and Gallager, *Data Networks*, 1992, section 6.5.2).
//!
//! A flow goes over several links at one rate, over some of them with a weight: a write to three copies leaves its client three times. It gets what it wants, or less
//! if a link is full. Then no flow can have more without taking from one that has no more than it.
//!
//! A link on which all can have what they want limits nobody. So only the flows over other links are looked at, which is nearly never any.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes a second.
pub type Rate = u64;

/// Links of a flow at most.
pub const LINKS: usize = 12;

/// A flow's links, each with its weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Route {
    links: [(u32, u32); LINKS],
    len: usize,
}

impl Route {
    /// The route goes over one more link.
    ///
    /// # Panics
    /// If it has [`LINKS`] already.
    pub fn over(&mut self, link: usize, weight: usize) {
        self.links[self.len] = (link as u32, weight as u32);
        self.len += 1;
    }

    fn iter(&self) -> impl Iterator<Item = (usize, u64)> {
        self.links[..self.len].iter().map(|&(link, weight)| (link as usize, u64::from(weight)))
    }
}

/// What a flow wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wish {
    /// Bytes a second; 0: it is no flow.
    pub rate: Rate,
    /// Where it goes.
    pub route: Route,
    /// It is a client's own, and no copying: [`Links::own`] counts it.
    pub is_own: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    wish: Wish,
    rate: f64,
}

/// Links and flows.
#[derive(Clone, Debug)]
pub struct Links {
    capacity: Vec<Rate>,
    /// What all flows over a link want together.
    wanted: Vec<Rate>,
    /// The flows over each.
    over: Vec<BTreeSet<usize>>,
    /// Links on which more is wanted than they carry.
    crowded: BTreeSet<usize>,
    flows: Vec<Flow>,
    /// Flows that have less than they want.
    slow: BTreeSet<usize>,
    wanted_by_own: Rate,
    /// What is missing to that.
    missing: f64,
    is_changed: bool,
}

/// A crowded link, while it is filled.
struct Filling {
    free: f64,
    /// The weights of the flows that do not have their rate yet.
    weight: u64,
}

impl Filling {
    /// The rate of those flows at which the link is full.
    fn level(&self) -> f64 {
        if self.weight == 0 { f64::INFINITY } else { (self.free / self.weight as f64).max(0.0) }
    }
}

impl Links {
    /// Links with these capacities, and no flow.
    #[must_use]
    pub fn new(capacity: Vec<Rate>) -> Links {
        Links {
            wanted: vec![0; capacity.len()],
            over: vec![BTreeSet::new(); capacity.len()],
            capacity,
            crowded: BTreeSet::new(),
            flows: Vec::new(),
            slow: BTreeSet::new(),
            wanted_by_own: 0,
            missing: 0.0,
            is_changed: false,
        }
    }

    fn count(&mut self, id: usize, is_there: bool) {
        let Wish { rate, route, is_own } = self.flows[id].wish;
        if rate == 0 {
            return;
        }
        for (link, weight) in route.iter() {
            let wanted = &mut self.wanted[link];
            if is_there {
                *wanted += rate * weight;
                self.over[link].insert(id);
            } else {
                *wanted -= rate * weight;
                self.over[link].remove(&id);
            }
            if *wanted > self.capacity[link] {
                self.crowded.insert(link)
            } else {
                self.crowded.remove(&link)
            };
        }
        if is_own {
            self.wanted_by_own = if is_there { self.wanted_by_own + rate } else { self.wanted_by_own - rate };
        }
    }

    /// A flow wants something else. It has what it wants until [`Links::share`], unless nothing has changed.
    pub fn set(&mut self, id: usize, wish: Wish) {
        if id >= self.flows.len() {
            self.flows.resize(id + 1, Flow::default());
        }
        if self.flows[id].wish == wish {
            return;
        }
        self.count(id, false);
        self.flows[id] = Flow { wish, rate: wish.rate as f64 };
        self.count(id, true);
        self.is_changed = true;
    }

    /// What a flow gets, bytes a second.
    #[must_use]
    pub fn rate(&self, id: usize) -> f64 {
        self.flows.get(id).map_or(0.0, |flow| flow.rate)
    }

    /// What clients want for themselves, and what of it they do not get.
    #[must_use]
    pub fn own(&self) -> (Rate, f64) {
        (self.wanted_by_own, self.missing)
    }

    /// Whether a flow has changed since all were given their shares.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Gives each flow its share. Calls `tell` with each whose rate is another now. Flows that were set since, and have what they want, are not among them.
    pub fn share(&mut self, tell: &mut impl FnMut(usize, f64)) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        let slow_before = std::mem::take(&mut self.slow);
        let mut before: Vec<(usize, f64)> = slow_before.iter().map(|&id| (id, self.flows[id].rate)).collect();
        before.iter().for_each(|&(id, _)| self.flows[id].rate = self.flows[id].wish.rate as f64);
        let mut left: Vec<usize> = self.crowded.iter().flat_map(|&link| self.over[link].iter().copied()).collect();
        left.sort_unstable();
        left.dedup();
        self.fill(left.clone());
        self.missing = 0.0;
        for id in left {
            let Flow { wish, rate } = self.flows[id];
            if rate < wish.rate as f64 {
                self.missing += if wish.is_own { wish.rate as f64 - rate } else { 0.0 };
                self.slow.insert(id);
                if !slow_before.contains(&id) {
                    before.push((id, wish.rate as f64));
                }
            }
        }
        before.into_iter().filter(|&(id, was)| self.flows[id].rate != was).for_each(|(id, _)| tell(id, self.flows[id].rate));
    }

    /// Fills the crowded links evenly, until each of the flows over them is at what it wants, or a link of it is full.
    fn fill(&mut self, mut left: Vec<usize>) {
        let Links { capacity, over, crowded, flows, .. } = self;
        let mut filling: BTreeMap<usize, Filling> = BTreeMap::new();
        for &link in crowded.iter() {
            let weight_of =
                |id: &usize| flows[*id].wish.route.iter().filter(|&(of, _)| of == link).map(|(_, weight)| weight).sum::<u64>();
            filling.insert(link, Filling { free: capacity[link] as f64, weight: over[link].iter().map(weight_of).sum() });
        }
        while !left.is_empty() {
            // The rate at which the first link is full, if none gets less than another.
            let level = filling.values().map(Filling::level).fold(f64::INFINITY, f64::min);
            let full: BTreeSet<usize> =
                filling.iter().filter(|(_, link)| link.level() <= level * (1.0 + 1e-9)).map(|(&link, _)| link).collect();
            // Those that want less than that leave room for others; if there is none, those of the full link have their rate.
            let is_modest = |flow: &Flow| flow.wish.rate as f64 <= level;
            let any_modest = left.iter().any(|&id| is_modest(&flows[id]));
            left.retain(|&id| {
                let flow = &mut flows[id];
                let is_done =
                    if any_modest { is_modest(flow) } else { flow.wish.route.iter().any(|(link, _)| full.contains(&link)) };
                if is_done {
                    flow.rate = (flow.wish.rate as f64).min(level);
                    for (link, weight) in flow.wish.route.iter() {
                        if let Some(link) = filling.get_mut(&link) {
                            link.free -= flow.rate * weight as f64;
                            link.weight -= weight;
                        }
                    }
                }
                !is_done
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn route(links: &[usize]) -> Route {
        let mut route = Route::default();
        links.iter().for_each(|&link| route.over(link, 1));
        route
    }

    fn wish(rate: Rate, route: Route) -> Wish {
        Wish { rate, route, is_own: true }
    }

    #[test]
    fn the_textbook_case() {
        // Three flows over the first link, one of them over the second too, where another one is alone with it.
        let mut links = Links::new(vec![30, 100]);
        for (id, route) in [route(&[0]), route(&[0]), route(&[0, 1]), route(&[1])].into_iter().enumerate() {
            links.set(id, wish(1000, route));
        }
        links.share(&mut |_, _| {});
        assert_eq!([0, 1, 2, 3].map(|id| links.rate(id)), [10.0, 10.0, 10.0, 90.0]);
        assert_eq!(links.own(), (4000, 4000.0 - 120.0));
        // One that wants little leaves the rest to the others.
        links.set(0, wish(4, route(&[0])));
        links.share(&mut |_, _| {});
        assert_eq!([0, 1, 2, 3].map(|id| links.rate(id)), [4.0, 13.0, 13.0, 87.0]);
    }

    /// A flow: what it wants, and its links.
    type Case = (Rate, Vec<(usize, usize)>);

    /// Capacities of links, and flows.
    fn cases() -> impl Strategy<Value = (Vec<Rate>, Vec<Case>)> {
        let flow = (0_u64..200, prop::collection::vec((0_usize..6, 1_usize..4), 1..4));
        (prop::collection::vec(1_u64..500, 6), prop::collection::vec(flow, 0..20))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        /// No link carries more than it can, and each flow has what it wants or a full link on which none has more. That is what max-min fair means.
        #[test]
        fn no_flow_can_have_more((capacity, flows) in cases(), again in 0_usize..20) {
            let mut links = Links::new(capacity.clone());
            let set = |links: &mut Links, id: usize, wants: Rate| {
                let mut route = Route::default();
                flows[id].1.iter().for_each(|&(link, weight)| route.over(link, weight));
                links.set(id, wish(wants, route));
            };
            (0..flows.len()).for_each(|id| set(&mut links, id, 7));
            links.share(&mut |_, _| {});
            let mut told: Vec<f64> = (0..flows.len()).map(|id| links.rate(id)).collect();
            // Set once more, so that what was there before is taken back.
            (0..flows.len()).filter(|&id| id != again).for_each(|id| {
                set(&mut links, id, flows[id].0);
                told[id] = links.rate(id);
            });
            links.share(&mut |id, rate| told[id] = rate);
            let wants = |id: usize| if id == again { 7 } else { flows[id].0 } as f64;
            let mut used = vec![0.0; capacity.len()];
            for (id, (_, route)) in flows.iter().enumerate() {
                route.iter().for_each(|&(link, weight)| used[link] += links.rate(id) * weight as f64);
                prop_assert!(links.rate(id) <= wants(id) + 1e-6);
                prop_assert!((told[id] - links.rate(id)).abs() < 1e-9, "flow {id} was told {}, and has {}", told[id], links.rate(id));
            }
            for (link, &used) in used.iter().enumerate() {
                prop_assert!(used <= capacity[link] as f64 + 1e-6);
            }
            for (id, (_, route)) in flows.iter().enumerate().filter(|&(id, _)| links.rate(id) < wants(id) - 1e-6) {
                let most = |link: usize| {
                    let over = flows.iter().enumerate().filter(|(_, (_, route))| route.iter().any(|&(of, _)| of == link));
                    over.map(|(id, _)| links.rate(id)).fold(0.0, f64::max)
                };
                let is_held = |link: usize| used[link] > capacity[link] as f64 - 1e-6 && links.rate(id) > most(link) - 1e-6;
                prop_assert!(route.iter().any(|&(link, _)| is_held(link)), "flow {id} could have more");
            }
        }
    }
}
