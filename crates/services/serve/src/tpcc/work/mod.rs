//! The five transactions (clauses 2.4 to 2.8). Each is a function from what a terminal enters to what it shows; the database does either all of one, or
//! nothing.
//!
//! What comes in is within bounds already ([`super::protocol`]). Money is in cents; rates are in hundredths of a percent.

mod delivery;
mod look;
mod neworder;
mod payment;

pub use delivery::{Delivery, delivery};
pub use look::{OrderStatus, Status, StockLevel, order_status, stock_level};
pub use neworder::{Line, NewOrder, Ordered, Placed, neworder};
pub use payment::{Paid, Payment, payment};

use super::database::{Database, Failed};
use super::random::number_of;
use super::rows::{C_DATA, SHORT};

/// How a terminal names a customer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// By the number.
    Id(u64),
    /// By the last name: the middle one, by first names, of those who have it.
    Name([u8; 16]),
}

impl Who {
    /// The number.
    fn id(&self, database: &Database, w: u64, d: u64) -> Result<u64, Failed> {
        match self {
            Who::Id(c) => Ok(*c),
            Who::Name(name) => {
                let name = number_of(super::rows::text(name)).ok_or(Failed::NoCustomer)?;
                database.by_name(w, d, name).ok_or(Failed::NoCustomer)
            }
        }
    }
}

/// `H_DATA`: both names.
fn history_data(warehouse: &[u8; 10], district: &[u8; 10]) -> [u8; SHORT] {
    let mut data = [b' '; SHORT];
    data[..10].copy_from_slice(warehouse);
    data[14..].copy_from_slice(district);
    data
}

/// Puts a text in front of `C_DATA`; what is too much at its end goes.
fn in_front(data: &mut [u8; C_DATA], text: &[u8]) {
    data.copy_within(..C_DATA - text.len(), text.len());
    data[..text.len()].copy_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_go_in_front() {
        let mut data = [b'x'; C_DATA];
        data[C_DATA - 1] = b'e';
        in_front(&mut data, b"12 3 ");
        assert!(data.starts_with(b"12 3 xxx") && !data.contains(&b'e'));
        assert_eq!(&history_data(b"warehouse1", b"district\0\0"), b"warehouse1    district\0\0");
    }
}
