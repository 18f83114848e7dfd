//! The five transactions: what each does, and many of them at a time.

use std::sync::Arc;

use super::{SMALL, in_unithreads, small};
use crate::tpcc::check::check;
use crate::tpcc::database::{Database, Failed, LEAF};
use crate::tpcc::random::Dice;
use crate::tpcc::records::Version;
use crate::tpcc::rows::{Customer, District, LINES, Order, OrderLine, Stock, Waiting, text};
use crate::tpcc::stats::Count;
use crate::tpcc::work::{
    Delivery, Line, NewOrder, OrderStatus, Payment, StockLevel, Who, delivery, neworder, order_status, payment, stock_level,
};

fn order(w: u64, d: u64, c: u64, lines: &[(u64, u64, u64)]) -> NewOrder {
    let mut order = NewOrder { w, d, c, lines: [Line::default(); LINES as usize], count: lines.len() };
    for (line, (item, supplier, quantity)) in order.lines.iter_mut().zip(lines) {
        *line = Line { item: *item, supplier: *supplier, quantity: *quantity };
    }
    order
}

/// One request at random.
fn one(database: &Database, dice: &mut Dice) {
    let scale = database.scale;
    let (w, d) = (dice.number(1, scale.warehouses), dice.number(1, 3));
    let c = dice.number(1, scale.customers);
    let who = |dice: &mut Dice| {
        let mut name = [0; 16];
        let text = crate::tpcc::random::last_name(dice.number(0, scale.customers - 1));
        name[..text.len()].copy_from_slice(text.as_bytes());
        if dice.one_in(2) { Who::Id(c) } else { Who::Name(name) }
    };
    match dice.number(1, 100) {
        1..=40 => {
            let mut lines: Vec<_> = (0..dice.number(5, 15)).map(|_| (dice.number(1, 20), w, dice.number(1, 10))).collect();
            if dice.one_in(4) {
                lines[0].1 = dice.number(1, scale.warehouses);
            }
            let fails = dice.one_in(20);
            if fails {
                lines.last_mut().unwrap().0 = scale.items + 1;
            }
            let placed = neworder(database, &order(w, d, c, &lines)).unwrap();
            assert_eq!(placed.is_none(), fails);
        }
        41..=75 => {
            let who = who(dice);
            let (c_w, c_d) = if dice.one_in(3) { (dice.number(1, scale.warehouses), dice.number(1, 10)) } else { (w, d) };
            payment(database, &Payment { w, d, c_w, c_d, who, amount: dice.number(100, 500_000) as i64 }).unwrap();
        }
        76..=85 => {
            let status = order_status(database, &OrderStatus { w, d, who: who(dice) }).unwrap();
            let lines: Vec<OrderLine> = status.lines.iter().flatten().copied().collect();
            assert!((5..=15).contains(&lines.len()));
            // Not in parts: an order is delivered as a whole.
            assert!(lines.iter().all(|line| (line.delivery_d == 0) == (status.carrier == 0)), "{status:?}");
        }
        86..=95 => drop(delivery(database, &Delivery { w, carrier: dice.number(1, 10) }).unwrap()),
        _ => assert!(stock_level(database, &StockLevel { w, d, threshold: dice.number(10, 20) }).unwrap() <= 300),
    }
}

#[test]
fn the_conditions_hold_whatever_happens_at_a_time() {
    for workers in [1, 3] {
        let database = Arc::new(small());
        let shared = database.clone();
        in_unithreads(workers, 50, move |number| {
            let mut dice = Dice::new(number + 1000);
            (0..30).for_each(|_| one(&shared, &mut dice));
            if number % 25 == 7 {
                let report = check(&shared).unwrap();
                assert_eq!(report.broken().next(), None, "in the midst of it");
            }
        });
        let report = check(&database).unwrap();
        assert_eq!(report.broken().collect::<Vec<_>>(), []);
        let count = |count| database.counters.get(count);
        let all =
            [Count::NewOrders, Count::Rollbacks, Count::Payments, Count::OrderStatuses, Count::Deliveries, Count::StockLevels];
        assert_eq!(all.map(count).iter().sum::<u64>(), 1500);
        assert!(all.iter().all(|of| count(*of) > 0) && count(Count::Conflicts) > 100, "{:?}", database.counters);
        if workers == 1 {
            assert_eq!(database.found_locked(), 0, "a unithread was switched away from with a lock");
        }
    }
}

