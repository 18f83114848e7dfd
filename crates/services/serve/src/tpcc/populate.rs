//! The data that there are at first (clause 4.3.3.1). One seed gives the same data each time, but for the times in them.

use std::io;

use super::database::{Database, LEAF, Scale, now};
use super::random::{Dice, NAMES, last_name};
use super::rows::{
    Customer, DISTRICTS, District, FirstLeaf, History, Item, Newest, Order, OrderLine, Stock, Waiting, Warehouse, Ytd, text,
};

/// `W_YTD` for each district, `D_YTD`, and what the first payments come to: 10.00 for each customer.
const PAID: i64 = 1000;

/// Puts a text where there is room for it.
fn put<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut field = [0; N];
    field[..text.len()].copy_from_slice(text);
    field
}

/// A database with its data.
///
/// # Errors
/// If the kernel does not give that much address space.
pub fn populate(scale: Scale, seed: u64) -> io::Result<Database> {
    let database = Database::empty(scale)?;
    let mut dice = Dice::new(seed);
    for i in 1..=scale.items {
        let item = Item {
            price: dice.number(100, 10_000),
            im_id: dice.number(1, 10_000),
            name: dice.letters(14),
            data: dice.data(),
            spare: [0; 6],
        };
        database.records.fill(database.item(i), &item);
    }
    for w in 1..=scale.warehouses {
        warehouse(&database, w, &mut dice);
    }
    Ok(database)
}

fn warehouse(database: &Database, w: u64, dice: &mut Dice) {
    let Scale { items, customers, .. } = database.scale;
    let (street_1, street_2, city, state) = (dice.letters(10), dice.letters(10), dice.letters(10), dice.letters(2));
    let (name, zip, tax) = (dice.letters(6), dice.zip(), dice.number(0, 2000));
    database.records.fill(database.warehouse(w), &Warehouse { tax, name, street_1, street_2, city, state, zip, spare: [0; 7] });
    let paid = PAID * customers as i64;
    database.records.fill(database.warehouse_ytd(w), &Ytd { cents: paid * DISTRICTS as i64 });
    for i in 1..=items {
        let quantity = dice.number(10, 100) as u32;
        let dist = std::array::from_fn(|_| dice.letters(24));
        let data = dice.data();
        let stock = Stock { quantity, order_cnt: 0, remote_cnt: 0, spare: 0, ytd: 0, dist, data, behind: [0; 6] };
        database.records.fill(database.stock(w, i), &stock);
    }
    for d in 1..=DISTRICTS {
        let (street_1, street_2, city, state) = (dice.letters(10), dice.letters(10), dice.letters(10), dice.letters(2));
        let (name, zip, tax, next_o_id) = (dice.letters(6), dice.zip(), dice.number(0, 2000), customers + 1);
        let district = District { next_o_id, tax, name, street_1, street_2, city, state, zip, spare: [0; 7] };
        database.records.fill(database.district(w, d), &district);
        database.records.fill(database.district_ytd(w, d), &Ytd { cents: paid });
        people(database, w, d, dice);
        orders(database, w, d, dice);
    }
}

/// Customers of a district, their names, and one payment of each.
fn people(database: &Database, w: u64, d: u64, dice: &mut Dice) {
    let mut names = vec![Vec::new(); NAMES as usize];
    for c in 1..=database.scale.customers {
        let name = if c <= NAMES { c - 1 } else { dice.name() };
        let data: [u8; 500] = dice.letters(300);
        let customer = Customer {
            balance: -PAID,
            ytd_payment: PAID,
            credit_lim: 5_000_000,
            since: now(),
            discount: dice.number(0, 5000) as u32,
            payment_cnt: 1,
            delivery_cnt: 0,
            data_length: text(&data).len() as u32,
            credit: if dice.one_in(10) { *b"BC" } else { *b"GC" },
            middle: *b"OE",
            first: dice.letters(8),
            last: put(last_name(name).as_bytes()),
            street_1: dice.letters(10),
            street_2: dice.letters(10),
            city: dice.letters(10),
            state: dice.letters(2),
            zip: dice.zip(),
            phone: dice.digits(),
            data,
            spare: [0],
        };
        database.records.fill(database.customer(w, d, c), &customer);
        names[name as usize].push((customer.first, c));
        let (id, amount, data) = ([c, d, w].map(|id| id as u32), PAID, dice.letters(12));
        let history =
            History { c_id: id[0], c_d_id: id[1], c_w_id: id[2], d_id: id[1], w_id: id[2], spare: 0, date: now(), amount, data };
        let number = database.new_history().expect("room for the first orders is room for the first payments");
        database.records.fill(database.history(number), &history);
    }
    let sorted = names.into_iter().map(|mut name: Vec<([u8; 16], u64)>| {
        name.sort_unstable();
        name.into_iter().map(|(_, c)| c).collect()
    });
    database.fill_names(w, d, &sorted.collect::<Vec<_>>());
}

/// One order of each customer. Those of the last three tenths wait to be delivered.
fn orders(database: &Database, w: u64, d: u64, dice: &mut Dice) {
    let Scale { customers, items, .. } = database.scale;
    let delivered = database.scale.delivered();
    let mut leaves = vec![0u64; customers.div_ceil(LEAF) as usize + 1];
    for (o, c) in (1..=customers).zip(dice.permutation(customers)) {
        let (entry_d, lines) = (now(), dice.number(5, 15));
        let carrier_id = if o <= delivered { dice.number(1, 10) as u32 } else { 0 };
        let order = Order { c_id: c as u32, ol_cnt: lines as u32, entry_d, carrier_id, all_local: 1, before: 0 };
        database.records.fill(database.order(w, d, o), &order);
        database.records.fill(database.newest(w, d, c), &Newest { order: o });
        for line in 1..=lines {
            let (delivery_d, amount) = if o <= delivered { (entry_d, 0) } else { (0, dice.number(1, 999_999) as i64) };
            let (i_id, dist_info) = (dice.number(1, items) as u32, dice.letters(24));
            let row = OrderLine { i_id, supply_w_id: w as u32, delivery_d, quantity: 5, amount, dist_info };
            database.records.fill(database.line(w, d, o, line), &row);
        }
        if o > delivered {
            leaves[((o - 1) / LEAF) as usize] |= 1 << ((o - 1) % LEAF);
        }
    }
    database.records.fill(database.first_leaf(w, d), &FirstLeaf { leaf: delivered / LEAF });
    for (leaf, orders) in (0..).zip(leaves).filter(|(_, orders)| *orders != 0) {
        database.records.fill(database.leaf(w, d, leaf), &Waiting { orders });
    }
}
