//! `tpcc`: the transactions of TPC-C as lines, with the terminals' numbers by clauses 2.4.1 to 2.8.1 of the specification.
//!
//! A request follows from its operation, its warehouse (the key) and its number among all (the version), so that an answer can be set against it: a
//! New-Order must be rolled back if and only if its last item is one that there is not; each line's amount is its price times what was ordered; the total
//! follows from these, the discount and the taxes; and an item has one price, always.
//!
//! Over UDP each datagram begins with the request's number, 8 bytes, little-endian.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::generator::protocol::{Checked, Header, Id, Protocol, Request};
use crate::open::args::Open;
use crate::open::target::Transport;
use crate::work::scatter::mix2;

/// The operations.
pub const OPS: &[&str] = &["neworder", "payment", "orderstatus", "delivery", "stocklevel"];
/// Their shares, if nothing else is said: those of clause 5.2.3, with as many New-Orders as they leave.
pub const MIX: [f64; 5] = [45.0, 43.0, 4.0, 4.0, 4.0];
const NEWORDER: u8 = 0;
const PAYMENT: u8 = 1;
const ORDERSTATUS: u8 = 2;
const DELIVERY: u8 = 3;

/// What a server has at most.
const WAREHOUSES_MAX: u64 = 10_000;
const DISTRICTS: u64 = 10;
const CUSTOMERS: u64 = 3000;
const ITEMS: u64 = 100_000;
/// An item that there is not.
const NO_ITEM: u64 = ITEMS + 1;
/// The constants C of `NURand`. That of last names differs by 66 from the data's, as clause 2.1.6.1 wants.
const C_LAST: u64 = 223;
const C_CUSTOMER: u64 = 259;
const C_ITEM: u64 = 7911;
const SYLLABLES: [&str; 10] = ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
/// A line is not longer.
const LINE_MAX: usize = 4096;
const NUMBER: usize = 8;

/// What is asked for, and what is known of the answers.
#[derive(Debug)]
pub struct Tpcc {
    warehouses: u64,
    seed: u64,
    transport: Transport,
    /// How many requests there were.
    asked: AtomicU32,
    /// Prices of items that were seen; 0: none yet.
    prices: Vec<AtomicU32>,
}

/// A line of a New-Order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line {
    item: u64,
    supplier: u64,
    quantity: u64,
}

/// Numbers of a terminal.
struct Terminal(Xoshiro256PlusPlus);

impl Terminal {
    fn number(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high)
    }

    /// Not uniform: clause 2.1.6.
    fn uneven(&mut self, a: u64, c: u64, low: u64, high: u64) -> u64 {
        ((self.number(0, a) | self.number(low, high)) + c) % (high - low + 1) + low
    }

    fn customer(&mut self) -> u64 {
        self.uneven(1023, C_CUSTOMER, 1, CUSTOMERS)
    }

    /// A customer, 60 of 100 times by last name.
    fn who(&mut self) -> String {
        if self.number(1, 100) > 60 {
            return self.customer().to_string();
        }
        let name = self.uneven(255, C_LAST, 0, 999);
        [name / 100, name / 10, name].map(|digit| SYLLABLES[usize::try_from(digit % 10).unwrap_or(0)]).concat()
    }

    /// Another warehouse, if there is one.
    fn other(&mut self, own: u64, warehouses: u64) -> u64 {
        if warehouses == 1 {
            return own;
        }
        let other = self.number(1, warehouses - 1);
        if other < own { other } else { other + 1 }
    }

    fn lines(&mut self, own: u64, warehouses: u64) -> Vec<Line> {
        let count = self.number(5, 15);
        let mut lines: Vec<Line> = (0..count)
            .map(|_| {
                let item = self.uneven(8191, C_ITEM, 1, ITEMS);
                let supplier = if self.number(1, 100) == 1 { self.other(own, warehouses) } else { own };
                Line { item, supplier, quantity: self.number(1, 10) }
            })
            .collect();
        if self.number(1, 100) == 1 {
            lines.last_mut().into_iter().for_each(|line| line.item = NO_ITEM);
        }
        lines
    }
}

