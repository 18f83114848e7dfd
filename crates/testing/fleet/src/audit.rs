//! The laws. Each is looked at for what an event has touched, and for all now and then.

use crate::fleet::{Fleet, PartId};
use crate::nodes::State;
use crate::part::{PLACES, Pages, Part};
use std::collections::BTreeSet;

/// A page is lost only when the last of its copies is: those that are lost with a place are the pages that no other place had.
///
/// # Errors
/// The law that is broken.
pub(crate) fn loss(before: &Part, place: usize, lost: Pages) -> Result<(), String> {
    let pages = before.pages();
    let others = || (0..PLACES).filter(|&other| other != place && before.places[other].is_some());
    if let Some(other) = others().find(|&other| lost > 0 && before.fresh(other) == pages) {
        return Err(format!("{lost} pages are lost, and place {other} has all"));
    }
    let most = others().map(|other| before.fresh(other)).max().unwrap_or(0);
    if lost > pages - most {
        return Err(format!("{lost} of {pages} pages are lost, and another place has {most}"));
    }
    Ok(())
}

impl Fleet {
    /// What must hold of a part and its nodes.
    ///
    /// # Errors
    /// The law that is broken.
    fn laws_of_part(&self, id: PartId) -> Result<(), String> {
        let kept = &self.parts[id];
        let part = &kept.part;
        let wrong = |why: String| Err(format!("part {id}: {why}: {part:?}"));
        let copies = || part.places.iter().flatten();
        for (n, one) in part.places.iter().enumerate() {
            for (one, other) in part.places[..n].iter().filter_map(|other| one.as_ref().zip(other.as_ref())) {
                if one.node == other.node {
                    return wrong("two copies on one node".into());
                }
                let is_staying = !one.leaving && !other.leaving;
                if self.setup.apart && is_staying && self.nodes.0[one.node].rack == self.nodes.0[other.node].rack {
                    return wrong("two copies in one rack".into());
                }
            }
        }
        if part.have[0] != 0 {
            return wrong("a page that no copy has".into());
        }
        for (place, copy) in part.places.iter().enumerate() {
            let fresh = part.fresh(place);
            let Some(copy) = copy else {
                if fresh > 0 {
                    return wrong(format!("pages at place {place}, where no copy is"));
                }
                continue;
            };
            let node = &self.nodes.0[copy.node];
            if fresh > copy.held || (copy.up && copy.held > part.pages()) {
                return wrong(format!("place {place} holds {} pages, and {fresh} are current", copy.held));
            }
            if copy.up != matches!(node.state, State::Up | State::Leaving) {
                return wrong(format!("place {place} is on a node that is {:?}", node.state));
            }
            if node.used > node.memory {
                return wrong(format!("its node has {} pages, and {} are taken", node.memory, node.used));
            }
        }
        if kept.gone && (part.pages() > 0 || copies().next().is_some()) {
            return wrong("it was given up, and has something".into());
        }
        Ok(())
    }

    /// After an event has touched a part.
    ///
    /// # Panics
    /// If a law is broken.
    pub(crate) fn check_part(&self, id: PartId) {
        self.laws_of_part(id).unwrap_or_else(|why| panic!("at {} µs: {why}", self.now));
    }