#[test]
fn a_new_order_is_found_delivered_and_paid() {
    let database = small();
    let read = |place| database.records.read::<Stock>(place).0;
    let before = read(database.stock(2, 9));
    let placed =
        neworder(&database, &order(1, 2, 5, &[(9, 2, 3), (10, 1, 1), (11, 1, 2), (12, 1, 4), (9, 2, 5)])).unwrap().unwrap();
    let o = SMALL.customers + 1;
    assert_eq!(placed.o, o);
    let after = read(database.stock(2, 9));
    assert_eq!((after.ytd, after.order_cnt, after.remote_cnt), (before.ytd + 8, 2, 2), "the same item twice");
    assert_eq!(u64::from(after.quantity), placed.lines[4].stock);
    let item: crate::tpcc::rows::Item = database.records.read(database.item(9)).0;
    assert_eq!((placed.lines[0].price, placed.lines[0].amount), (item.price, 3 * item.price));
    let sum: u64 = placed.lines.iter().map(|line| line.amount).sum();
    let status = order_status(&database, &OrderStatus { w: 1, d: 2, who: Who::Id(5) }).unwrap();
    assert_eq!((status.o, status.carrier, status.balance), (o, 0, -1000));
    let lines: Vec<_> = status.lines.iter().flatten().map(|line| (line.i_id, line.supply_w_id, line.quantity)).collect();
    assert_eq!(lines, [(9, 2, 3), (10, 1, 1), (11, 1, 2), (12, 1, 4), (9, 2, 5)]);
    assert_eq!(status.lines[0].unwrap().dist_info, before.dist[1]);
    // The orders that wait go in their order, one of each district each time.
    for expected in SMALL.delivered() + 1..=o {
        let delivered = delivery(&database, &Delivery { w: 1, carrier: 7 }).unwrap();
        assert_eq!(delivered[1], expected);
        assert_eq!(delivered[0], if expected < o { expected } else { 0 });
    }
    assert_eq!(delivery(&database, &Delivery { w: 1, carrier: 7 }).unwrap(), [0; 10]);
    let status = order_status(&database, &OrderStatus { w: 1, d: 2, who: Who::Id(5) }).unwrap();
    assert_eq!(status.carrier, 7);
    let earlier: Customer = database.records.read(database.customer(1, 2, 5)).0;
    let more = payment(&database, &Payment { w: 2, d: 1, c_w: 1, c_d: 2, who: Who::Id(5), amount: 77 }).unwrap();
    assert_eq!((more.c, more.balance), (5, earlier.balance - 77));
    assert!(earlier.balance >= sum as i64 - 1000);
    assert_eq!(check(&database).unwrap().broken().next(), None);
}

#[test]
fn a_rollback_leaves_nothing() {
    let database = small();
    let lines = [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (SMALL.items + 1, 1, 1)];
    assert_eq!(neworder(&database, &order(1, 1, 1, &lines)), Ok(None));
    for item in 1..=4 {
        assert_eq!(database.records.read::<Stock>(database.stock(1, item)).1, Version::NONE.next(), "as it was filled");
    }
    assert_eq!(database.records.read::<District>(database.district(1, 1)).1, Version::NONE.next());
    assert_eq!(database.records.read::<Order>(database.order(1, 1, SMALL.customers + 1)).1, Version::NONE);
    assert_eq!(check(&database).unwrap().broken().next(), None);
    assert_eq!((database.counters.get(Count::Rollbacks), database.counters.get(Count::NewOrders)), (1, 0));
}

#[test]
fn customers_by_name() {
    let mut scale = SMALL;
    (scale.warehouses, scale.customers) = (1, 1500);
    let database = crate::tpcc::populate::populate(scale, 3).unwrap();
    let mut several = 0;
    for number in 0..1000 {
        let mut with: Vec<_> = (1..=1500)
            .map(|c| (database.records.read::<Customer>(database.customer(1, 4, c)).0, c))
            .filter(|(customer, _)| text(&customer.last) == crate::tpcc::random::last_name(number).as_bytes())
            .map(|(customer, c)| (customer.first, c))
            .collect();
        if number % 50 == 0 || with.len() > 2 {
            with.sort_unstable();
            several += u32::from(with.len() > 2);
            // The middle one, rounded up, counted from 1.
            assert_eq!(database.by_name(1, 4, number), Some(with[with.len().div_ceil(2) - 1].1));
        }
        if several > 3 {
            break;
        }
    }
    assert!(several > 3);
    let nobody = Who::Name(*b"EINGEINGBAR\0\0\0\0\0");
    assert_eq!(order_status(&small(), &OrderStatus { w: 1, d: 1, who: nobody }), Err(Failed::NoCustomer));
    let none = Who::Name(*b"SMITH\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(order_status(&database, &OrderStatus { w: 1, d: 1, who: none }), Err(Failed::NoCustomer));
}

#[test]
fn what_is_full_is_refused() {
    let mut scale = SMALL;
    (scale.warehouses, scale.orders) = (1, 70);
    let database = crate::tpcc::populate::populate(scale, 3).unwrap();
    let one = order(1, 1, 1, &[(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (5, 1, 1)]);
    for o in 61..=70 {
        assert_eq!(neworder(&database, &one).unwrap().unwrap().o, o);
    }
    assert_eq!(neworder(&database, &one), Err(Failed::Full));
    // One that would be rolled back comes as far as to the district, too.
    let mut none = one;
    none.lines[4].item = scale.items + 1;
    assert_eq!(neworder(&database, &none), Err(Failed::Full));
    let pay = Payment { w: 1, d: 1, c_w: 1, c_d: 1, who: Who::Id(1), amount: 5 };
    let paid = (0..200).take_while(|_| payment(&database, &pay).is_ok()).count();
    assert_eq!((paid, payment(&database, &pay)), (100, Err(Failed::Full)), "700 rows, of which 600 were there");
    let report = check(&database).unwrap();
    assert_eq!(report.broken().next(), None, "{report:?}");
    // All orders of the district are delivered, over two leaves.
    for _ in 0..28 {
        assert_ne!(delivery(&database, &Delivery { w: 1, carrier: 1 }).unwrap()[0], 0);
    }
    assert_eq!(delivery(&database, &Delivery { w: 1, carrier: 1 }).unwrap()[0], 0);
    assert_eq!(database.records.read::<Waiting>(database.leaf(1, 1, 70 / LEAF)).0.orders, 0);
    assert_eq!(check(&database).unwrap().broken().next(), None);
}
