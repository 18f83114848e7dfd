//! Each consistency condition fails where it must, and no other one does.

use super::{SMALL, small};
use crate::tpcc::check::{CONDITIONS, check};
use crate::tpcc::database::{Database, LEAF};
use crate::tpcc::records::{Place, Row, Version, words_of};
use crate::tpcc::rows::{Customer, District, FirstLeaf, History, Item, Newest, Order, OrderLine, Stock, Waiting, Warehouse, Ytd};

/// Changes a row behind everybody's back.
fn change<R: Row>(database: &Database, place: Place, how: impl FnOnce(&mut R)) {
    let mut row: R = database.records.read(place).0;
    how(&mut row);
    let version = database.records.lock(place).unwrap();
    database.records.unlock_with(place, words_of(&row), version.next());
}

/// Makes a row one that was never written.
fn lose<R: Row>(database: &Database, place: Place) {
    database.records.unlock_with(place, words_of(&R::zeroed()), Version::NONE);
}

/// A planted bug, and the conditions that it breaks.
type Case = (&'static str, &'static [usize], fn(&Database));

/// The last order that was delivered, and one in the midst of those that wait.
const DELIVERED: u64 = SMALL.customers * 7 / 10;
const WAITS: u64 = DELIVERED + 5;

const CASES: [Case; 30] = [
    ("W_YTD", &[1, 8], |database| change(database, database.warehouse_ytd(2), |row: &mut Ytd| row.cents += 1)),
    ("D_YTD", &[1, 9], |database| change(database, database.district_ytd(1, 10), |row: &mut Ytd| row.cents -= 1)),
    ("D_NEXT_O_ID", &[2, 14], |database| change(database, database.district(1, 1), |row: &mut District| row.next_o_id += 1)),
    ("a new order is gone", &[3, 5, 11], |database| {
        change(database, database.leaf(1, 1, (WAITS - 1) / LEAF), |row: &mut Waiting| row.orders &= !(1 << ((WAITS - 1) % LEAF)));
    }),
    ("the last new order is gone", &[2, 5, 11], |database| {
        let last = SMALL.customers - 1;
        change(database, database.leaf(2, 3, last / LEAF), |row: &mut Waiting| row.orders &= !(1 << (last % LEAF)));
    }),
    ("a new order without an order", &[2, 5, 11], |database| {
        let next = SMALL.customers;
        change(database, database.leaf(2, 3, next / LEAF), |row: &mut Waiting| row.orders |= 1 << (next % LEAF));
    }),
    ("a line too many", &[4, 6], |database| {
        let order: Order = database.records.read(database.order(1, 1, WAITS)).0;
        let line: OrderLine = database.records.read(database.line(1, 1, WAITS, 1)).0;
        // Of 15 lines none is missing: then one goes from the count.
        if order.ol_cnt < 15 {
            database.records.fill(database.line(1, 1, WAITS, u64::from(order.ol_cnt) + 1), &line);
        } else {
            change(database, database.order(1, 1, WAITS), |row: &mut Order| row.ol_cnt -= 1);
        }
    }),
    ("O_OL_CNT", &[4, 6], |database| change(database, database.order(1, 1, WAITS), |row: &mut Order| row.ol_cnt -= 1)),
    ("O_CARRIER_ID of a new order", &[5, 7], |database| {
        change(database, database.order(1, 2, WAITS), |row: &mut Order| row.carrier_id = 3);
    }),
    ("O_CARRIER_ID is lost", &[5, 7], |database| {
        change(database, database.order(1, 2, DELIVERED), |row: &mut Order| row.carrier_id = 0);
    }),
    ("OL_DELIVERY_D is lost", &[7], |database| {
        change(database, database.line(1, 2, DELIVERED, 2), |row: &mut OrderLine| row.delivery_d = 0);
    }),
    ("H_AMOUNT", &[8, 9, 10], |database| change(database, database.history(17), |row: &mut History| row.amount += 1)),
    ("a payment of another customer", &[10, 14], |database| {
        change(database, database.history(17), |row: &mut History| row.c_id += 1);
    }),
    ("C_BALANCE", &[10, 12], |database| change(database, database.customer(2, 10, 60), |row: &mut Customer| row.balance += 1)),
    ("C_DELIVERY_CNT", &[11], |database| {
        change(database, database.customer(1, 1, 1), |row: &mut Customer| row.delivery_cnt += 1)
    }),
    ("C_YTD_PAYMENT", &[12], |database| change(database, database.customer(1, 1, 1), |row: &mut Customer| row.ytd_payment -= 1)),
    ("S_YTD", &[13], |database| change(database, database.stock(2, SMALL.items), |row: &mut Stock| row.ytd += 1)),
    ("C_PAYMENT_CNT", &[14], |database| change(database, database.customer(1, 1, 1), |row: &mut Customer| row.payment_cnt += 1)),
    ("a customer's newest order", &[14], |database| change(database, database.newest(2, 7, 9), |row: &mut Newest| row.order = 0)),
    ("the first leaf", &[15], |database| change(database, database.first_leaf(2, 7), |row: &mut FirstLeaf| row.leaf += 1)),
    ("S_QUANTITY is low", &[13], |database| change(database, database.stock(1, 3), |row: &mut Stock| row.quantity = 9)),
    ("S_QUANTITY is high", &[13], |database| change(database, database.stock(1, 3), |row: &mut Stock| row.quantity = 101)),
    ("an item is gone", &[16], |database| lose::<Item>(database, database.item(SMALL.items))),
    ("a warehouse is gone", &[16], |database| lose::<Warehouse>(database, database.warehouse(2))),
    ("a stock is gone", &[13, 16], |database| lose::<Stock>(database, database.stock(2, 1))),
    ("a district is gone", &[2, 14, 16], |database| lose::<District>(database, database.district(1, 1))),
    ("a customer is gone", &[10, 14, 16], |database| lose::<Customer>(database, database.customer(1, 1, 1))),
    ("a customer's index is gone", &[14, 16], |database| lose::<Newest>(database, database.newest(1, 1, 1))),
    ("a district's sum is gone", &[1, 9, 16], |database| lose::<Ytd>(database, database.district_ytd(1, 1))),
    ("a root of new orders is gone", &[16], |database| lose::<FirstLeaf>(database, database.first_leaf(1, 1))),
];

/// All rows of a warehouse's tables are gone whose zeroes would agree with each other.
#[test]
fn tables_that_are_gone_are_missed() {
    let database = small();
    for i in 1..=SMALL.items {
        lose::<Item>(&database, database.item(i));
        (1..=SMALL.warehouses).for_each(|w| lose::<Stock>(&database, database.stock(w, i)));
    }
    (1..=SMALL.warehouses).for_each(|w| lose::<Warehouse>(&database, database.warehouse(w)));
    let report = check(&database).unwrap();
    let missing = report.broken().find(|(condition, _)| *condition == 16).unwrap();
    assert!(missing.1.ends_with("is not there"), "{missing:?}");
}

#[test]
fn each_condition_fails_where_it_must() {
    assert_eq!(check(&small()).unwrap().broken().next(), None);
    let mut seen = [false; CONDITIONS];
    for (what, expected, plant) in CASES {
        let database = small();
        plant(&database);
        let report = check(&database).unwrap();
        let broken: Vec<_> = report.broken().collect();
        let numbers: Vec<_> = broken.iter().map(|(condition, _)| *condition).collect();
        assert_eq!(numbers, expected, "{what}: {broken:?}");
        expected.iter().for_each(|condition| seen[condition - 1] = true);
    }
    assert_eq!(seen, [true; CONDITIONS], "a condition that nothing breaks");
}
