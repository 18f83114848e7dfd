//! New-Order (clause 2.4.2).

use bytemuck::Zeroable;

use crate::tpcc::database::{Abort, Database, Failed, LEAF, now};
use crate::tpcc::random::is_original;
use crate::tpcc::rows::{Customer, District, Item, LINES, Newest, Order, OrderLine, Stock, Waiting, Warehouse};
use crate::tpcc::stats::Count;

/// A line that is ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Line {
    /// The item; there may be none of this number.
    pub item: u64,
    /// The warehouse that supplies it.
    pub supplier: u64,
    /// How many.
    pub quantity: u64,
}

/// What a terminal enters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewOrder {
    /// The warehouse.
    pub w: u64,
    /// The district.
    pub d: u64,
    /// The customer.
    pub c: u64,
    /// The lines.
    pub lines: [Line; LINES as usize],
    /// How many there are.
    pub count: usize,
}

/// What is shown of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ordered {
    /// `I_PRICE`.
    pub price: u64,
    /// `OL_AMOUNT`.
    pub amount: u64,
    /// `S_QUANTITY`, as it is then.
    pub stock: u64,
    /// Both data say "ORIGINAL": it is of a brand.
    pub brand: bool,
}

/// What is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// The order's number.
    pub o: u64,
    /// `C_DISCOUNT`.
    pub discount: u64,
    /// `W_TAX`.
    pub w_tax: u64,
    /// `D_TAX`.
    pub d_tax: u64,
    /// `C_CREDIT`.
    pub credit: [u8; 2],
    /// `C_LAST`.
    pub last: [u8; 16],
    /// The sum, with discount and taxes.
    pub total: u64,
    /// The lines.
    pub lines: [Ordered; LINES as usize],
}

/// Places an order. `None`: an item is not there, so nothing has happened.
///
/// All else is done also then, and rolled back at the end (clause 2.4.2.3).
///
/// # Errors
/// Why it was not done.
pub fn neworder(database: &Database, order: &NewOrder) -> Result<Option<Placed>, Failed> {
    let NewOrder { w, d, c, lines, count } = *order;
    let done = database.run(|transaction| {
        let warehouse: Warehouse = transaction.read(database.warehouse(w));
        let customer: Customer = transaction.read(database.customer(w, d, c));
        let newest: Newest = transaction.read(database.newest(w, d, c));
        let (mut shown, mut sum, mut all_there) = ([Ordered::default(); LINES as usize], 0, true);
        let mut rows = [OrderLine::zeroed(); LINES as usize];
        for ((line, shown), row) in lines[..count].iter().zip(&mut shown).zip(&mut rows) {
            if line.item > database.scale.items {
                all_there = false;
                continue;
            }
            let item: Item = transaction.read(database.item(line.item));
            let place = database.stock(line.supplier, line.item);
            let mut stock: Stock = transaction.read(place);
            take(&mut stock, line.quantity as u32, line.supplier != w);
            transaction.write(place, &stock);
            let amount = line.quantity * item.price;
            *row = OrderLine {
                i_id: line.item as u32,
                supply_w_id: line.supplier as u32,
                delivery_d: 0,
                quantity: line.quantity,
                amount: amount as i64,
                dist_info: stock.dist[d as usize - 1],
            };
            let brand = is_original(&item.data) && is_original(&stock.data);
            *shown = Ordered { price: item.price, amount, stock: stock.quantity.into(), brand };
            sum += amount;
        }
        // What all orders of the district change is read last: while pages come, others change it.
        let place = database.district(w, d);
        let mut district: District = transaction.read(place);
        let o = district.next_o_id;
        if o > database.scale.orders {
            return Err(Abort::Failed(Failed::Full));
        }
        district.next_o_id += 1;
        transaction.write(place, &district);
        transaction.write(database.newest(w, d, c), &Newest { order: o });
        let all_local = lines[..count].iter().all(|line| line.supplier == w);
        let row = Order {
            c_id: c as u32,
            ol_cnt: count as u32,
            entry_d: now(),
            carrier_id: 0,
            all_local: all_local.into(),
            before: newest.order,
        };
        transaction.write(database.order(w, d, o), &row);
        // The line of an item that is not there has no item.
        for (number, row) in (1..).zip(&rows[..count]).filter(|(_, row)| row.i_id != 0) {
            transaction.write(database.line(w, d, o, number), row);
        }
        let place = database.leaf(w, d, (o - 1) / LEAF);
        let Waiting { orders } = transaction.read(place);
        transaction.write(place, &Waiting { orders: orders | 1 << ((o - 1) % LEAF) });
        if !all_there {
            return Err(Abort::Failed(Failed::NoItem));
        }
        let discount = u64::from(customer.discount);
        let total = total(sum, discount, warehouse.tax + district.tax);
        let (credit, last) = (customer.credit, customer.last);
        Ok(Placed { o, discount, w_tax: warehouse.tax, d_tax: district.tax, credit, last, total, lines: shown })
    });
    match done {
        Ok(placed) => {
            database.counters.add(Count::NewOrders);
            Ok(Some(placed))
        }
        Err(Failed::NoItem) => {
            database.counters.add(Count::Rollbacks);
            Ok(None)
        }
        Err(failed) => Err(failed),
    }
}

/// Takes some from a stock, which is filled up where it would be low.
fn take(stock: &mut Stock, quantity: u32, remote: bool) {
    let rest = stock.quantity.wrapping_sub(quantity);
    stock.quantity = if stock.quantity >= quantity + 10 { rest } else { rest.wrapping_add(91) };
    stock.ytd += u64::from(quantity);
    stock.order_cnt += 1;
    stock.remote_cnt += u32::from(remote);
}

/// A sum with discount and taxes, rounded down to a cent.
fn total(sum: u64, discount: u64, taxes: u64) -> u64 {
    (u128::from(sum) * u128::from(10_000 - discount) * u128::from(10_000 + taxes) / 100_000_000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stocks_are_filled_up() {
        let mut stock = Stock { quantity: 20, ..Stock::zeroed() };
        take(&mut stock, 10, false);
        assert_eq!((stock.quantity, stock.ytd, stock.order_cnt, stock.remote_cnt), (10, 10, 1, 0));
        take(&mut stock, 1, true);
        assert_eq!((stock.quantity, stock.ytd, stock.order_cnt, stock.remote_cnt), (100, 11, 2, 1));
        stock.quantity = 3;
        take(&mut stock, 10, false);
        assert_eq!(stock.quantity, 84);
    }

    #[test]
    fn totals() {
        assert_eq!(total(10_000, 0, 0), 10_000);
        assert_eq!(total(10_000, 1000, 1500), 10_350);
        assert_eq!(total(1, 5000, 0), 0);
    }
}