impl Tpcc {
    /// As the options say.
    ///
    /// # Errors
    /// If they do not go together.
    pub fn new(args: &Open) -> Result<Self, String> {
        let warehouses = args.items;
        if warehouses > WAREHOUSES_MAX {
            return Err(format!("--items {warehouses}: for tpcc it is the number of warehouses: give as many as the server has"));
        }
        let prices = (0..=ITEMS).map(|_| AtomicU32::new(0)).collect();
        Ok(Tpcc { warehouses, seed: args.seed, transport: args.target.transport, asked: AtomicU32::new(0), prices })
    }

    fn terminal(&self, request: &Request) -> Terminal {
        let seed = mix2(mix2(self.seed, u64::from(request.op)), u64::from(request.version));
        Terminal(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    fn warehouse(request: &Request) -> u64 {
        request.key + 1
    }

    /// District, customer and lines of a New-Order.
    fn order(&self, request: &Request) -> (u64, u64, Vec<Line>) {
        let mut terminal = self.terminal(request);
        let (district, customer) = (terminal.number(1, DISTRICTS), terminal.customer());
        (district, customer, terminal.lines(Self::warehouse(request), self.warehouses))
    }

    fn text(&self, request: &Request) -> String {
        let w = Self::warehouse(request);
        let mut terminal = self.terminal(request);
        match request.op {
            NEWORDER => {
                let (d, c, lines) = self.order(request);
                let lines = lines.iter().map(|Line { item, supplier, quantity }| format!(" {item}:{supplier}:{quantity}"));
                format!("neworder {w} {d} {c}{}", lines.collect::<String>())
            }
            PAYMENT => {
                let d = terminal.number(1, DISTRICTS);
                let remote = terminal.number(1, 100) > 85 && self.warehouses > 1;
                let (c_w, c_d) =
                    if remote { (terminal.other(w, self.warehouses), terminal.number(1, DISTRICTS)) } else { (w, d) };
                let who = terminal.who();
                format!("payment {w} {d} {c_w} {c_d} {who} {}", terminal.number(100, 500_000))
            }
            ORDERSTATUS => format!("orderstatus {w} {} {}", terminal.number(1, DISTRICTS), terminal.who()),
            DELIVERY => format!("delivery {w} {}", terminal.number(1, 10)),
            _ => format!("stocklevel {w} {} {}", terminal.number(1, DISTRICTS), terminal.number(10, 20)),
        }
    }

    /// What is wrong with an answer, if something is.
    fn answer(&self, request: &Request, text: &str) -> Result<(), (&'static str, String)> {
        let lines = if request.op == NEWORDER { self.order(request).2 } else { Vec::new() };
        let unknown = lines.last().is_some_and(|line| line.item == NO_ITEM);
        if text.starts_with("ROLLBACK") && unknown {
            return Ok(());
        }
        let Some(words) = text.strip_prefix("OK ") else { return Err(("requests refused", String::new())) };
        if unknown {
            return Err(("orders not rolled back", String::new()));
        }
        let words: Vec<&str> = words.split(' ').collect();
        let numbers = |word: &str| word.split(':').map(|part| part.parse().ok()).collect::<Option<Vec<i64>>>();
        let counts = match request.op {
            NEWORDER => return self.ordered(&lines, &words).map_err(|what| ("wrong orders", what)),
            PAYMENT => words.len() == 4 && words[0].parse::<u64>().is_ok() && words[1].parse::<i64>().is_ok(),
            ORDERSTATUS => {
                let shown: Option<Vec<Vec<i64>>> = words.iter().map(|word| numbers(word)).collect();
                let Some(shown) = shown.filter(|shown| (10..=20).contains(&shown.len())) else {
                    return Err(("wrong orders", String::new()));
                };
                // Delivered as a whole, or not at all.
                let carrier = shown[4][0] != 0;
                shown[5..].iter().all(|line| line.len() == 5 && (line[4] != 0) == carrier)
            }
            DELIVERY => words.len() == 10 && words.iter().all(|word| word.parse::<u64>().is_ok()),
            _ => words.len() == 1 && words[0].parse::<u64>().is_ok_and(|low| low <= 300),
        };
        if counts { Ok(()) } else { Err(("wrong answers", String::new())) }
    }

    /// What is wrong with an order that was placed.
    fn ordered(&self, lines: &[Line], words: &[&str]) -> Result<(), String> {
        let wrong = || "it has not the form".to_owned();
        let (head, shown) = words.split_at_checked(7).ok_or_else(wrong)?;
        let head: Vec<u64> = head[..5].iter().map(|word| word.parse().ok()).collect::<Option<_>>().ok_or_else(wrong)?;
        if shown.len() != lines.len() {
            return Err(format!("{} lines, not {}", shown.len(), lines.len()));
        }
        let mut sum = 0;
        for (line, shown) in lines.iter().zip(shown) {
            let parts: Vec<&str> = shown.split(':').collect();
            let [_, price, amount, "B" | "G"] = parts[..] else { return Err(wrong()) };
            let (price, amount): (u32, u64) = (price.parse().map_err(|_| wrong())?, amount.parse().map_err(|_| wrong())?);
            if amount != u64::from(price) * line.quantity || price == 0 {
                return Err(format!("{} of {price} come to {amount}", line.quantity));
            }
            sum += amount;
            let known = &self.prices[usize::try_from(line.item).unwrap_or(0)];
            if let Err(before) = known.compare_exchange(0, price, Relaxed, Relaxed)
                && before != price
            {
                return Err(format!("item {} costs {price}, and has cost {before}", line.item));
            }
        }
        let [_, total, discount, w_tax, d_tax] = head[..] else { return Err(wrong()) };
        let factor = u128::from(10_000_u64.saturating_sub(discount)) * u128::from(10_000 + w_tax.saturating_add(d_tax));
        let wanted = u128::from(sum) * factor / 100_000_000;
        if u128::from(total) == wanted { Ok(()) } else { Err(format!("the total is {total}, not {wanted}")) }
    }
}

impl Protocol for Tpcc {
    fn request(&self, op: u8, key: u64) -> Request {
        Request { op, key, version: self.asked.fetch_add(1, Relaxed) }
    }

    fn write(&self, number: u64, request: &Request, to: &mut Vec<u8>) {
        if self.transport == Transport::Udp {
            to.extend_from_slice(&number.to_le_bytes());
        }
        to.extend_from_slice(self.text(request).as_bytes());
        to.extend_from_slice(b"\r\n");
    }

    fn check(&self, _: u64, request: &Request, bytes: &[u8]) -> Result<Option<(usize, Checked)>, String> {
        let Some(end) = bytes.iter().take(LINE_MAX).position(|byte| *byte == b'\n') else {
            return if bytes.len() < LINE_MAX { Ok(None) } else { Err("a line without an end".into()) };
        };
        let text = std::str::from_utf8(&bytes[..end]).map_err(|_| "what is no text".to_owned())?.trim_end();
        let checked = match self.answer(request, text) {
            Ok(()) => Checked::Right,
            Err((kind, what)) => {
                let shown: String = text.chars().take(200).collect();
                Checked::Wrong(kind, format!("{}: {shown:?} {what}", self.text(request)))
            }
        };
        Ok(Some((end + 1, checked)))
    }

    fn header(&self, datagram: &[u8]) -> Option<Header> {
        let number = u64::from_le_bytes(*datagram.first_chunk()?);
        Some(Header { id: Id::Whole(number), part: 0, parts: 1, bytes: NUMBER })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tpcc(warehouses: u64) -> Tpcc {
        let prices = (0..=ITEMS).map(|_| AtomicU32::new(0)).collect();
        Tpcc { warehouses, seed: 1, transport: Transport::Tcp, asked: AtomicU32::new(0), prices }
    }

    fn kind(tpcc: &Tpcc, request: &Request, text: &str) -> &'static str {
        match tpcc.check(0, request, text.as_bytes()) {
            Ok(Some((_, Checked::Wrong(kind, _)))) => kind,
            Ok(Some((used, Checked::Right))) if used == text.len() => "right",
            Ok(None) => "not whole",
            _ => "garbage",
        }
    }

    #[test]
    fn requests_are_as_the_specification_has_them() {
        let tpcc = tpcc(5);
        let (mut unknown, mut remote, mut named, mut elsewhere) = (0, 0, 0, 0);
        for number in 0..20_000 {
            let order = tpcc.request(NEWORDER, number % 5);
            let (d, c, lines) = tpcc.order(&order);
            assert_eq!(tpcc.order(&order), (d, c, lines.clone()), "the same each time");
            assert!((1..=10).contains(&d) && (1..=3000).contains(&c) && (5..=15).contains(&lines.len()));
            unknown += u32::from(lines.iter().any(|line| line.item == NO_ITEM));
            remote += lines.iter().filter(|line| line.supplier != number % 5 + 1).count();
            assert!(lines.iter().all(|line| (1..=5).contains(&line.supplier) && (1..=10).contains(&line.quantity)));
            let payment = tpcc.text(&tpcc.request(PAYMENT, number % 5));
            let words: Vec<&str> = payment.split(' ').collect();
            named += u32::from(words[5].starts_with(|first: char| first.is_ascii_uppercase()));
            elsewhere += u32::from(words[1] != words[3]);
        }
        assert!((120..290).contains(&unknown), "{unknown} of 20000 are rolled back, not 1 %");
        assert!((1700..2300).contains(&remote), "{remote} of 200000 lines are from elsewhere, not 1 %");
        assert!((11_500..12_500).contains(&named), "{named} of 20000 customers by name, not 60 %");
        assert!((2700..3300).contains(&elsewhere), "{elsewhere} of 20000 payments from elsewhere, not 15 %");
    }

    #[test]
    fn orders_are_right_as_a_whole() {
        let tpcc = tpcc(1);
        let order =
            (0..).map(|_| tpcc.request(NEWORDER, 0)).find(|order| tpcc.order(order).2[0].quantity > 1).unwrap_or_default();
        let (_, _, lines) = tpcc.order(&order);
        let answer = |price: u64, total: u64| {
            let lines = lines.iter().map(|line| format!(" 20:{price}:{}:G", price * line.quantity)).collect::<String>();
            format!("OK 3001 {total} 1000 500 1000 GC BARBARBAR{lines}\r\n")
        };
        let sum: u64 = lines.iter().map(|line| line.quantity * 200).sum();
        let total = sum * 9000 * 11_500 / 100_000_000;
        let right = answer(200, total);
        assert_eq!(kind(&tpcc, &order, &right), "right");
        assert_eq!(kind(&tpcc, &order, &right[..right.len() - 1]), "not whole");
        for wrong in [
            answer(200, total + 1),
            answer(300, total * 3 / 2),
            right.replacen("20:200:", "20:201:", 1),
            right.replacen(" GC", "", 1),
            right.replacen(":G", ":X", 1),
            right.replace("\r\n", " 1:1:1:G\r\n"),
        ] {
            assert_eq!(kind(&tpcc, &order, &wrong), "wrong orders", "{wrong}");
        }
        assert_eq!(kind(&tpcc, &order, "ROLLBACK\r\n"), "requests refused");
        let unknown =
            (0..).map(|_| tpcc.request(NEWORDER, 0)).find(|order| tpcc.order(order).2.iter().any(|line| line.item == NO_ITEM));
        let unknown = unknown.unwrap_or_default();
        assert_eq!(kind(&tpcc, &unknown, "ROLLBACK item\r\n"), "right");
        assert_eq!(kind(&tpcc, &unknown, &right), "orders not rolled back");
    }

    #[test]
    fn other_answers() {
        let tpcc = tpcc(1);
        let kind = |op, text: &str| kind(&tpcc, &tpcc.request(op, 0), text);
        assert_eq!(kind(PAYMENT, "OK 5 -1200 GC 77\r\n"), "right");
        assert_eq!(kind(PAYMENT, "OK 5\r\n"), "wrong answers");
        assert_eq!(kind(PAYMENT, "ERROR no\r\n"), "requests refused");
        let status = |carrier, at| format!("OK 5 -1000 77 1 {carrier}{}\r\n", format!(" 1:1:5:100:{at}").repeat(5));
        assert_eq!([kind(ORDERSTATUS, &status(3, 9)), kind(ORDERSTATUS, &status(0, 0))], ["right"; 2]);
        assert_eq!([kind(ORDERSTATUS, &status(0, 9)), kind(ORDERSTATUS, &status(3, 0))], ["wrong answers"; 2]);
        assert_eq!(kind(ORDERSTATUS, "OK 5 -1000 0 0 0\r\n"), "wrong orders");
        assert_eq!(kind(DELIVERY, "OK 1 2 3 4 5 6 7 8 9 0\r\n"), "right");
        assert_eq!(kind(DELIVERY, "OK 1 2 3 4 5 6 7 8 9\r\n"), "wrong answers");
        assert_eq!([kind(4, "OK 300\r\n"), kind(4, "OK 301\r\n")], ["right", "wrong answers"]);
        assert_eq!([kind(4, &"x".repeat(5000)), kind(4, "\u{fffd}")], ["garbage", "not whole"]);
    }
}
