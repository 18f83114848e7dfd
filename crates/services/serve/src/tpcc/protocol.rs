//! The protocol: a request is a line of words, an answer is a line.
//!
//! ```text
//!  neworder W D C ITEM:SUPPLIER:QUANTITY …      5 to 15 items
//!  payment W D CUSTOMER_W CUSTOMER_D WHO CENTS  WHO: a number, or a last name
//!  orderstatus W D WHO
//!  delivery W CARRIER
//!  stocklevel W D THRESHOLD
//!  check · stats · quit
//! ```
//!
//! Lines end with `\n` or `\r\n`. No number has a sign. What is out of bounds is refused, and the answer says what is wanted. An item that there is
//! not is no such thing: it is how a New-Order is rolled back.

use super::database::Scale;
use super::rows::{DISTRICTS, LINES};
use super::work::{Delivery, Line, NewOrder, OrderStatus, Payment, StockLevel, Who};

/// The longest line, with its end.
pub const LINE_MAX: usize = 1024;
/// Lines of an order at least.
const LINES_MIN: usize = 5;
/// `H_AMOUNT` at most: 5,000.00.
const CENTS_MAX: u64 = 500_000;
/// `OL_QUANTITY` at most.
const QUANTITY_MAX: u64 = 10;
/// `O_CARRIER_ID` at most.
const CARRIERS: u64 = 10;
/// The threshold of Stock-Level at most.
const THRESHOLD_MAX: u64 = 100;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "it is on the stack for a moment")]
pub enum Request {
    /// New-Order.
    NewOrder(NewOrder),
    /// Payment.
    Payment(Payment),
    /// Order-Status.
    OrderStatus(OrderStatus),
    /// Delivery.
    Delivery(Delivery),
    /// Stock-Level.
    StockLevel(StockLevel),
    /// The consistency conditions.
    Check,
    /// What happened.
    Stats,
    /// The end of the connection.
    Quit,
}

/// The words of a line, which are looked at one by one.
struct Words<'a> {
    rest: std::str::SplitAsciiWhitespace<'a>,
}

impl<'a> Words<'a> {
    fn word(&mut self, name: &str) -> Result<&'a str, String> {
        self.rest.next().ok_or_else(|| format!("{name} is missing"))
    }

    /// The next one, which is a number from 1 to `most`.
    fn number(&mut self, name: &str, most: u64) -> Result<u64, String> {
        number(name, self.word(name)?, most)
    }

    fn who(&mut self, scale: &Scale) -> Result<Who, String> {
        let word = self.word("customer")?;
        if word.starts_with(|first: char| first.is_ascii_digit()) {
            return Ok(Who::Id(number("customer", word, scale.customers)?));
        }
        let mut name = [0; 16];
        let fits = word.len() <= name.len() && word.bytes().all(|byte| byte.is_ascii_uppercase());
        if !fits {
            return Err(format!("customer {}: want a number from 1 to {}, or a last name", short(word), scale.customers));
        }
        name[..word.len()].copy_from_slice(word.as_bytes());
        Ok(Who::Name(name))
    }
}

/// A word from outside, as far as it is shown.
fn short(word: &str) -> String {
    let shown: String = word.chars().take(20).collect();
    format!("{shown:?}")
}

fn number(name: &str, word: &str, most: u64) -> Result<u64, String> {
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { word.parse().ok() } else { None };
    number.filter(|number| (1..=most).contains(number)).ok_or_else(|| format!("{name} {}: want 1 to {most}", short(word)))
}

fn line(word: &str, scale: &Scale) -> Result<Line, String> {
    let mut parts = word.split(':');
    let (Some(item), Some(supplier), Some(quantity), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(format!("{}: want ITEM:SUPPLIER:QUANTITY", short(word)));
    };
    Ok(Line {
        item: number("item", item, u64::from(u32::MAX))?,
        supplier: number("supplier", supplier, scale.warehouses)?,
        quantity: number("quantity", quantity, QUANTITY_MAX)?,
    })
}

