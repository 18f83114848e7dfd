//! Connections and datagrams: requests to answers.
//!
//! An answer begins with `OK`, `ROLLBACK` (a New-Order with an item that there is not), `BROKEN` (of `check`) or `ERROR`. Requests of a connection are
//! answered in order; a connection has two buffers of [`BUFFER`] bytes on its stack, and gathers as many bytes of answers in a third one. Nothing more is
//! read before the answers are sent.
//!
//! A datagram is 8 bytes that the client chooses and a line; its answer is those 8 bytes and a line. Its sender may be forged: what is no request has no
//! answer, and `check`, `stats` and `quit` are none there. A request whose answer may be longer than `--max-udp-answer` is refused before anything is done.

use std::fmt::Write;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use farshore_uthread::net::Datagram;

use super::check::{CONDITIONS, check};
use super::database::{Database, Failed};
use super::protocol::{LINE_MAX, Request, parse};
use super::rows::{LINES, text};
use super::stats::{Count, NAMES};
use super::work::{self, NewOrder, Placed, Status};
use crate::service::{BUFFER, Connections, NUMBER, Service, Stream};

/// What of an answer's place is left at least before the answers are sent.
const ANSWER_MAX: usize = 4096;

/// The service.
#[derive(Debug)]
pub struct Server {
    database: Database,
    connections: Connections,
    /// Somebody looks at the conditions.
    checks: AtomicBool,
    /// The longest answer to a datagram, without its number.
    max_udp_answer: usize,
}

impl Server {
    /// Around this database, with answers to datagrams that have at most so many bytes.
    pub fn new(database: Database, max_udp_answer: usize) -> Server {
        Server { database, connections: Connections::default(), checks: AtomicBool::new(false), max_udp_answer }
    }

    /// The answer to a datagram, if it is one.
    fn told(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        let (number, line) = datagram.split_first_chunk::<NUMBER>()?;
        let request = parse(line.strip_suffix(b"\n").unwrap_or(line), &self.database.scale).ok()?;
        let mut answer = String::new();
        if longest(&request)? <= self.max_udp_answer {
            self.answer(&request, &mut answer);
        } else {
            self.database.counters.add(Count::Refused);
            answer.push_str("ERROR the answer is too long for UDP: ask by TCP");
        }
        answer.push_str("\r\n");
        Some([number, answer.as_bytes()].concat())
    }

    /// Appends the answer to a request. Whether the connection goes on: it does not where the server is told to end.
    fn answer(&self, request: &Request, to: &mut String) -> bool {
        let database = &self.database;
        let done = match request {
            Request::NewOrder(order) => work::neworder(database, order).map(|placed| match placed {
                Some(placed) => of_order(order, &placed, to),
                None => to.push_str("ROLLBACK item number is not valid"),
            }),
            Request::Payment(payment) => work::payment(database, payment).map(|paid| {
                let credit = ascii(&paid.credit);
                put(to, format_args!("OK {} {} {credit} {}", paid.c, paid.balance, paid.discount));
            }),
            Request::OrderStatus(asked) => work::order_status(database, asked).map(|status| of_status(&status, to)),
            Request::Delivery(delivery) => work::delivery(database, delivery).map(|delivered| {
                to.push_str("OK");
                delivered.iter().for_each(|order| put(to, format_args!(" {order}")));
            }),
            Request::StockLevel(asked) => work::stock_level(database, asked).map(|low| put(to, format_args!("OK {low}"))),
            Request::Check => self.check(to),
            Request::Stats => {
                self.stats(to);
                Ok(())
            }
            Request::Quit => Ok(()),
        };
        if let Err(failed) = done {
            database.counters.add(Count::Refused);
            to.push_str("ERROR ");
            to.push_str(match failed {
                Failed::Stopped => "the server is told to end",
                Failed::Full => "there is no room for more orders or payments: start it with more --orders",
                Failed::NoItem => "there is no such item",
                Failed::NoCustomer => "there is no customer with this last name",
                Failed::Broken => "the database contradicts itself: ask for check",
            });
        }
        done != Err(Failed::Stopped)
    }

    fn check(&self, to: &mut String) -> Result<(), Failed> {
        if self.checks.swap(true, SeqCst) {
            to.push_str("ERROR a check is under way: ask again when it is done");
            return Ok(());
        }
        let report = check(&self.database);
        self.checks.store(false, SeqCst);
        let report = report?;
        let mut broken = report.broken().peekable();
        if broken.peek().is_none() {
            put(to, format_args!("OK {CONDITIONS} conditions hold, {} rows", report.rows));
            return Ok(());
        }
        to.push_str("BROKEN");
        broken.for_each(|(condition, what)| put(to, format_args!(" condition {condition}: {what};")));
        Ok(())
    }

    fn stats(&self, to: &mut String) {
        put(to, format_args!("OK warehouses={}", self.database.scale.warehouses));
        for (count, name) in NAMES {
            put(to, format_args!(" {name}={}", self.database.counters.get(*count)));
        }
        put(to, format_args!(" locked={}", self.database.found_locked()));
    }

