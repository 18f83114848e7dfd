//! The consistency conditions 1 to 12 (clause 3.3.2), and four for what this database has besides. Nothing changes while they are looked at.
//!
//! | condition | what must be so |
//! |---|---|
//! | 1 | `W_YTD` is the sum of its `D_YTD` |
//! | 2 | `D_NEXT_O_ID` - 1 is the largest `O_ID`, and the largest `NO_O_ID` if there is one |
//! | 3 | from the smallest to the largest `NO_O_ID` none is missing |
//! | 4 | the sum of `O_OL_CNT` is the number of order lines of the district |
//! | 5 | `O_CARRIER_ID` is null if and only if the order is in NEW-ORDER |
//! | 6 | `O_OL_CNT` is the number of the order's lines |
//! | 7 | `OL_DELIVERY_D` is null if and only if `O_CARRIER_ID` is |
//! | 8 | `W_YTD` is the sum of its `H_AMOUNT` |
//! | 9 | `D_YTD` is the sum of its `H_AMOUNT` |
//! | 10 | `C_BALANCE` is the sum of delivered `OL_AMOUNT`, less that of `H_AMOUNT` |
//! | 11 | ORDER has as many more rows than NEW-ORDER as were delivered at first, and `C_DELIVERY_CNT` since then |
//! | 12 | `C_BALANCE` + `C_YTD_PAYMENT` is the sum of delivered `OL_AMOUNT` |
//! | 13 | `S_YTD` is the sum of `OL_QUANTITY` that was ordered since then; `S_ORDER_CNT` is how often, and `S_REMOTE_CNT` how often from elsewhere; `S_QUANTITY` is 10 to 100 |
//! | 14 | the index by customer has each order of theirs, and `C_PAYMENT_CNT` is how many rows HISTORY has |
//! | 15 | no leaf of NEW-ORDER before the first one has an order |
//! | 16 | each warehouse, district, customer, item and stock is there, with its sums and indexes, and each order that an index names |
//!
//! The specification has condition 11 for the first data, of which none is counted as delivered.

use std::ops::RangeInclusive;

use bytemuck::Zeroable;
use farshore_uthread::checkpoint;

use super::database::{Database, Failed, LEAF};
use super::records::{Place, Row};
use super::rows::{
    Customer, DISTRICTS, District, FirstLeaf, History, Item, LINES, Newest, Order, OrderLine, Stock, Waiting, Warehouse, Ytd,
};

/// How many conditions there are.
pub const CONDITIONS: usize = 16;
/// `S_QUANTITY`: so it is at first, and New-Order fills a stock up that would have less than 10.
const QUANTITIES: RangeInclusive<u32> = 10..=100;

/// What was found: for each condition, the first thing that is not so.
#[derive(Debug, Default)]
pub struct Report {
    broken: [Option<String>; CONDITIONS],
    /// Rows that were looked at.
    pub rows: u64,
}

impl Report {
    /// Looks at a condition.
    fn must(&mut self, condition: usize, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.broken[condition - 1].is_none() {
            self.broken[condition - 1] = Some(what());
        }
    }

    /// The conditions that do not hold, and why.
    pub fn broken(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(&self.broken).filter_map(|(condition, what)| Some((condition, what.as_deref()?)))
    }
}

/// What is added up of a customer.
#[derive(Clone, Copy, Default)]
struct Sums {
    delivered: i64,
    paid: i64,
    payments: u64,
}

/// What is added up of a stock since the first data.
#[derive(Clone, Copy, Default)]
struct Moved {
    quantity: u64,
    lines: u64,
    remote: u64,
}

struct Check<'a> {
    database: &'a Database,
    report: Report,
    /// Of each customer of all warehouses.
    customers: Vec<Sums>,
    /// Of each stock.
    stocks: Vec<Moved>,
    /// `H_AMOUNT` of each district.
    districts: Vec<i64>,
}

