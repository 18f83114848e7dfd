//! The database: where each row lies, and how its transactions are run.
//!
//! All keys of TPC-C are small numbers, so a table is an array, and its primary index is arithmetic: one page for one row. What grows has addresses
//! for as many orders as each district may have; memory is taken page by page. An order and its lines lie together, four orders in a page.
//!
//! ```text
//!  ORDER, ORDER-LINE   district, order ─▶ order │ line │ line │ … 15 lines             1 KiB
//!  NEW-ORDER           district ─▶ first leaf ─▶ leaf: 64 bits, an order each ─▶ leaf …
//!  ORDER by customer   customer ─▶ newest order ─▶ the one before ─▶ …
//!  CUSTOMER by name    district, name ─▶ customers by first name                       written once
//! ```
//!
//! The parts of an index are records as others are. Delivery, which looks for the oldest new order, reads the first leaf and all leaves up to that order,
//! and their versions are among those that must not have changed: no order can come or go behind its back.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use farshore_uthread::{Stopped, yield_now};

use super::gate::{Alone, Gate};
use super::random::NAMES;
use super::records::{Place, Records, Row, Table};
use super::rows::{
    Customer, DISTRICTS, District, FirstLeaf, History, Item, LINES, Newest, Order, OrderLine, Stock, Waiting, Warehouse, Ytd,
};
use super::stats::{Count, Counters};
use super::transaction::{Conflict, Transaction};
use crate::memory::Region;

/// Conflicts of a transaction after which it gets the database for itself.
const TRIES: u32 = 100;
/// Orders of a leaf.
pub const LEAF: u64 = 64;
/// Words of an order or a line in the table of orders.
const PART: u64 = 8;
/// Warehouses at most.
pub const WAREHOUSES_MAX: u64 = 10_000;
/// Room for orders of a district at most.
pub const ORDERS_MAX: u64 = 1 << 24;

/// How large the database is. But for tests, all is the specification's apart from warehouses and room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// Warehouses.
    pub warehouses: u64,
    /// Customers, and first orders, of a district.
    pub customers: u64,
    /// Items, and stocks of a warehouse.
    pub items: u64,
    /// Orders for which each district has room.
    pub orders: u64,
}

impl Scale {
    /// By the specification.
    pub fn new(warehouses: u64, orders: u64) -> Scale {
        Scale { warehouses, customers: 3000, items: 100_000, orders }
    }

    /// First orders of a district that are delivered: seven tenths.
    pub fn delivered(&self) -> u64 {
        self.customers * 7 / 10
    }
}

/// Why a request was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// The server is told to end.
    Stopped,
    /// There is no room for more orders of this district, or for more payments.
    Full,
    /// There is no such customer.
    NoCustomer,
    /// There is no such item, which rolls a New-Order back.
    NoItem,
    /// What was read contradicts itself, though nobody else was there.
    Broken,
}

/// Why a try was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Abort {
    /// What was read does not go together: the transaction is tried again.
    Conflict,
    /// It is not done.
    Failed(Failed),
}

impl From<Conflict> for Abort {
    fn from(_: Conflict) -> Abort {
        Abort::Conflict
    }
}

#[derive(Clone, Copy, Debug)]
struct Tables {
    warehouse: Table,
    warehouse_ytd: Table,
    district: Table,
    district_ytd: Table,
    customer: Table,
    newest: Table,
    item: Table,
    stock: Table,
    orders: Table,
    first_leaf: Table,
    leaves: Table,
    history: Table,
}

/// See the module's head.
#[derive(Debug)]
pub struct Database {
    /// How large it is.
    pub scale: Scale,
    /// What happened.
    pub counters: Counters,
    pub(super) records: Records,
    tables: Tables,
    /// For each district: where each name's customers begin, and after that the customers. Written before anybody else knows of it.
    names: Region<AtomicU64>,
    gate: Gate,
    /// Rows of HISTORY that were given out.
    history: AtomicU64,
}

