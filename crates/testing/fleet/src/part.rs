//! The far memory of a client, or a part of it: what one `mirror:` keeps.
//!
//! The mirror has a word for each slot, whose bits say which of three places lack the page. Here pages with the same bits are counted together: `have[set]` is the
//! number of pages that are current at the places of `set`, and nowhere else.
//!
//! | what happens | in the mirror | here |
//! |---|---|---|
//! | a page is written | it goes to all copies that are up, and is stale at the others | `have[set]` to `have[up]` |
//! | a copy is repaired | pages that it lacks are read from another one, and written to it | `have[set]` to `have[set + place]` |
//! | a copy is away | it keeps its pages, and misses writes | it is not in `up` |
//! | a copy is lost, or comes back empty | all of its slots are stale | `have[set]` to `have[set - place]` |
//! | no copy of a page is left | the page is lost | `have[{}]`, which is taken out and counted |

/// Pages, of 4 KiB.
pub type Pages = u64;
/// A set of places, a bit each.
pub type Set = usize;
/// A node's number.
pub type NodeId = usize;

/// Places that a mirror has for copies.
pub const PLACES: usize = 3;
/// Sets of them.
pub const SETS: usize = 1 << PLACES;

/// What is at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// Where it is.
    pub node: NodeId,
    /// Whether it answers.
    pub up: bool,
    /// Pages of its node's memory that it takes, current or not.
    pub held: Pages,
    /// Its node had no room when it was needed last.
    pub full: bool,
    /// Another copy replaces it, and it goes when that one has all.
    pub leaving: bool,
}

impl Copy {
    /// A new copy, which has nothing.
    #[must_use]
    pub fn new(node: NodeId) -> Copy {
        Copy { node, up: true, held: 0, full: false, leaving: false }
    }
}

/// Room that nodes have, for copies that grow.
pub trait Room {
    /// Takes up to so many pages at a node. How many it got.
    fn take(&mut self, node: NodeId, pages: Pages) -> Pages;
    /// Gives pages back.
    fn give(&mut self, node: NodeId, pages: Pages);
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// The copies.
    pub places: [Option<Copy>; PLACES],
    /// Pages by the places that have them.
    pub have: [Pages; SETS],
}

/// The places of a set.
pub fn members(set: Set) -> impl Iterator<Item = usize> {
    (0..PLACES).filter(move |place| set >> place & 1 != 0)
}

