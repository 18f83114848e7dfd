//! Delivery (clause 2.7.4): the oldest new order of each district.
//!
//! Each district is a transaction of its own, as clause 2.7.4.2 allows, and the answer comes when all are done: there is no queue beside.

use crate::tpcc::database::{Abort, Database, Failed, LEAF, now};
use crate::tpcc::records::Place;
use crate::tpcc::rows::{Customer, DISTRICTS, District, FirstLeaf, LINES, Order, OrderLine, Waiting};
use crate::tpcc::stats::Count;
use crate::tpcc::transaction::Transaction;

/// What a terminal enters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The warehouse.
    pub w: u64,
    /// `O_CARRIER_ID`.
    pub carrier: u64,
}

/// Delivers. The order of each district; 0: there was none.
///
/// # Errors
/// Why it was not done. The districts before were.
pub fn delivery(database: &Database, delivery: &Delivery) -> Result<[u64; DISTRICTS as usize], Failed> {
    let mut delivered = [0; DISTRICTS as usize];
    for (d, order) in (1..).zip(&mut delivered) {
        *order = database.run(|transaction| one(database, transaction, delivery, d))?;
        if *order == 0 {
            database.counters.add(Count::Skipped);
        }
    }
    database.counters.add(Count::Deliveries);
    Ok(delivered)
}

/// Delivers the oldest order of a district.
fn one(database: &Database, transaction: &mut Transaction<'_>, delivery: &Delivery, d: u64) -> Result<u64, Abort> {
    let Delivery { w, carrier } = *delivery;
    let Some((leaf, place, orders)) = oldest(database, transaction, w, d) else { return Ok(0) };
    let bit = u64::from(orders.trailing_zeros());
    let o = leaf * LEAF + bit + 1;
    transaction.write(place, &Waiting { orders: orders & !(1 << bit) });
    let place = database.order(w, d, o);
    let mut order: Order = transaction.read(place);
    // What was read may not go together.
    if order.ol_cnt == 0 || u64::from(order.ol_cnt) > LINES {
        return Err(Abort::Conflict);
    }
    order.carrier_id = carrier as u32;
    transaction.write(place, &order);
    let mut sum = 0;
    for line in 1..=u64::from(order.ol_cnt) {
        let place = database.line(w, d, o, line);
        let mut line: OrderLine = transaction.read(place);
        line.delivery_d = now();
        sum += line.amount;
        transaction.write(place, &line);
    }
    let place = database.customer(w, d, order.c_id.into());
    let mut customer: Customer = transaction.read(place);
    customer.balance += sum;
    customer.delivery_cnt += 1;
    transaction.write(place, &customer);
    Ok(o)
}

/// The first leaf of NEW-ORDER with an order.
fn oldest(database: &Database, transaction: &mut Transaction<'_>, w: u64, d: u64) -> Option<(u64, Place, u64)> {
    let root = database.first_leaf(w, d);
    let FirstLeaf { leaf: first } = transaction.read(root);
    let mut last = first;
    let mut leaf = first;
    while leaf <= last {
        let place = database.leaf(w, d, leaf);
        let Waiting { orders } = transaction.read(place);
        if orders != 0 {
            if leaf > first {
                transaction.write(root, &FirstLeaf { leaf });
            }
            return Some((leaf, place, orders));
        }
        if leaf == first {
            // How far to look. Read no sooner, since each new order changes it.
            let District { next_o_id, .. } = transaction.read(database.district(w, d));
            last = next_o_id.saturating_sub(2) / LEAF;
        }
        leaf += 1;
    }
    None
}