impl Database {
    /// An empty one.
    ///
    /// # Errors
    /// If the kernel does not give that much address space.
    pub fn empty(scale: Scale) -> io::Result<Database> {
        let districts = scale.warehouses * DISTRICTS;
        let times = |count: u64| districts.checked_mul(count).ok_or(io::ErrorKind::OutOfMemory);
        let end = &mut 0;
        let tables = Tables {
            warehouse: Table::new::<Warehouse>(scale.warehouses, end)?,
            warehouse_ytd: Table::new::<Ytd>(scale.warehouses, end)?,
            district: Table::new::<District>(districts, end)?,
            district_ytd: Table::new::<Ytd>(districts, end)?,
            customer: Table::new::<Customer>(times(scale.customers)?, end)?,
            newest: Table::new::<Newest>(times(scale.customers)?, end)?,
            item: Table::new::<Item>(scale.items, end)?,
            stock: Table::new::<Stock>(scale.warehouses * scale.items, end)?,
            orders: Table::of((LINES + 1) * PART, times(scale.orders)?, end)?,
            first_leaf: Table::new::<FirstLeaf>(districts, end)?,
            leaves: Table::new::<Waiting>(times(scale.orders.div_ceil(LEAF))?, end)?,
            history: Table::new::<History>(times(scale.orders)?, end)?,
        };
        let names = usize::try_from(times(NAMES + 1 + scale.customers)?).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Database {
            scale,
            counters: Counters::default(),
            records: Records::new(*end)?,
            tables,
            names: Region::new(names)?,
            gate: Gate::default(),
            history: AtomicU64::new(0),
        })
    }

    /// Runs a transaction until it has gone well without a conflict.
    ///
    /// # Errors
    /// Why it was not done; then nothing of it has happened.
    pub fn run<T>(&self, work: impl Fn(&mut Transaction<'_>) -> Result<T, Abort>) -> Result<T, Failed> {
        let once = || {
            let mut transaction = Transaction::new(&self.records);
            let done = work(&mut transaction)?;
            transaction.commit()?;
            Ok(done)
        };
        for _ in 0..TRIES {
            let inside = self.gate.enter().map_err(|Stopped| Failed::Stopped)?;
            match once() {
                Ok(done) => return Ok(done),
                Err(Abort::Failed(failed)) => return Err(failed),
                Err(Abort::Conflict) => {}
            }
            drop(inside);
            self.counters.add(Count::Conflicts);
            yield_now();
        }
        self.counters.add(Count::Alone);
        let _alone = self.alone()?;
        once().map_err(|abort| match abort {
            Abort::Failed(failed) => failed,
            Abort::Conflict => Failed::Broken,
        })
    }

    /// How often a transaction found a record locked.
    pub fn found_locked(&self) -> u64 {
        self.records.found_locked()
    }

    /// Lets nobody else work meanwhile.
    ///
    /// # Errors
    /// The server is told to end.
    pub fn alone(&self) -> Result<Alone<'_>, Failed> {
        self.gate.alone().map_err(|Stopped| Failed::Stopped)
    }

    /// The same for long. When this is over others work for as long, before it can be again.
    ///
    /// # Errors
    /// The server is told to end.
    pub fn alone_for_long(&self) -> Result<Alone<'_>, Failed> {
        self.gate.alone_for_long().map_err(|Stopped| Failed::Stopped)
    }

    fn district_number(&self, w: u64, d: u64) -> u64 {
        (w - 1) * DISTRICTS + d - 1
    }

    /// WAREHOUSE. Numbers begin with 1, here and below.
    pub fn warehouse(&self, w: u64) -> Place {
        self.tables.warehouse.at(w - 1)
    }

    /// `W_YTD`.
    pub fn warehouse_ytd(&self, w: u64) -> Place {
        self.tables.warehouse_ytd.at(w - 1)
    }

    /// DISTRICT.
    pub fn district(&self, w: u64, d: u64) -> Place {
        self.tables.district.at(self.district_number(w, d))
    }

    /// `D_YTD`.
    pub fn district_ytd(&self, w: u64, d: u64) -> Place {
        self.tables.district_ytd.at(self.district_number(w, d))
    }

    /// CUSTOMER.
    pub fn customer(&self, w: u64, d: u64, c: u64) -> Place {
        self.tables.customer.at(self.district_number(w, d) * self.scale.customers + c - 1)
    }

    /// The index of ORDER by customer.
    pub fn newest(&self, w: u64, d: u64, c: u64) -> Place {
        self.tables.newest.at(self.district_number(w, d) * self.scale.customers + c - 1)
    }

    /// ITEM.
    pub fn item(&self, i: u64) -> Place {
        self.tables.item.at(i - 1)
    }

    /// STOCK.
    pub fn stock(&self, w: u64, i: u64) -> Place {
        self.tables.stock.at((w - 1) * self.scale.items + i - 1)
    }

    /// ORDER.
    pub fn order(&self, w: u64, d: u64, o: u64) -> Place {
        self.tables.orders.at(self.district_number(w, d) * self.scale.orders + o - 1)
    }

    /// ORDER-LINE.
    pub fn line(&self, w: u64, d: u64, o: u64, line: u64) -> Place {
        self.tables.orders.inside(self.district_number(w, d) * self.scale.orders + o - 1, line * PART)
    }

    /// The root of NEW-ORDER.
    pub fn first_leaf(&self, w: u64, d: u64) -> Place {
        self.tables.first_leaf.at(self.district_number(w, d))
    }

    /// A leaf of NEW-ORDER.
    pub fn leaf(&self, w: u64, d: u64, leaf: u64) -> Place {
        self.tables.leaves.at(self.district_number(w, d) * self.scale.orders.div_ceil(LEAF) + leaf)
    }

    /// HISTORY.
    pub fn history(&self, number: u64) -> Place {
        self.tables.history.at(number)
    }

    /// A new row of HISTORY: its number. Where none is written the row is one that is not there.
    pub fn new_history(&self) -> Result<u64, Failed> {
        let number = self.history.fetch_add(1, Relaxed);
        if number < self.tables.history.count() {
            return Ok(number);
        }
        self.history.fetch_sub(1, Relaxed);
        Err(Failed::Full)
    }

    /// Rows of HISTORY that were given out.
    pub fn histories(&self) -> u64 {
        self.history.load(Relaxed).min(self.tables.history.count())
    }

    fn names_of(&self, w: u64, d: u64) -> &[AtomicU64] {
        let each = (NAMES + 1 + self.scale.customers) as usize;
        let start = self.district_number(w, d) as usize * each;
        &self.names[start..start + each]
    }

    /// Writes the index of customers by name: the customers of each name, in the order of their first names.
    pub(super) fn fill_names(&self, w: u64, d: u64, names: &[Vec<u64>]) {
        let words = self.names_of(w, d);
        let mut at = NAMES as usize + 1;
        for (name, customers) in names.iter().enumerate() {
            words[name].store(at as u64, Relaxed);
            for customer in customers {
                words[at].store(*customer, Relaxed);
                at += 1;
            }
        }
        words[NAMES as usize].store(at as u64, Relaxed);
    }

    /// The customer in the middle of those with a last name.
    pub fn by_name(&self, w: u64, d: u64, name: u64) -> Option<u64> {
        let words = self.names_of(w, d);
        let [start, end] = [name, name + 1].map(|name| words[name as usize].load(Relaxed) as usize);
        let middle = start + (end - start).checked_sub(1)? / 2;
        Some(words[middle].load(Relaxed))
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs())
}

const _: () = assert!(Order::WORDS < PART as usize);
const _: () = assert!(OrderLine::WORDS < PART as usize);