    /// What must hold of all.
    ///
    /// # Errors
    /// The law that is broken.
    pub fn audit(&self) -> Result<(), String> {
        let mut used: Vec<Pages> = vec![0; self.nodes.0.len()];
        let mut promised = used.clone();
        let (mut pages, mut hurts) = (0, 0);
        for (id, kept) in self.parts.iter().enumerate() {
            self.laws_of_part(id)?;
            pages += kept.part.pages();
            hurts += usize::from(kept.hit && kept.hurt);
            for copy in kept.part.places.iter().flatten() {
                used[copy.node] += copy.held;
                promised[copy.node] += kept.part.pages();
            }
            if kept.hurt == (kept.gone || kept.part.is_whole(self.setup.copies)) {
                return Err(format!("part {id} is counted as hurt: {}", kept.hurt));
            }
        }
        for (id, node) in self.nodes.0.iter().enumerate() {
            if (node.used, node.promised) != (used[id], promised[id]) || node.used > node.memory {
                return Err(format!("node {id}: {} and {} pages are held there: {node:?}", used[id], promised[id]));
            }
        }
        let books = &self.books;
        if books.born != pages + books.freed + books.lost {
            return Err(format!("{pages} pages are there: {books:?}"));
        }
        let of_clients: Vec<PartId> = self.clients.iter().flat_map(|client| client.parts.iter().copied()).collect();
        let distinct: BTreeSet<PartId> = of_clients.iter().copied().collect();
        if distinct.len() != of_clients.len() || distinct.len() != self.parts.iter().filter(|kept| !kept.gone).count() {
            return Err("a part has two clients, or none".into());
        }
        let of_them: usize = self.clients.iter().map(|client| client.hurts).sum();
        if self.hurts != hurts || of_them != hurts {
            return Err(format!("{hurts} parts are hurt, and {} and {of_them} were counted", self.hurts));
        }
        let lost: Pages = self.clients.iter().map(|client| client.lost).sum();
        if lost != books.lost {
            return Err(format!("clients have lost {lost} pages: {books:?}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::Copy;
    use crate::setup::{GIB, SECOND, Setup};

    /// A fleet that has run a while, and is right.
    fn fleet() -> Fleet {
        let setup =
            Setup { clients: 12, nodes: 12, racks: 6, need: GIB / 16, part: Some(GIB / 64), audit: 1, ..Setup::default() };
        let mut fleet = Fleet::new(setup, 1);
        while fleet.next(100 * SECOND) {}
        assert_eq!(fleet.audit(), Ok(()));
        fleet
    }

    /// What the audit says of a fleet in which something was made wrong.
    fn found(plant: impl FnOnce(&mut Fleet)) -> String {
        let mut fleet = fleet();
        plant(&mut fleet);
        fleet.audit().expect_err("it is noticed")
    }

    /// A part that is there and full of pages.
    fn some(fleet: &Fleet) -> PartId {
        (0..fleet.parts.len()).find(|&id| !fleet.parts[id].gone && fleet.parts[id].part.pages() > 1).expect("there is one")
    }

    fn copy(fleet: &mut Fleet, place: usize) -> &mut Copy {
        let id = some(fleet);
        fleet.parts[id].part.places[place].as_mut().expect("it is there")
    }

    /// Makes something wrong.
    type Plant = fn(&mut Fleet);

    #[test]
    fn each_law_that_is_broken_is_noticed() {
        let cases: [(&str, Plant); 15] = [
            ("two copies on one node", |fleet| copy(fleet, 1).node = copy(fleet, 0).node),
            ("two copies in one rack", |fleet| {
                let node = copy(fleet, 0).node;
                copy(fleet, 1).node = node ^ 1;
            }),
            ("are taken", |fleet| {
                let node = copy(fleet, 0).node;
                fleet.nodes.0[node].memory = fleet.nodes.0[node].used - 1;
            }),
            ("pages are held there", |fleet| fleet.nodes.0[3].used += 1),
            ("pages are held there", |fleet| fleet.nodes.0[3].promised += 1),
            ("a page that no copy has", |fleet| {
                let id = some(fleet);
                (fleet.parts[id].part.have[0], fleet.parts[id].part.have[3]) = (1, fleet.parts[id].part.have[3] - 1);
            }),
            ("where no copy is", |fleet| {
                let id = some(fleet);
                (fleet.parts[id].part.have[7], fleet.parts[id].part.have[3]) = (1, fleet.parts[id].part.have[3] - 1);
            }),
            ("are current", |fleet| copy(fleet, 0).held -= 1),
            ("on a node that is", |fleet| copy(fleet, 0).up = false),
            ("pages are there", |fleet| fleet.books.lost += 1),
            ("pages are there", |fleet| fleet.books.born += 1),
            ("was given up", |fleet| {
                let id = some(fleet);
                fleet.parts[id].gone = true;
            }),
            ("two clients", |fleet| {
                let id = some(fleet);
                let other = (fleet.parts[id].client + 1) % fleet.clients.len();
                fleet.clients[other].parts.push(id);
            }),
            ("is counted as hurt", |fleet| {
                let id = some(fleet);
                fleet.parts[id].hurt = true;
            }),
            ("were counted", |fleet| fleet.hurts += 1),
        ];
        for (words, plant) in cases {
            let why = found(plant);
            assert!(why.contains(words), "{words}: {why}");
        }
        let why = found(|fleet| (fleet.clients[0].lost, fleet.books.lost, fleet.books.born) = (1, 2, fleet.books.born + 2));
        assert!(why.contains("clients have lost"), "{why}");
    }

    #[test]
    fn a_page_that_another_copy_has_cannot_be_lost() {
        let mut part = Part { have: [0, 2, 3, 5, 0, 0, 0, 0], ..Part::default() };
        part.places[0] = Some(Copy::new(0));
        part.places[1] = Some(Copy::new(1));
        assert_eq!(loss(&part, 0, 2), Ok(()));
        assert!(loss(&part, 0, 3).is_err_and(|why| why.contains("another place has 8")));
        part.have[1] = 0;
        assert!(loss(&part, 0, 1).is_err_and(|why| why.contains("place 1 has all")));
        assert_eq!(loss(&part, 0, 0), Ok(()));
        // The last copy goes, with all.
        part.places[1] = None;
        part.have = [0, 8, 0, 0, 0, 0, 0, 0];
        assert_eq!(loss(&part, 0, 8), Ok(()));
    }

    #[test]
    fn what_an_event_breaks_stops_the_run() {
        let mut fleet = fleet();
        copy(&mut fleet, 1).node = copy(&mut fleet, 0).node;
        let next = std::panic::AssertUnwindSafe(|| while fleet.next(10_000 * SECOND) {});
        let why = std::panic::catch_unwind(next).expect_err("it is noticed");
        assert!(why.downcast_ref::<String>().is_some_and(|why| why.contains("two copies on one node")));
    }
}
