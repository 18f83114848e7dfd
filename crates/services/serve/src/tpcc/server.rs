//! Connections and datagrams: requests to answers.
//!
//! An answer begins with `OK`, `ROLLBACK` (a New-Order with an item that there is not), `BROKEN` (of `check`) or `ERROR`. Requests of a connection are
//! answered in order; a connection has two buffers of [`BUFFER`] bytes on its stack, and gathers as many bytes of answers in a third one. Nothing more is
//! read before the answers are sent.
//!
//! A datagram is 8 bytes that the client chooses and a line; its answer is those 8 bytes and a line. Its sender may be forged: what is no request has no
//! answer, and `check`, `stats` and `quit` are none there.

use std::fmt::Write;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use farshore_uthread::net::Datagram;

use super::check::{CONDITIONS, check};
use super::database::{Database, Failed};
use super::protocol::{LINE_MAX, Request, parse};
use super::rows::text;
use super::stats::{Count, NAMES};
use super::work::{self, NewOrder, Placed, Status};
use crate::service::{BUFFER, Connections, Service, Stream};

/// Bytes of the number that a datagram begins with.
const NUMBER: usize = 8;
/// What of an answer's place is left at least before the answers are sent.
const ANSWER_MAX: usize = 4096;

/// The service.
#[derive(Debug)]
pub struct Server {
    database: Database,
    connections: Connections,
    /// Somebody looks at the conditions.
    checks: AtomicBool,
}

impl Server {
    /// Around this database.
    pub fn new(database: Database) -> Server {
        Server { database, connections: Connections::default(), checks: AtomicBool::new(false) }
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
        let Some((number, line)) = datagram.bytes().split_first_chunk::<NUMBER>() else { return datagram.malformed() };
        let number = *number;
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let request = match parse(line, &self.database.scale) {
            Ok(request) if !matches!(request, Request::Check | Request::Stats | Request::Quit) => request,
            _ => return datagram.malformed(),
        };
        let mut answer = String::new();
        self.answer(&request, &mut answer);
        answer.push_str("\r\n");
        // The longest answers have a part for each of 15 lines of an order, of some 60 bytes at most: they fit.
        let told = [&number[..], answer.as_bytes()].concat();
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
        Server::new(populate(SCALE, 7).unwrap())
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
