//! Requests that their owner may leave, and waiting for the first of two.
//!
//! The thread takes the role of the receiver on each of the lines where nobody has it, and waits in the kernel for bytes on all of these at once. Where somebody else
//! receives, only that thread knows what comes. A thread can sleep in the kernel for sockets or on a word, and not on both. So it looks again after a time that grows
//! with what it has waited: what it loses by that is a small part of it.

use super::{ASLEEP, End, FILLING, FILLING_NS, FREE, HALF, LOOK_NS, LOST, Line, Receiver, Request, WAITING};
use crate::sleep;
use crate::socket::{ready, receive_now};
use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use farshore_core::sync::Futex;
use farshore_sys::futex::KernelFutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

/// Requests that are waited for at a time.
const MOST: usize = 2;
/// Between two looks at what other threads receive, in ns: this part of the time that was waited, and not less than, and not more.
const PART: u64 = 8;
const LOOK_LEAST_NS: u64 = 50_000;
const LOOK_MOST_NS: u64 = 2_000_000;
/// A thread that waits for bytes looks around after so long, in ns.
const TICK_NS: u64 = 1_000_000_000;

/// A request that was made. It is withdrawn when this goes away, unless it has ended: from then on the buffer is the caller's alone, whenever the answer comes. (It
/// is never forgotten: its place would stay taken, and the buffer the receiver's.)
#[derive(Debug)]
pub(crate) struct Asked<'l, 'b> {
    pub(super) line: &'l Line,
    pub(super) request: &'l Request,
    /// It was handed to the kernel.
    pub(super) sent: bool,
    pub(super) buffer: PhantomData<&'b mut [u8]>,
}

impl Asked<'_, '_> {
    /// Whether the server can have it.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent
    }

    /// How it has ended, if it has.
    pub(crate) fn ended(&self) -> Option<End> {
        self.request.ended()
    }

    /// Waits for its end, as long as for any other.
    pub(crate) fn wait(&self) -> End {
        match self.line.wait(self.request, self.sent) {
            End::Lost if !self.sent => End::Unsent,
            end => end,
        }
    }

    /// Its connection is given up: whoever receives next finds its end.
    pub(crate) fn give_up(&self) {
        if let Some(socket) = self.line.socket() {
            let _ = shutdown(socket, Shutdown::Both);
        }
    }

    /// It was withdrawn before its answer began.
    fn note_silence(&self) {
        let (line, now) = (self.line, sleep::now_ns());
        let since = line.silent_ns.load(Ordering::Relaxed);
        if since == 0 {
            let _ = line.silent_ns.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        } else if now.saturating_sub(since) >= line.waits.silence_ns()
            // It may have come, and nobody has taken it.
            && line.socket().is_some_and(|socket| ready(socket, PollFlags::IN, 0) == Err(Errno::TIMEDOUT))
        {
            self.give_up();
        }
    }
}

impl Drop for Asked<'_, '_> {
    fn drop(&mut self) {
        let state = &self.request.state;
        loop {
            match state.load(Ordering::Acquire) {
                // AcqRel: what the receiver wrote to the buffer comes before all that we do with it, and it looks at the state before it writes more.
                now @ (WAITING | ASLEEP | HALF) => {
                    if state.compare_exchange(now, LOST, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                        // It may be the one that was told to receive, just now: the next one is told.
                        drop(self.line.take_role());
                        if now != HALF && self.sent {
                            self.note_silence();
                        }
                        break;
                    }
                }
                // A receiver copies, or looks whether a reply is for this one: it is soon through.
                FILLING => KernelFutex.wait_for(state, FILLING, FILLING_NS),
                _ => break,
            }
        }
        // Release: the next user of the place finds our buffer gone.
        state.store(FREE, Ordering::Release);
    }
}

