//! The two transactions that only read: Order-Status (clause 2.6.2) and Stock-Level (clause 2.8.2). They are serialisable as the others are.

use super::Who;
use crate::tpcc::database::{Abort, Database, Failed};
use crate::tpcc::rows::{Customer, District, LINES, Newest, Order, OrderLine, Stock};
use crate::tpcc::stats::Count;

/// Orders of a district that Stock-Level looks at.
const RECENT: u64 = 20;

/// What a terminal enters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderStatus {
    /// The warehouse.
    pub w: u64,
    /// The district.
    pub d: u64,
    /// The customer.
    pub who: Who,
}

/// What is shown of a customer's newest order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The customer.
    pub c: u64,
    /// `C_BALANCE`.
    pub balance: i64,
    /// The order; 0: there is none.
    pub o: u64,
    /// `O_ENTRY_D`.
    pub entry_d: u64,
    /// `O_CARRIER_ID`; 0: not delivered.
    pub carrier: u64,
    /// Its lines.
    pub lines: [Option<OrderLine>; LINES as usize],
}

/// Looks at a customer's newest order.
///
/// # Errors
/// Why it was not done.
pub fn order_status(database: &Database, asked: &OrderStatus) -> Result<Status, Failed> {
    let OrderStatus { w, d, who } = *asked;
    let c = who.id(database, w, d)?;
    let status = database.run(|transaction| {
        let customer: Customer = transaction.read(database.customer(w, d, c));
        let Newest { order: o } = transaction.read(database.newest(w, d, c));
        let mut lines = [None; LINES as usize];
        let mut status = Status { c, balance: customer.balance, o, entry_d: 0, carrier: 0, lines };
        if o > 0 {
            let order: Order = transaction.read(database.order(w, d, o));
            // What was read may not go together.
            let count = lines.get_mut(..order.ol_cnt as usize).ok_or(Abort::Conflict)?;
            for (number, line) in (1..).zip(count) {
                *line = Some(transaction.read(database.line(w, d, o, number)));
            }
            (status.entry_d, status.carrier, status.lines) = (order.entry_d, order.carrier_id.into(), lines);
        }
        Ok(status)
    })?;
    database.counters.add(Count::OrderStatuses);
    Ok(status)
}

/// What a terminal enters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StockLevel {
    /// The warehouse.
    pub w: u64,
    /// The district.
    pub d: u64,
    /// Less than this is low.
    pub threshold: u64,
}

/// Counts the items of the last twenty orders of which the stock is low.
///
/// # Errors
/// Why it was not done.
pub fn stock_level(database: &Database, asked: &StockLevel) -> Result<u64, Failed> {
    let StockLevel { w, d, threshold } = *asked;
    let low = database.run(|transaction| {
        let District { next_o_id, .. } = transaction.read(database.district(w, d));
        let mut items = Vec::with_capacity((RECENT * LINES) as usize);
        for o in next_o_id.saturating_sub(RECENT).max(1)..next_o_id {
            let order: Order = transaction.read(database.order(w, d, o));
            if order.ol_cnt == 0 || u64::from(order.ol_cnt) > LINES {
                return Err(Abort::Conflict);
            }
            for line in 1..=u64::from(order.ol_cnt) {
                let line: OrderLine = transaction.read(database.line(w, d, o, line));
                items.push(u64::from(line.i_id));
            }
        }
        items.sort_unstable();
        items.dedup();
        if items.first() == Some(&0) || items.last().is_some_and(|last| *last > database.scale.items) {
            return Err(Abort::Conflict);
        }
        let low = |item: &&u64| u64::from(transaction.read::<Stock>(database.stock(w, **item)).quantity) < threshold;
        Ok(items.iter().filter(low).count() as u64)
    })?;
    database.counters.add(Count::StockLevels);
    Ok(low)
}