/// Looks at all conditions, with the database for itself.
///
/// # Errors
/// The server is told to end.
pub fn check(database: &Database) -> Result<Report, Failed> {
    let _alone = database.alone_for_long()?;
    let scale = database.scale;
    let districts = (scale.warehouses * DISTRICTS) as usize;
    let mut check = Check {
        database,
        report: Report::default(),
        customers: vec![Sums::default(); districts * scale.customers as usize],
        stocks: vec![Moved::default(); (scale.warehouses * scale.items) as usize],
        districts: vec![0; districts],
    };
    check.histories()?;
    for w in 1..=scale.warehouses {
        for d in 1..=DISTRICTS {
            check.orders(w, d)?;
            check.people(w, d);
        }
        check.money(w);
    }
    check.supplies()?;
    Ok(check.report)
}

/// Each row may be far: a check ends in the midst if the server is told to end.
fn go_on() -> Result<(), Failed> {
    if farshore_uthread::stopping() { Err(Failed::Stopped) } else { Ok(()) }
}

impl Check<'_> {
    /// A row, if it was ever written.
    fn row<R: Row>(&mut self, place: Place) -> Option<R> {
        self.report.rows += 1;
        checkpoint();
        let (row, version) = self.database.records.read(place);
        (version != super::records::Version::NONE).then_some(row)
    }

    /// A row that must be there (condition 16). Zeroes if it is not.
    fn must_be<R: Row>(&mut self, place: Place, name: impl FnOnce() -> String) -> R {
        let row = self.row(place);
        self.report.must(16, row.is_some(), || format!("{} is not there", name()));
        row.unwrap_or_else(R::zeroed)
    }

    fn district(w: u64, d: u64) -> usize {
        ((w - 1) * DISTRICTS + d - 1) as usize
    }

    fn customer(&mut self, w: u64, d: u64, c: u64) -> Option<&mut Sums> {
        let customers = self.database.scale.customers;
        let known =
            (1..=self.database.scale.warehouses).contains(&w) && (1..=DISTRICTS).contains(&d) && (1..=customers).contains(&c);
        known.then(|| &mut self.customers[Self::district(w, d) * customers as usize + c as usize - 1])
    }

    fn histories(&mut self) -> Result<(), Failed> {
        for number in 0..self.database.histories() {
            go_on()?;
            // It may have been given out for a payment that was not done.
            let Some(row) = self.row::<History>(self.database.history(number)) else { continue };
            let [w, d, c_w, c_d, c] = [row.w_id, row.d_id, row.c_w_id, row.c_d_id, row.c_id].map(u64::from);
            let place = if w > 0 && d > 0 { self.districts.get_mut(Self::district(w, d)) } else { None };
            let known = place.map(|sum| *sum += row.amount).is_some();
            self.report.must(9, known, || format!("history {number}: there is no district {d} of warehouse {w}"));
            let known = self.customer(c_w, c_d, c).map(|sums| {
                sums.paid += row.amount;
                sums.payments += 1;
            });
            self.report
                .must(10, known.is_some(), || format!("history {number}: there is no customer {c} of district {c_w}.{c_d}"));
        }
        Ok(())
    }

    /// Conditions 2 to 7, 11, 15, and the sums of what is in orders.
    fn orders(&mut self, w: u64, d: u64) -> Result<(), Failed> {
        let database = self.database;
        let District { next_o_id, .. } = self.must_be(database.district(w, d), || format!("district {w}.{d}"));
        let FirstLeaf { leaf: first } =
            self.must_be(database.first_leaf(w, d), || format!("the root of new orders of district {w}.{d}"));
        // All that could be there is looked at, up to the end of the leaf behind the last order.
        let end = (next_o_id.div_ceil(LEAF) + 1) * LEAF;
        let end = end.min(database.scale.orders);
        let (mut last, mut count, mut lines, mut rows) = (0, 0, 0, 0);
        let (mut oldest, mut newest, mut waiting) = (0, 0, 0);
        let mut leaf = 0;
        for o in 1..=end {
            go_on()?;
            if (o - 1) % LEAF == 0 {
                leaf = self.row::<Waiting>(database.leaf(w, d, (o - 1) / LEAF)).map_or(0, |leaf| leaf.orders);
                let is_first = (o - 1) / LEAF >= first;
                self.report
                    .must(15, is_first || leaf == 0, || format!("district {w}.{d}: leaf {} is before {first}", (o - 1) / LEAF));
            }
            let waits = leaf >> ((o - 1) % LEAF) & 1 == 1;
            if waits {
                (oldest, newest) = (if waiting == 0 { o } else { oldest }, o);
                waiting += 1;
            }
            let order: Option<Order> = self.row(database.order(w, d, o));
            let (of_order, delivered) = self.lines(w, d, o, order.as_ref());
            rows += of_order;
            let Some(order) = order else {
                self.report.must(5, !waits, || format!("order {w}.{d}.{o} is new, and is not there"));
                self.report.must(6, of_order == 0, || format!("order {w}.{d}.{o} is not there, and has {of_order} lines"));
                continue;
            };
            (last, count, lines) = (o, count + 1, lines + u64::from(order.ol_cnt));
            let carrier = order.carrier_id;
            self.report
                .must(5, (carrier == 0) == waits, || format!("order {w}.{d}.{o} has carrier {carrier}, and is new: {waits}"));
            let said = order.ol_cnt;
            self.report.must(6, u64::from(said) == of_order, || format!("order {w}.{d}.{o} has {of_order} lines, not {said}"));
            if let Some(sums) = self.customer(w, d, order.c_id.into()) {
                sums.delivered += delivered;
            } else {
                self.report.must(10, false, || format!("order {w}.{d}.{o}: there is no customer {}", order.c_id));
            }
        }
        let name = || format!("district {w}.{d}");
        self.report
            .must(2, next_o_id == last + 1, || format!("{}: D_NEXT_O_ID {next_o_id}, and the last order is {last}", name()));
        let is_last = waiting == 0 || newest == last;
        self.report.must(2, is_last, || format!("{}: the last order is {last}, and the last new one {newest}", name()));
        let whole = waiting == 0 || newest - oldest + 1 == waiting;
        self.report.must(3, whole, || format!("{}: {waiting} new orders from {oldest} to {newest}", name()));
        self.report.must(4, lines == rows, || format!("{}: {rows} lines, not {lines}", name()));
        let mut deliveries = database.scale.delivered();
        for c in 1..=database.scale.customers {
            let customer: Customer = self.must_be(database.customer(w, d, c), || format!("customer {w}.{d}.{c}"));
            deliveries += u64::from(customer.delivery_cnt);
        }
        self.report.must(11, count == waiting + deliveries, || {
            format!("{}: {count} orders, {waiting} new ones, {deliveries} delivered", name())
        });
        Ok(())
    }

    /// Condition 7. How many lines an order has, and what the delivered ones come to.
    fn lines(&mut self, w: u64, d: u64, o: u64, order: Option<&Order>) -> (u64, i64) {
        let database = self.database;
        let (mut count, mut delivered) = (0, 0);
        for number in 1..=LINES {
            let Some(line) = self.row::<OrderLine>(database.line(w, d, o, number)) else { continue };
            count += 1;
            if line.delivery_d != 0 {
                delivered += line.amount;
            }
            let carrier = order.map_or(0, |order| order.carrier_id);
            let (same, at) = ((line.delivery_d == 0) == (carrier == 0), line.delivery_d);
            self.report.must(7, same, || format!("line {number} of order {w}.{d}.{o}: delivered at {at}, carrier {carrier}"));
            if o > database.scale.customers {
                let (supplier, item) = (u64::from(line.supply_w_id), u64::from(line.i_id));
                let at = supplier.wrapping_sub(1).wrapping_mul(database.scale.items).wrapping_add(item.wrapping_sub(1));
                match self.stocks.get_mut(at as usize).filter(|_| (1..=database.scale.items).contains(&item)) {
                    Some(moved) => {
                        moved.quantity += line.quantity;
                        moved.lines += 1;
                        moved.remote += u64::from(supplier != w);
                    }
                    None => {
                        self.report.must(13, false, || format!("order {w}.{d}.{o}: there is no stock of {item} at {supplier}"))
                    }
                }
            }
        }
        (count, delivered)
    }

    /// Conditions 10, 12 and 14.
    fn people(&mut self, w: u64, d: u64) {
        let database = self.database;
        let mut listed = 0;
        for c in 1..=database.scale.customers {
            let name = || format!("customer {w}.{d}.{c}");
            let Customer { balance, ytd_payment, payment_cnt, .. } = self.must_be(database.customer(w, d, c), name);
            let Sums { delivered, paid, payments } = self.customer(w, d, c).map_or(Sums::default(), |sums| *sums);
            self.report.must(10, balance == delivered - paid, || {
                format!("{}: balance {balance}, delivered {delivered}, paid {paid}", name())
            });
            self.report.must(12, balance + ytd_payment == delivered, || {
                format!("{}: balance {balance}, payments {ytd_payment}, delivered {delivered}", name())
            });
            self.report
                .must(14, u64::from(payment_cnt) == payments, || format!("{}: {payments} payments, not {payment_cnt}", name()));
            let Newest { order: mut o } = self.must_be(database.newest(w, d, c), || format!("the newest order of {}", name()));
            while o != 0 {
                let order: Order = if o <= database.scale.orders {
                    self.must_be(database.order(w, d, o), || format!("order {w}.{d}.{o}"))
                } else {
                    Order::zeroed()
                };
                let right = u64::from(order.c_id) == c && order.before < o;
                self.report.must(14, right, || format!("{}: order {o} is of {}, after {}", name(), order.c_id, order.before));
                if !right {
                    break;
                }
                listed += 1;
                o = order.before;
            }
        }
        let District { next_o_id, .. } = self.must_be(database.district(w, d), || format!("district {w}.{d}"));
        self.report.must(14, listed + 1 == next_o_id, || {
            format!("district {w}.{d}: customers have {listed} orders of {}", next_o_id.saturating_sub(1))
        });
    }

    /// Conditions 1, 8 and 9, and the warehouse itself.
    fn money(&mut self, w: u64) {
        let database = self.database;
        let _: Warehouse = self.must_be(database.warehouse(w), || format!("warehouse {w}"));
        let Ytd { cents: of_warehouse } = self.must_be(database.warehouse_ytd(w), || format!("W_YTD of {w}"));
        let (mut sum, mut all_paid) = (0, 0);
        for d in 1..=DISTRICTS {
            let Ytd { cents } = self.must_be(database.district_ytd(w, d), || format!("D_YTD of {w}.{d}"));
            let paid = self.districts[Self::district(w, d)];
            self.report.must(9, cents == paid, || format!("district {w}.{d}: D_YTD {cents}, payments {paid}"));
            (sum, all_paid) = (sum + cents, all_paid + paid);
        }
        self.report.must(1, of_warehouse == sum, || format!("warehouse {w}: W_YTD {of_warehouse}, its districts' {sum}"));
        self.report.must(8, of_warehouse == all_paid, || format!("warehouse {w}: W_YTD {of_warehouse}, payments {all_paid}"));
    }

    /// Condition 13, and the items, which all warehouses share.
    fn supplies(&mut self) -> Result<(), Failed> {
        let scale = self.database.scale;
        for i in 1..=scale.items {
            go_on()?;
            let _: Item = self.must_be(self.database.item(i), || format!("item {i}"));
        }
        for w in 1..=scale.warehouses {
            for i in 1..=scale.items {
                go_on()?;
                let stock: Stock = self.must_be(self.database.stock(w, i), || format!("stock {i} of warehouse {w}"));
                self.report.must(13, QUANTITIES.contains(&stock.quantity), || {
                    format!("stock {i} of warehouse {w}: S_QUANTITY {}", stock.quantity)
                });
                let Moved { quantity, lines, remote } = self.stocks[((w - 1) * scale.items + i - 1) as usize];
                let said = (stock.ytd, u64::from(stock.order_cnt), u64::from(stock.remote_cnt));
                self.report.must(13, said == (quantity, lines, remote), || {
                    format!("stock {i} of warehouse {w}: {said:?}, ordered {:?}", (quantity, lines, remote))
                });
            }
        }
        Ok(())
    }
}
