//! The counts of a part against its pages, each with the places that have it.

use farshore_fleet::part::{Copy, NodeId, PLACES, Pages, Part, Room, SETS, members};
use proptest::prelude::*;

/// Nodes with so much room, one for each place and those that come.
struct Nodes {
    memory: Pages,
    used: Vec<Pages>,
}

impl Room for Nodes {
    fn take(&mut self, node: NodeId, pages: Pages) -> Pages {
        let got = pages.min(self.memory - self.used[node]);
        self.used[node] += got;
        got
    }

    fn give(&mut self, node: NodeId, pages: Pages) {
        self.used[node] -= pages;
    }
}

#[derive(Clone, Debug)]
enum Does {
    Grow(Pages),
    Shrink(Pages),
    Write(usize, Pages),
    Repair(usize, Pages),
    Away(usize),
    Back(usize),
    Empty(usize),
    Leave(usize),
    Come(usize),
}

fn what() -> impl Strategy<Value = Does> {
    let (place, pages) = (0..PLACES, 1_u64..200);
    prop_oneof![
        3 => pages.clone().prop_map(Does::Grow),
        1 => pages.clone().prop_map(Does::Shrink),
        4 => (1..SETS, pages.clone()).prop_map(|(set, pages)| Does::Write(set, pages)),
        4 => (place.clone(), pages).prop_map(|(place, pages)| Does::Repair(place, pages)),
        1 => place.clone().prop_map(Does::Away),
        2 => place.clone().prop_map(Does::Back),
        1 => place.clone().prop_map(Does::Empty),
        1 => place.clone().prop_map(Does::Leave),
        3 => place.prop_map(Does::Come),
    ]
}

/// Pages one by one: which places have each. There is room for all.
#[derive(Default)]
struct Model {
    pages: Vec<usize>,
    there: [bool; PLACES],
    up: [bool; PLACES],
}

impl Model {
    fn up(&self) -> usize {
        (0..PLACES).filter(|&place| self.there[place] && self.up[place]).map(|place| 1 << place).sum()
    }

    /// The place has nothing; pages that no place has are lost.
    fn lose(&mut self, place: usize) -> Pages {
        let before = self.pages.len();
        self.pages.iter_mut().for_each(|page| *page &= !(1 << place));
        self.pages.retain(|&page| page != 0);
        (before - self.pages.len()) as Pages
    }

    /// Does it to both, and compares what they say.
    fn does(&mut self, does: &Does, part: &mut Part, nodes: &mut Nodes) -> Result<(), TestCaseError> {
        let up = self.up();
        match *does {
            Does::Grow(pages) => {
                let rest = part.grow(pages, nodes);
                prop_assert_eq!(rest, if up == 0 { pages } else { 0 });
                self.pages.extend((0..pages - rest).map(|_| up));
            }
            Does::Shrink(pages) => {
                // Any will do: those that went are taken out of the model.
                let before = part.have;
                part.shrink(pages, nodes);
                prop_assert_eq!(part.pages(), (before.iter().sum::<Pages>()).saturating_sub(pages));
                for (set, (&before, &after)) in before.iter().zip(&part.have).enumerate() {
                    prop_assert!(after <= before);
                    (after..before).for_each(|_| {
                        if let Some(at) = self.pages.iter().position(|&page| page == set) {
                            self.pages.swap_remove(at);
                        }
                    });
                }
            }
            Does::Write(set, pages) => {
                let written = part.write(set, pages, nodes);
                let to: Vec<&mut usize> = self.pages.iter_mut().filter(|page| **page == set).take(pages as usize).collect();
                if up != 0 && up != set {
                    prop_assert_eq!(written, to.len() as Pages);
                    to.into_iter().for_each(|page| *page = up);
                }
            }
            Does::Repair(place, pages) => {
                let copied = part.repair(place, pages, nodes);
                let lacks = |page: &&mut usize| **page >> place & 1 == 0 && **page & up != 0;
                // In the order of their sets.
                let mut to: Vec<&mut usize> = self.pages.iter_mut().filter(lacks).collect();
                to.sort();
                if up >> place & 1 == 0 {
                    prop_assert_eq!(copied, 0);
                } else {
                    prop_assert_eq!(copied, pages.min(to.len() as Pages));
                    to.into_iter().take(pages as usize).for_each(|page| *page |= 1 << place);
                }
            }
            Does::Away(place) => {
                self.up[place] = false;
                part.places[place].iter_mut().for_each(|copy| copy.up = false);
            }
            Does::Back(place) => {
                self.up[place] = self.there[place];
                part.back(place, nodes);
            }
            Does::Empty(place) => prop_assert_eq!(part.empty(place, nodes), self.lose(place)),
            Does::Leave(place) => {
                self.there[place] = false;
                prop_assert_eq!(part.leave(place, nodes), self.lose(place));
            }
            Does::Come(place) if !self.there[place] => {
                (self.there[place], self.up[place]) = (true, true);
                part.places[place] = Some(Copy::new(place));
            }
            Does::Come(_) => {}
        }
        if part.pages() != self.pages.len() as Pages {
            return Err(TestCaseError::fail(format!("{does:?}: {} pages, and {} in the model", part.pages(), self.pages.len())));
        }
        for set in 0..SETS {
            let count = self.pages.iter().filter(|&&page| page == set).count() as Pages;
            prop_assert_eq!(part.have[set], count, "after {:?}, set {}", does, set);
        }
        Ok(())
    }
}