    /// Answers whole lines of what has come. How many bytes are used up, and whether the connection goes on.
    fn feed(
        &self,
        input: &[u8],
        answers: &mut String,
        flush: &mut impl FnMut(&mut String) -> io::Result<()>,
    ) -> io::Result<(usize, bool)> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let end = rest.iter().take(LINE_MAX).position(|byte| *byte == b'\n');
            let Some(end) = end else {
                if rest.len() < LINE_MAX {
                    return Ok((used, true));
                }
                put(answers, format_args!("ERROR the line is longer than {LINE_MAX} bytes\r\n"));
                return Ok((used, false));
            };
            used += end + 1;
            let (mut is_check, mut goes_on) = (false, true);
            match parse(&rest[..end], &self.database.scale) {
                Ok(Request::Quit) => return Ok((used, false)),
                Ok(request) => {
                    is_check = request == Request::Check;
                    goes_on = self.answer(&request, answers);
                }
                Err(wrong) => {
                    self.database.counters.add(Count::Refused);
                    put(answers, format_args!("ERROR {wrong}"));
                }
            }
            answers.push_str("\r\n");
            if !goes_on {
                return Ok((used, false));
            }
            // A check takes long: between two of them a client that has gone is noticed.
            if is_check || answers.len() > BUFFER - ANSWER_MAX {
                flush(answers)?;
            }
        }
    }
}

/// Bytes that the answer to a request may have, by UDP. `None`: there it is no request.
fn longest(request: &Request) -> Option<usize> {
    // An error has no more, nor has an answer without lines.
    const NO_LINES: usize = 128;
    match request {
        Request::NewOrder(order) => Some(NO_LINES + 32 * order.count),
        Request::OrderStatus(_) => Some(NO_LINES + 48 * LINES as usize),
        Request::Payment(_) | Request::Delivery(_) | Request::StockLevel(_) => Some(NO_LINES),
        Request::Check | Request::Stats | Request::Quit => None,
    }
}

/// Writes to memory, which takes anything.
fn put(to: &mut String, what: std::fmt::Arguments<'_>) {
    let _ = to.write_fmt(what);
}

fn ascii(field: &[u8]) -> &str {
    std::str::from_utf8(text(field)).unwrap_or("?")
}

/// `OK O_ID TOTAL DISCOUNT W_TAX D_TAX CREDIT LAST STOCK:PRICE:AMOUNT:B|G …`
fn of_order(order: &NewOrder, placed: &Placed, to: &mut String) {
    let Placed { o, total, discount, w_tax, d_tax, credit, last, .. } = placed;
    put(to, format_args!("OK {o} {total} {discount} {w_tax} {d_tax} {} {}", ascii(credit), ascii(last)));
    for line in &placed.lines[..order.count] {
        let brand = if line.brand { 'B' } else { 'G' };
        put(to, format_args!(" {}:{}:{}:{brand}", line.stock, line.price, line.amount));
    }
}

/// `OK C_ID BALANCE O_ID ENTRY_D CARRIER ITEM:SUPPLIER:QUANTITY:AMOUNT:DELIVERY_D …`
fn of_status(status: &Status, to: &mut String) {
    let Status { c, balance, o, entry_d, carrier, lines } = status;
    put(to, format_args!("OK {c} {balance} {o} {entry_d} {carrier}"));
    for line in lines.iter().flatten() {
        put(to, format_args!(" {}:{}:{}:{}:{}", line.i_id, line.supply_w_id, line.quantity, line.amount, line.delivery_d));
    }
}

impl Service for Server {
    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn connection(&self, stream: &Stream) -> io::Result<()> {
        let mut input = [0; BUFFER];
        let mut output = [0; BUFFER];
        let mut answers = String::with_capacity(BUFFER);
        // What the kernel reads from lies on the stack, which is near.
        let mut flush = |answers: &mut String| {
            for piece in answers.as_bytes().chunks(BUFFER) {
                output[..piece.len()].copy_from_slice(piece);
                stream.write_all(&output[..piece.len()])?;
            }
            answers.clear();
            Ok(())
        };
        let mut have = 0;
        loop {
            let (used, goes_on) = self.feed(&input[..have], &mut answers, &mut flush)?;
            flush(&mut answers)?;
            if !goes_on {
                return Ok(());
            }
            input.copy_within(used..have, 0);
            have -= used;
            let read = stream.read(&mut input[have..])?;
            if read == 0 {
                return Ok(());
            }
            have += read;
        }
    }

    fn datagram(&self, mut datagram: Datagram<'_>) {
        let Some(told) = self.told(datagram.bytes()) else { return datagram.malformed() };
        // The longest answer fits there.
        let Some(place) = datagram.buffer().get_mut(..told.len()) else { return datagram.malformed() };
        place.copy_from_slice(&told);
        datagram.reply(told.len());
    }

    fn too_many(&self) -> &'static [u8] {
        b"ERROR too many connections\r\n"
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use farshore_uthread::{Config, Runtime, sleep};

