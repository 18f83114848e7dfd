//! The rows of the nine tables (clause 1.3). Money is in cents, rates are in hundredths of a percent, times are seconds since 1970.
//!
//! Some tables are cut in two, which clause 1.4 allows: `W_YTD` and `D_YTD` lie apart from what New-Order reads of a warehouse or district, so that it
//! does not meet Payment there. Keys are where a row lies ([`super::database`]), and not in it.

use bytemuck::{Pod, Zeroable};

use super::records::Row;

/// Districts of a warehouse.
pub const DISTRICTS: u64 = 10;
/// Lines of an order at most.
pub const LINES: u64 = 15;
/// `H_DATA`, and `S_DIST_xx`.
pub const SHORT: usize = 24;
/// `C_DATA`.
pub const C_DATA: usize = 500;

macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $of:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
            #[expect(missing_docs, reason = "the specification's names")]
            pub struct $name { $(pub $field: $of,)* }

            impl Row for $name {}
        )*
    };
}

rows! {
    /// WAREHOUSE, but for `W_YTD`.
    Warehouse { tax: u64, name: [u8; 10], street_1: [u8; 20], street_2: [u8; 20], city: [u8; 20], state: [u8; 2], zip: [u8; 9], spare: [u8; 7], }
    /// DISTRICT, but for `D_YTD`.
    District { next_o_id: u64, tax: u64, name: [u8; 10], street_1: [u8; 20], street_2: [u8; 20], city: [u8; 20], state: [u8; 2], zip: [u8; 9], spare: [u8; 7], }
    /// `W_YTD` or `D_YTD`.
    Ytd { cents: i64, }
    /// CUSTOMER.
    Customer {
        balance: i64, ytd_payment: i64, credit_lim: i64, since: u64,
        discount: u32, payment_cnt: u32, delivery_cnt: u32, data_length: u32,
        credit: [u8; 2], middle: [u8; 2], first: [u8; 16], last: [u8; 16], street_1: [u8; 20], street_2: [u8; 20], city: [u8; 20], state: [u8; 2],
        zip: [u8; 9], phone: [u8; 16], data: [u8; C_DATA], spare: [u8; 1],
    }
    /// HISTORY.
    History { c_id: u32, c_d_id: u32, c_w_id: u32, d_id: u32, w_id: u32, spare: u32, date: u64, amount: i64, data: [u8; SHORT], }
    /// ORDER. `carrier_id` 0: null. `before`: the customer's order before this one, 0: none.
    Order { c_id: u32, ol_cnt: u32, entry_d: u64, carrier_id: u32, all_local: u32, before: u64, }
    /// ORDER-LINE. `delivery_d` 0: null.
    OrderLine { i_id: u32, supply_w_id: u32, delivery_d: u64, quantity: u64, amount: i64, dist_info: [u8; SHORT], }
    /// ITEM.
    Item { price: u64, im_id: u64, name: [u8; 24], data: [u8; 50], spare: [u8; 6], }
    /// STOCK.
    Stock { quantity: u32, order_cnt: u32, remote_cnt: u32, spare: u32, ytd: u64, dist: [[u8; SHORT]; 10], data: [u8; 50], behind: [u8; 6], }
    /// A leaf of NEW-ORDER: which of 64 orders wait to be delivered.
    Waiting { orders: u64, }
    /// The root of NEW-ORDER, for a district: no leaf before this one has an order.
    FirstLeaf { leaf: u64, }
    /// The index of ORDER by customer: the newest one, 0: none. Each order says which one came before.
    Newest { order: u64, }
}

/// The text of a field, without the zeroes behind it.
pub fn text(field: &[u8]) -> &[u8] {
    &field[..field.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tpcc::records::{row_of, words_of};

    #[test]
    fn rows_are_words() {
        assert_eq!((Customer::WORDS, Stock::WORDS, OrderLine::WORDS, Order::WORDS), (84, 40, 7, 4));
        let line = OrderLine {
            i_id: 7,
            supply_w_id: 3,
            delivery_d: 0,
            quantity: 5,
            amount: -1,
            dist_info: *b"abcdefghijklmnopqrstuvwx",
        };
        assert_eq!(row_of::<OrderLine>(words_of(&line)), line);
        assert_eq!(text(b"ab c\0\0"), b"ab c");
        assert_eq!(text(b"\0\0"), b"");
    }
}