/// Understands a line, without its end.
///
/// # Errors
/// What is wrong with it, and what is wanted.
pub fn parse(line_text: &[u8], scale: &Scale) -> Result<Request, String> {
    let text = std::str::from_utf8(line_text).map_err(|_| "the line is not text".to_owned())?;
    let mut words = Words { rest: text.split_ascii_whitespace() };
    let name = words.word("command")?;
    let warehouse = |words: &mut Words<'_>| words.number("warehouse", scale.warehouses);
    let district = |words: &mut Words<'_>| words.number("district", DISTRICTS);
    let request = match name {
        "neworder" => {
            let (w, d, c) = (warehouse(&mut words)?, district(&mut words)?, words.number("customer", scale.customers)?);
            let (mut lines, mut count) = ([Line::default(); LINES as usize], 0);
            for word in words.rest.by_ref() {
                *lines.get_mut(count).ok_or_else(|| format!("want {LINES_MIN} to {LINES} items: there are more"))? =
                    line(word, scale)?;
                count += 1;
            }
            if count < LINES_MIN {
                return Err(format!("want {LINES_MIN} to {LINES} items: there are {count}"));
            }
            Request::NewOrder(NewOrder { w, d, c, lines, count })
        }
        "payment" => {
            let (w, d) = (warehouse(&mut words)?, district(&mut words)?);
            let (c_w, c_d) = (warehouse(&mut words)?, district(&mut words)?);
            let who = words.who(scale)?;
            Request::Payment(Payment { w, d, c_w, c_d, who, amount: words.number("cents", CENTS_MAX)? as i64 })
        }
        "orderstatus" => {
            Request::OrderStatus(OrderStatus { w: warehouse(&mut words)?, d: district(&mut words)?, who: words.who(scale)? })
        }
        "delivery" => Request::Delivery(Delivery { w: warehouse(&mut words)?, carrier: words.number("carrier", CARRIERS)? }),
        "stocklevel" => {
            let (w, d) = (warehouse(&mut words)?, district(&mut words)?);
            Request::StockLevel(StockLevel { w, d, threshold: words.number("threshold", THRESHOLD_MAX)? })
        }
        "check" => Request::Check,
        "stats" => Request::Stats,
        "quit" => Request::Quit,
        other => {
            let all = "neworder, payment, orderstatus, delivery, stocklevel, check, stats, quit";
            return Err(format!("command {}: want one of {all}", short(other)));
        }
    };
    match words.rest.next() {
        None => Ok(request),
        Some(word) => Err(format!("{}: want the end of the line", short(word))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: Scale = Scale { warehouses: 3, customers: 3000, items: 100_000, orders: 5000 };

    fn error(text: &str) -> String {
        parse(text.as_bytes(), &SCALE).unwrap_err()
    }

    #[test]
    fn requests() {
        let parse = |text: &str| parse(text.as_bytes(), &SCALE).unwrap();
        let Request::NewOrder(order) = parse("neworder 3 10 3000 1:1:1 2:2:2 3:3:3 100001:1:10 5:1:5") else { panic!() };
        assert_eq!((order.w, order.d, order.c, order.count), (3, 10, 3000, 5));
        assert_eq!(order.lines[3], Line { item: 100_001, supplier: 1, quantity: 10 });
        let mut name = [0; 16];
        name[..9].copy_from_slice(b"BARBARBAR");
        let payment = Payment { w: 1, d: 2, c_w: 3, c_d: 4, who: Who::Name(name), amount: 500_000 };
        assert_eq!(parse("payment 1 2 3 4 BARBARBAR 500000"), Request::Payment(payment));
        assert_eq!(parse(" orderstatus  1 2 77 "), Request::OrderStatus(OrderStatus { w: 1, d: 2, who: Who::Id(77) }));
        assert_eq!(parse("delivery 2 10"), Request::Delivery(Delivery { w: 2, carrier: 10 }));
        assert_eq!(parse("stocklevel 2 9 20"), Request::StockLevel(StockLevel { w: 2, d: 9, threshold: 20 }));
        assert_eq!([parse("check"), parse("stats"), parse("quit")], [Request::Check, Request::Stats, Request::Quit]);
    }

    #[test]
    fn what_is_none_says_what_is_wanted() {
        let wrong = [
            ("", "command is missing"),
            ("NEWORDER 1 1 1", "command \"NEWORDER\": want one of neworder, "),
            ("neworder 4 1 1", "warehouse \"4\": want 1 to 3"),
            ("neworder 0 1 1", "warehouse \"0\": want 1 to 3"),
            ("neworder +1 1 1", "warehouse \"+1\""),
            ("neworder -1 1 1", "warehouse \"-1\""),
            ("neworder 99999999999999999999999 1 1", "want 1 to 3"),
            ("neworder 1 11 1", "district \"11\": want 1 to 10"),
            ("neworder 1 1 3001", "customer \"3001\": want 1 to 3000"),
            ("neworder 1 1 1 1:1:1 1:1:1 1:1:1 1:1:1", "want 5 to 15 items: there are 4"),
            ("neworder 1 1 1 1:1", "\"1:1\": want ITEM:SUPPLIER:QUANTITY"),
            ("neworder 1 1 1 1:1:1:1", "want ITEM:SUPPLIER:QUANTITY"),
            ("neworder 1 1 1 1:4:1", "supplier \"4\": want 1 to 3"),
            ("neworder 1 1 1 0:1:1", "item \"0\""),
            ("neworder 1 1 1 1:1:11", "quantity \"11\": want 1 to 10"),
            ("payment 1 1 1 1 1 500001", "cents \"500001\": want 1 to 500000"),
            ("payment 1 1 1 1 barbarbar 5", "customer \"barbarbar\": want a number from 1 to 3000, or a last name"),
            ("payment 1 1 1 1 BARBARBARBARBARBAR 5", "or a last name"),
            ("orderstatus 1 1", "customer is missing"),
            ("delivery 1 11", "carrier \"11\": want 1 to 10"),
            ("stocklevel 1 1 101", "threshold"),
            ("check now", "\"now\": want the end of the line"),
        ];
        for (text, says) in wrong {
            assert!(error(text).contains(says), "{text}: {}", error(text));
        }
        assert!(error(&format!("neworder 1 1 1{}", " 1:1:1".repeat(16))).contains("there are more"));
        assert_eq!(parse(b"\xff\xfe", &SCALE).unwrap_err(), "the line is not text");
    }
}