    use super::*;
    use crate::tpcc::database::Scale;
    use crate::tpcc::populate::populate;

    const SCALE: Scale = Scale { warehouses: 1, customers: 60, items: 200, orders: 3000 };

    fn server() -> Server {
        Server::new(populate(SCALE, 7).unwrap(), 1392)
    }

    #[test]
    fn answers_to_datagrams_have_a_limit() {
        let mut server = server();
        let text = |told: Option<Vec<u8>>| String::from_utf8(told.unwrap()).unwrap();
        let requests =
            ["orderstatus 1 1 1", "neworder 1 1 1 1:1:9 2:1:9 3:1:9 4:1:9 5:1:9", "payment 1 1 1 1 1 500000", "delivery 1 3"];
        for (at, request) in requests.iter().enumerate() {
            let datagram = format!("{at:08}{request}\r\n");
            server.max_udp_answer = 1392;
            let told = text(server.told(datagram.as_bytes()));
            assert!(told.starts_with(&format!("{at:08}OK ")), "{told}");
            let most = longest(&parse(request.as_bytes(), &SCALE).unwrap()).unwrap();
            assert!(told.len() <= NUMBER + most, "{} of {most}: {told}", told.len());
            let orders = server.database.counters.get(Count::NewOrders);
            server.max_udp_answer = 150;
            let told = text(server.told(datagram.as_bytes()));
            let long = "ERROR the answer is too long for UDP: ask by TCP\r\n";
            assert_eq!(told == format!("{at:08}{long}"), at < 2, "{told}");
            assert_eq!(server.database.counters.get(Count::NewOrders), orders, "it was not done");
        }
        for none in ["", "1234567", "12345678", "12345678hello", "12345678check", "12345678stats", "12345678quit\n"] {
            assert_eq!(server.told(none.as_bytes()), None, "{none}");
        }
    }

    /// What the longest possible fields come to.
    #[test]
    fn no_answer_is_longer_than_is_said() {
        use crate::tpcc::rows::OrderLine;
        use crate::tpcc::work::{Line, OrderStatus, Ordered, Who};
        let line = OrderLine {
            i_id: 100_000,
            supply_w_id: 10_000,
            delivery_d: 9_999_999_999,
            quantity: 10,
            amount: 9_999_999,
            dist_info: [0; 24],
        };
        let (o, lines) = (1 << 24, [Some(line); LINES as usize]);
        let status = Status { c: 3000, balance: i64::MIN, o, entry_d: 9_999_999_999, carrier: 10, lines };
        let mut answer = String::new();
        of_status(&status, &mut answer);
        let asked = Request::OrderStatus(OrderStatus { w: 1, d: 1, who: Who::Id(1) });
        assert!(answer.len() + 2 <= longest(&asked).unwrap(), "{answer}");
        let order = NewOrder { w: 1, d: 1, c: 1, lines: [Line::default(); LINES as usize], count: LINES as usize };
        let lines = [Ordered { price: 10_000, amount: 100_000, stock: 100, brand: true }; LINES as usize];
        let (discount, tax, total) = (5000, 2000, u64::MAX);
        let placed = Placed { o, discount, w_tax: tax, d_tax: tax, credit: *b"BC", last: [b'X'; 16], total, lines };
        answer.clear();
        of_order(&order, &placed, &mut answer);
        assert!(answer.len() + 2 <= longest(&Request::NewOrder(order)).unwrap(), "{answer}");
    }

    #[test]
    fn a_server_that_is_told_to_end_does_no_second_check() {
        let runtime = Runtime::start(Config { workers: 1, pin: false, stack_bytes: 256 << 10, ..Config::default() }).unwrap();
        let (server, (tell, hear)) = (server(), std::sync::mpsc::channel());
        let (begins, begun) = std::sync::mpsc::channel();
        let connection = move || {
            begins.send(()).unwrap();
            while sleep(Duration::from_secs(1)).is_ok() {}
            let mut answers = String::new();
            let fed = server.feed(&b"check\n".repeat(3), &mut answers, &mut |_| Ok(())).unwrap();
            tell.send((fed, answers)).unwrap();
        };
        drop(runtime.spawn(connection).unwrap());
        begun.recv().unwrap();
        runtime.shutdown_within(Duration::from_secs(100)).unwrap();
        let ((used, goes_on), answers) = hear.recv().unwrap();
        assert_eq!((used, goes_on, &*answers), (6, false, "ERROR the server is told to end\r\n"));
    }

    #[test]
    fn a_client_that_has_gone_gets_no_second_check() {
        let (server, mut sent) = (server(), Vec::new());
        let gone = |answers: &mut String| {
            sent.push(std::mem::take(answers));
            Err(io::ErrorKind::BrokenPipe.into())
        };
        let fed = server.feed(&b"check\n".repeat(3), &mut String::new(), &mut { gone });
        assert_eq!(fed.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(sent.len() == 1 && sent[0].matches("OK ").count() == 1, "{sent:?}");
    }
}