/// What each copy holds is what its node counts, and enough for what is current.
fn room_is_right(part: &Part, nodes: &Nodes) -> Result<(), TestCaseError> {
    for place in 0..PLACES {
        let held = part.places[place].map_or(0, |copy| copy.held);
        prop_assert_eq!(nodes.used[place], held);
        prop_assert!(held <= nodes.memory);
        prop_assert!(part.fresh(place) <= held);
        let is_up = part.places[place].is_some_and(|copy| copy.up);
        prop_assert!(!is_up || held <= part.pages());
    }
    prop_assert_eq!(part.have[0], 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn counts_are_those_of_the_pages(all in prop::collection::vec(what(), 0..60)) {
        let (mut part, mut model) = (Part::default(), Model::default());
        let mut nodes = Nodes { memory: 1 << 20, used: vec![0; PLACES] };
        for does in &all {
            model.does(does, &mut part, &mut nodes)?;
            room_is_right(&part, &nodes)?;
        }
    }

    /// Where nodes are full, pages are on fewer copies, or find no room; none is lost by that, and none is made.
    #[test]
    fn full_nodes_lose_nothing(memory in 1_u64..400, all in prop::collection::vec(what(), 0..60)) {
        let mut part = Part::default();
        let mut nodes = Nodes { memory, used: vec![0; PLACES] };
        let mut pages = 0;
        for does in &all {
            match *does {
                Does::Grow(more) => pages += more - part.grow(more, &mut nodes),
                Does::Shrink(fewer) => {
                    part.shrink(fewer, &mut nodes);
                    pages -= fewer.min(pages);
                }
                Does::Write(set, some) => {
                    let up = part.up();
                    let written = part.write(set, some, &mut nodes);
                    prop_assert!(written <= some);
                    // A page that a copy has which is up finds it there again.
                    prop_assert!(set & up == 0 || set == up || written == 0 || members(set & up).all(|place| part.fresh(place) >= written));
                }
                Does::Repair(place, some) => {
                    let behind = part.behind(place);
                    let copied = part.repair(place, some, &mut nodes);
                    prop_assert_eq!(part.behind(place), behind - copied);
                }
                Does::Away(place) => part.places[place].iter_mut().for_each(|copy| copy.up = false),
                Does::Back(place) => part.back(place, &mut nodes),
                Does::Empty(place) => pages -= part.empty(place, &mut nodes),
                Does::Leave(place) => pages -= part.leave(place, &mut nodes),
                Does::Come(place) if part.places[place].is_none() => part.places[place] = Some(Copy::new(place)),
                Does::Come(_) => {}
            }
            prop_assert_eq!(part.pages(), pages);
            room_is_right(&part, &nodes)?;
        }
    }
}