impl Part {
    /// Pages that it has.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.have.iter().sum()
    }

    /// The places whose copy is such a one.
    #[must_use]
    pub fn set(&self, is: impl Fn(&Copy) -> bool) -> Set {
        (0..PLACES).filter(|&place| self.places[place].as_ref().is_some_and(&is)).map(|place| 1 << place).sum()
    }

    /// The places with a copy that answers.
    #[must_use]
    pub fn up(&self) -> Set {
        self.set(|copy| copy.up)
    }

    /// Pages that are current at a place.
    #[must_use]
    pub fn fresh(&self, place: usize) -> Pages {
        (0..SETS).filter(|set| set >> place & 1 != 0).map(|set| self.have[set]).sum()
    }

    /// Pages that a place lacks, and a copy that answers has.
    #[must_use]
    pub fn behind(&self, place: usize) -> Pages {
        let up = self.up();
        (0..SETS).filter(|set| set >> place & 1 == 0 && set & up != 0).map(|set| self.have[set]).sum()
    }

    /// Pages of which a single copy answers, or none.
    #[must_use]
    pub fn single(&self) -> Pages {
        let up = self.up();
        (0..SETS).filter(|set| (set & up).count_ones() <= 1).map(|set| self.have[set]).sum()
    }

    /// Whether so many copies have every page, and answer.
    #[must_use]
    pub fn is_whole(&self, copies: usize) -> bool {
        let pages = self.pages();
        let is_good =
            |place: usize| self.places[place].is_some_and(|copy| copy.up && !copy.leaving) && self.fresh(place) == pages;
        (0..PLACES).filter(|&place| is_good(place)).count() >= copies
    }

    /// Room at a place for pages that become current there: how many of those wanted. What the place holds for old pages is overwritten.
    fn hold(&mut self, place: usize, wanted: Pages, room: &mut impl Room) -> Pages {
        let fresh = self.fresh(place);
        let Some(copy) = &mut self.places[place] else { return 0 };
        let more = (fresh + wanted).saturating_sub(copy.held);
        let got = room.take(copy.node, more);
        copy.held += got;
        copy.full |= got < more;
        wanted - (more - got)
    }

    /// Counts pages to the places that got them: the first ones to all that have any, the last ones to those that have the most. How many were counted.
    fn spread(&mut self, got: [Pages; PLACES]) -> Pages {
        let (mut so_far, most) = (0, got.into_iter().max().unwrap_or(0));
        while so_far < most {
            let set: Set = (0..PLACES).filter(|&place| got[place] > so_far).map(|place| 1 << place).sum();
            let next = members(set).map(|place| got[place]).min().unwrap_or(most);
            self.have[set] += next - so_far;
            so_far = next;
        }
        most
    }

    /// New pages. How many found no room anywhere.
    #[must_use]
    pub fn grow(&mut self, pages: Pages, room: &mut impl Room) -> Pages {
        let mut got = [0; PLACES];
        for (got, copy) in got.iter_mut().zip(&mut self.places) {
            let Some(copy) = copy.as_mut().filter(|copy| copy.up) else { continue };
            *got = room.take(copy.node, pages);
            copy.held += *got;
            copy.full |= *got < pages;
        }
        pages - self.spread(got)
    }

    /// Pages are freed: of each set in proportion.
    pub fn shrink(&mut self, pages: Pages, room: &mut impl Room) {
        let all = self.pages();
        let mut left = pages.min(all);
        if left == 0 {
            return;
        }
        let before = self.have;
        for (have, before) in self.have.iter_mut().zip(before) {
            let gone = (u128::from(before) * u128::from(pages.min(all)) / u128::from(all)) as Pages;
            *have -= gone;
            left -= gone;
        }
        for have in &mut self.have {
            let gone = left.min(*have);
            *have -= gone;
            left -= gone;
        }
        self.trim_all(room);
    }

    /// The copies that answer give back what no page needs, those that were lost among them.
    fn trim_all(&mut self, room: &mut impl Room) {
        members(self.up()).for_each(|place| self.trim(place, room));
    }

    /// A copy gives back what no page needs.
    fn trim(&mut self, place: usize, room: &mut impl Room) {
        let pages = self.pages();
        let Some(copy) = &mut self.places[place] else { return };
        if let Some(unneeded) = copy.held.checked_sub(pages).filter(|&unneeded| unneeded > 0) {
            copy.held = pages;
            room.give(copy.node, unneeded);
        }
    }

    /// Pages of a set are written: they go to all copies that are up and have room. How many found a copy.
    pub fn write(&mut self, set: Set, pages: Pages, room: &mut impl Room) -> Pages {
        let up = self.up();
        let pages = pages.min(self.have[set]);
        if up == 0 || set == up || pages == 0 {
            return 0;
        }
        let mut got = [0; PLACES];
        for place in members(up) {
            got[place] = if set >> place & 1 != 0 { pages } else { self.hold(place, pages, room) };
        }
        let written = self.spread(got);
        self.have[set] -= written;
        written
    }

    /// Copies up to so many pages to a place, from those that answer. How many.
    pub fn repair(&mut self, place: usize, pages: Pages, room: &mut impl Room) -> Pages {
        let up = self.up();
        if up >> place & 1 == 0 {
            return 0;
        }
        let pages = self.hold(place, pages.min(self.behind(place)), room);
        let mut left = pages;
        for set in (0..SETS).filter(|set| set >> place & 1 == 0 && set & up != 0) {
            let some = left.min(self.have[set]);
            self.have[set] -= some;
            self.have[set | 1 << place] += some;
            left -= some;
        }
        pages - left
    }

    /// A place has nothing any more. Pages that are lost by that.
    #[must_use]
    pub fn lose(&mut self, place: usize) -> Pages {
        for set in (0..SETS).filter(|set| set >> place & 1 != 0) {
            let pages = std::mem::take(&mut self.have[set]);
            self.have[set & !(1 << place)] += pages;
        }
        std::mem::take(&mut self.have[0])
    }

    /// A copy goes, with all that it has. Pages that are lost by that.
    #[must_use]
    pub fn leave(&mut self, place: usize, room: &mut impl Room) -> Pages {
        let lost = self.lose(place);
        if let Some(copy) = self.places[place].take() {
            room.give(copy.node, copy.held);
        }
        self.trim_all(room);
        lost
    }

    /// A copy was started again, and is empty. Pages that are lost by that.
    #[must_use]
    pub fn empty(&mut self, place: usize, room: &mut impl Room) -> Pages {
        let lost = self.lose(place);
        if let Some(copy) = &mut self.places[place] {
            room.give(copy.node, std::mem::take(&mut copy.held));
            copy.full = false;
        }
        self.trim_all(room);
        lost
    }

    /// A copy that was away answers again.
    pub fn back(&mut self, place: usize, room: &mut impl Room) {
        if let Some(copy) = &mut self.places[place] {
            (copy.up, copy.full) = (true, false);
        }
        self.trim(place, room);
    }
}