/// Waits until one of these (two at most, each on a line of its own) is done, or all have ended, or the clock says `due`.
pub(crate) fn wait_for_any(asked: &[&Asked<'_, '_>], due: u64) {
    debug_assert!((1..=MOST).contains(&asked.len()));
    let since = sleep::now_ns();
    let mut roles: [Option<Receiver<'_>>; MOST] = [const { None }; MOST];
    loop {
        let ends: [Option<End>; MOST] = core::array::from_fn(|n| asked.get(n).map_or(Some(End::Unsent), |asked| asked.ended()));
        let now = sleep::now_ns();
        if ends.contains(&Some(End::Done)) || ends.iter().all(Option::is_some) || now >= due {
            return;
        }
        let mut is_new = false;
        for (n, asked) in asked.iter().enumerate() {
            if ends[n].is_some() {
                // Others may wait for what comes there.
                roles[n] = None;
            } else if roles[n].is_none() {
                roles[n] = asked.line.take_role();
                is_new |= roles[n].is_some();
            }
        }
        // Whoever had the role before may have ended one of ours just then.
        if is_new {
            continue;
        }
        let open = ends.iter().filter(|end| end.is_none()).count();
        let held = roles.iter().filter(|role| role.is_some()).count();
        let look = ((now - since) / PART).clamp(LOOK_LEAST_NS, LOOK_MOST_NS);
        let time = (due - now).min(if held == open { TICK_NS } else { look });
        match held {
            // Its receiver wakes us.
            0 if open == 1 => {
                let one = asked.iter().zip(ends).find(|(_, end)| end.is_none());
                one.into_iter().for_each(|(one, _)| one.line.sleep(one.request, (due - now).min(LOOK_NS)));
            }
            0 => sleep::nap(time),
            _ => hear(&roles, time),
        }
    }
}

/// Waits for bytes on the lines whose receiver this thread is, for at most `ns`, and hands them on.
fn hear(roles: &[Option<Receiver<'_>>; MOST], ns: u64) {
    let lines = || roles.iter().flatten().map(|role| role.0);
    if let Some(line) = lines().find(|line| !line.is_up() || line.socket().is_none()) {
        // SAFETY: we are its receiver.
        return line.lose(unsafe { &mut *line.input.get() });
    }
    let mut sockets = lines().filter_map(Line::socket);
    let Some(first) = sockets.next() else { return };
    let second = sockets.next();
    let mut polled =
        [PollFd::from_borrowed_fd(first, PollFlags::IN), PollFd::from_borrowed_fd(second.unwrap_or(first), PollFlags::IN)];
    let time = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ };
    let polled_now = if second.is_some() { &mut polled[..] } else { &mut polled[..1] };
    if !poll(polled_now, Some(&time)).is_ok_and(|count| count > 0) {
        return;
    }
    for (line, _) in lines().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty()) {
        // SAFETY: as above.
        let input = unsafe { &mut *line.input.get() };
        match line.take_bytes(input, receive_now) {
            Ok(()) | Err(Errno::AGAIN) => {}
            Err(_) => line.lose(input),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Waits;
    use super::super::super::wire::{Command, REPLY};
    use super::*;
    use farshore_core::limits::PAGE_SIZE;
    use farshore_sys::fd::Fd;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    const LONG: u64 = 10_000_000_000;

    /// A line of a mirror's copy, and the server's end of it.
    fn line() -> (Line, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let line = Line::new(Waits::Short);
        line.put(Fd::from(OwnedFd::from(ours))).unwrap();
        (line, theirs)
    }

    fn ask<'l, 'b>(line: &'l Line, into: &'b mut [u8]) -> Asked<'l, 'b> {
        let len = into.len() as u32;
        line.begin(Command::Read, 0, len, Some(into)).expect("there is a place")
    }

    /// Takes a request, and makes its answer: so many bytes of this value.
    fn answer(server: &mut UnixStream, bytes: usize, value: u8) -> Vec<u8> {
        let mut request = [0; 28];
        server.read_exact(&mut request).unwrap();
        let mut answer = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0];
        answer.extend(&request[8..16]);
        answer.resize(REPLY + bytes, value);
        answer
    }

    /// Lets the line take all that has come.
    fn hear_all(line: &Line) {
        let roles = [Some(line.take_role().expect("nobody has it")), None];
        (0..4).for_each(|_| hear(&roles, 1_000_000));
    }

    fn now() -> u64 {
        sleep::now_ns()
    }

    #[test]
    fn an_answer_that_comes_after_its_request_was_withdrawn_is_skipped() {
        let (line, mut server) = line();
        let mut buffer = vec![0_u8; PAGE_SIZE];
        let asked = ask(&line, &mut buffer);
        wait_for_any(&[&asked], now() + 1_000_000);
        assert_eq!(asked.ended(), None);
        drop(asked);
        buffer.fill(7);
        let late = answer(&mut server, PAGE_SIZE, 1);
        server.write_all(&late).unwrap();
        hear_all(&line);
        assert!(buffer.iter().all(|&byte| byte == 7));
        // The place is used again, and what is for its earlier user comes before its own.
        let asked = ask(&line, &mut buffer);
        let right = answer(&mut server, PAGE_SIZE, 2);
        server.write_all(&late).unwrap();
        server.write_all(&right).unwrap();
        wait_for_any(&[&asked], now() + LONG);
        assert_eq!(asked.ended(), Some(End::Done));
        drop(asked);
        assert!(buffer.iter().all(|&byte| byte == 2));
    }

    /// For each length of the part that has come when it is withdrawn, with the place used again or not meanwhile.
    #[test]
    fn the_rest_of_an_answer_that_had_begun_is_skipped() {
        let pages = 3;
        for cut in [1, REPLY, REPLY + 1, REPLY + PAGE_SIZE, REPLY + 3 * PAGE_SIZE - 1] {
            for again in [false, true] {
                let (line, mut server) = line();
                let mut buffer = vec![0_u8; pages * PAGE_SIZE];
                let asked = ask(&line, &mut buffer);
                let late = answer(&mut server, pages * PAGE_SIZE, 1);
                server.write_all(&late[..cut]).unwrap();
                wait_for_any(&[&asked], now() + 2_000_000);
                assert_eq!(asked.ended(), None);
                drop(asked);
                buffer.fill(7);
                let mut other = vec![0_u8; PAGE_SIZE];
                // Its own buffer is shorter than what is to come for the other.
                let asked = again.then(|| ask(&line, &mut other));
                let right = asked.as_ref().map(|_| answer(&mut server, PAGE_SIZE, 2));
                server.write_all(&late[cut..]).unwrap();
                match (&asked, right) {
                    (Some(asked), Some(right)) => {
                        server.write_all(&right).unwrap();
                        wait_for_any(&[asked], now() + LONG);
                        assert_eq!(asked.ended(), Some(End::Done));
                    }
                    _ => hear_all(&line),
                }
                drop(asked);
                assert!(buffer.iter().all(|&byte| byte == 7), "cut at {cut}");
                assert!(!again || other.iter().all(|&byte| byte == 2), "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_connection_that_ends_in_the_middle_ends_the_request_that_uses_the_place_now() {
        for again in [false, true] {
            let (line, mut server) = line();
            let (mut buffer, mut other) = (vec![0_u8; PAGE_SIZE], vec![0_u8; PAGE_SIZE]);
            let asked = ask(&line, &mut buffer);
            let late = answer(&mut server, PAGE_SIZE, 1);
            server.write_all(&late[..100]).unwrap();
            wait_for_any(&[&asked], now() + 2_000_000);
            drop(asked);
            let asked = again.then(|| ask(&line, &mut other));
            drop(server);
            match &asked {
                Some(asked) => {
                    wait_for_any(&[asked], now() + LONG);
                    assert_eq!(asked.ended(), Some(End::Lost));
                }
                None => hear_all(&line),
            }
            assert!(!line.is_up());
            drop(asked);
            assert!(line.requests.iter().all(|request| request.state.load(Ordering::SeqCst) == FREE), "a place is lost");
        }
    }

    #[test]
    fn the_first_answer_counts_on_whichever_line_it_comes() {
        for first in 0..2 {
            let mut ends = [line(), line()];
            let (mut a, mut b) = (vec![0_u8; PAGE_SIZE], vec![0_u8; PAGE_SIZE]);
            let [(one, one_server), (two, two_server)] = &mut ends;
            let (one, two) = (ask(one, &mut a), ask(two, &mut b));
            let server = [one_server, two_server].into_iter().nth(first).unwrap();
            let came = answer(server, PAGE_SIZE, 5);
            server.write_all(&came).unwrap();
            wait_for_any(&[&one, &two], now() + LONG);
            let ends = [one.ended(), two.ended()];
            assert_eq!(ends.map(|end| end == Some(End::Done)), [first == 0, first == 1]);
        }
    }

    /// A receiver has hold of the buffer just now.
    #[test]
    fn a_request_that_is_being_filled_is_not_left() {
        let (line, _server) = line();
        let mut buffer = vec![0_u8; PAGE_SIZE];
        let asked = ask(&line, &mut buffer);
        let request = asked.request;
        let state = &request.state;
        state.store(FILLING, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let leaves = scope.spawn(move || drop(asked));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!leaves.is_finished(), "the receiver would write into a buffer that is the caller's");
            state.store(HALF, Ordering::SeqCst);
            leaves.join().unwrap();
        });
        assert_eq!(state.load(Ordering::SeqCst), FREE);
    }

    /// Somebody else receives on both lines.
    #[test]
    fn what_others_receive_is_seen() {
        let ends = [line(), line()];
        let (mut a, mut b) = (vec![0_u8; PAGE_SIZE], vec![0_u8; PAGE_SIZE]);
        let (one, two) = (ask(&ends[0].0, &mut a), ask(&ends[1].0, &mut b));
        let roles = [ends[0].0.take_role(), ends[1].0.take_role()];
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                wait_for_any(&[&one, &two], now() + LONG);
                two.ended()
            });
            let mut server = &ends[1].1;
            let came = answer(&mut server.try_clone().unwrap(), PAGE_SIZE, 5);
            server.write_all(&came).unwrap();
            hear(&roles, LONG);
            assert_eq!(waits.join().unwrap(), Some(End::Done));
        });
    }

    /// The one that was told to receive next leaves.
    #[test]
    fn who_withdraws_hands_the_role_on() {
        let (line, _server) = line();
        let (mut a, mut b) = (vec![0_u8; PAGE_SIZE], vec![0_u8; PAGE_SIZE]);
        let one = ask(&line, &mut a);
        let two = ask(&line, &mut b);
        two.request.state.store(ASLEEP, Ordering::SeqCst);
        drop(one);
        assert_eq!(two.request.state.load(Ordering::SeqCst), WAITING, "nobody would receive for it");
    }

    #[test]
    fn a_server_that_never_answers_is_given_up_although_nobody_waits_for_long() {
        let (line, mut server) = line();
        let since = std::time::Instant::now();
        // It takes all requests.
        std::thread::spawn(move || std::io::copy(&mut server, &mut std::io::sink()));
        while line.has_connection() {
            assert!(since.elapsed().as_secs() < 60, "it is never given up");
            let mut buffer = vec![0_u8; PAGE_SIZE];
            let asked = ask(&line, &mut buffer);
            wait_for_any(&[&asked], now() + 10_000_000);
        }
        assert!(since.elapsed().as_nanos() as u64 >= Waits::Short.silence_ns(), "not before its time");
    }

    /// It has answered, and nobody has looked.
    #[test]
    fn an_answer_that_nobody_takes_is_no_silence() {
        let (line, mut server) = line();
        let mut buffer = vec![0_u8; PAGE_SIZE];
        for _ in 0..2 {
            drop(ask(&line, &mut buffer));
            let late = answer(&mut server, PAGE_SIZE, 1);
            server.write_all(&late).unwrap();
            line.silent_ns.store(1, Ordering::Relaxed);
        }
        assert!(line.has_connection());
        drop(ask(&line, &mut buffer));
        assert!(line.has_connection(), "there is much to read");
    }
}
