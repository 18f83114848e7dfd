//! Waits for sockets, to the microsecond where it can be had: epoll with a time limit in ns (Linux 5.11), by a thread
//! whose timers the kernel does not bunch with others. Limits in ms, as most poller crates have, would be
//! as long as hundreds of requests.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

/// Events of one wait.
const EVENTS: usize = 256;

pub struct Poller {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poller {
    /// For the thread that calls it.
    pub fn new() -> io::Result<Self> {
        // Else sleeping takes 50 µs more than was asked for. If it cannot be had, latencies show it.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        Ok(Poller { epoll: epoll::create(CreateFlags::CLOEXEC)?, events: Vec::with_capacity(EVENTS) })
    }

    /// Waits for `socket` too; `number` is what [`Poller::wait`] calls it.
    pub fn add(&self, socket: impl AsFd, number: usize, writing: bool) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(number as u64), flags(writing))?)
    }

    /// Whether it is to be told that `socket` takes bytes again.
    pub fn change(&self, socket: impl AsFd, number: usize, writing: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, EventData::new_u64(number as u64), flags(writing))?)
    }

    /// Waits this long at most; calls `each` with the number of each socket that has something.
    pub fn wait(&mut self, time: Duration, mut each: impl FnMut(usize)) -> io::Result<()> {
        let time = Timespec::try_from(time).map_err(|_| Errno::INVAL)?;
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&time)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &self.events {
            let number = event.data.u64();
            each(usize::try_from(number).unwrap_or(usize::MAX));
        }
        Ok(())
    }
}

fn flags(writing: bool) -> EventFlags {
    if writing { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
}
