//! Payment (clause 2.5.2).

use super::{Who, history_data, in_front};
use crate::tpcc::database::{Database, Failed, now};
use crate::tpcc::rows::{C_DATA, Customer, District, History, Warehouse, Ytd};
use crate::tpcc::stats::Count;

/// What a terminal enters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payment {
    /// Where it is paid.
    pub w: u64,
    /// And in which district.
    pub d: u64,
    /// The customer's warehouse.
    pub c_w: u64,
    /// And district.
    pub c_d: u64,
    /// The customer.
    pub who: Who,
    /// `H_AMOUNT`.
    pub amount: i64,
}

/// What is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Paid {
    /// The customer.
    pub c: u64,
    /// `C_BALANCE`.
    pub balance: i64,
    /// `C_CREDIT`.
    pub credit: [u8; 2],
    /// `C_DISCOUNT`.
    pub discount: u64,
}

/// Takes a payment.
///
/// # Errors
/// Why it was not done.
pub fn payment(database: &Database, payment: &Payment) -> Result<Paid, Failed> {
    let Payment { w, d, c_w, c_d, who, amount } = *payment;
    let c = who.id(database, c_w, c_d)?;
    // One for all tries. If none goes well its row stays one that is not there.
    let number = database.new_history()?;
    let paid = database.run(|transaction| {
        let warehouse: Warehouse = transaction.read(database.warehouse(w));
        let district: District = transaction.read(database.district(w, d));
        let place = database.customer(c_w, c_d, c);
        let mut customer: Customer = transaction.read(place);
        customer.balance -= amount;
        customer.ytd_payment += amount;
        customer.payment_cnt += 1;
        if customer.credit == *b"BC" {
            let text = format!("{c} {c_d} {c_w} {d} {w} {amount} ");
            in_front(&mut customer.data, text.as_bytes());
            customer.data_length = (customer.data_length + text.len() as u32).min(C_DATA as u32);
        }
        transaction.write(place, &customer);
        let history = History {
            c_id: c as u32,
            c_d_id: c_d as u32,
            c_w_id: c_w as u32,
            d_id: d as u32,
            w_id: w as u32,
            spare: 0,
            date: now(),
            amount,
            data: history_data(&warehouse.name, &district.name),
        };
        transaction.write(database.history(number), &history);
        // What all payments of the district and warehouse change is read last: while pages come, others change it.
        for place in [database.district_ytd(w, d), database.warehouse_ytd(w)] {
            let Ytd { cents } = transaction.read(place);
            transaction.write(place, &Ytd { cents: cents + amount });
        }
        Ok(Paid { c, balance: customer.balance, credit: customer.credit, discount: customer.discount.into() })
    })?;
    database.counters.add(Count::Payments);
    Ok(paid)
}
