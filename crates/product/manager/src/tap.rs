//! What the thread that follows a guest's runs of faults ([`crate::ahead`]) hears, and how others switch it.
//!
//! A fault is told to it before it is served, by one message into a queue of a fixed size. Nobody waits for it: if the queue is full, the fault is counted and not told. While nothing follows, a fault costs one look at
//! one word.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farshore_config::control::Translated;
use farshore_config::stats;
use farshore_core::page::Page;
use farshore_introspect::layout::Layout;
use farshore_introspect::registers::Processor;

/// Messages that wait at most.
const WAITING_MAX: usize = 256;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long whoever asks pauses while the queue is full.
const PAUSE: Duration = Duration::from_millis(1);

/// In which addresses runs are followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// In none: the engine's own prefetcher has its place.
    Off,
    /// In the guest's virtual addresses.
    Guest,
    /// In the order in which the guest's memory lies, as a prefetcher that knows nothing of the guest: to compare with.
    Host,
}

impl Way {
    /// All, by their numbers.
    const ALL: [Way; 3] = [Way::Off, Way::Guest, Way::Host];

    /// The one that a setting `prefetch=` names, if it is not one of the engine's own prefetchers.
    #[must_use]
    pub fn named(name: &str) -> Option<Way> {
        Way::ALL.into_iter().find(|way| *way != Way::Off && way.name() == name)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Way::Off => "off",
            Way::Guest => "guest",
            Way::Host => "host",
        }
    }
}

/// What is told.
#[derive(Debug)]
pub enum News {
    /// A page is needed that is out, or was write-protected.
    Fault(Page),
    /// The guest's memory lies so: for each piece's backend, its first page in the client.
    Layout(Layout, Vec<Page>),
    /// What the processors run.
    Processors(Vec<Processor>),
    /// Somebody asks where a virtual address is.
    Translate(u64, SyncSender<Result<Vec<Translated>, String>>),
}

/// See the head of the module.
#[derive(Debug)]
pub struct Tap {
    way: AtomicU8,
    has_monitor: AtomicBool,
    sender: SyncSender<News>,
    receiver: Mutex<Option<Receiver<News>>>,
    heard: AtomicU64,
    unheard: AtomicU64,
    told: Mutex<Option<stats::Guest>>,
}

impl Default for Tap {
    fn default() -> Tap {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        Tap {
            way: AtomicU8::new(Way::Off as u8),
            has_monitor: AtomicBool::new(false),
            sender,
            receiver: Mutex::new(Some(receiver)),
            heard: AtomicU64::new(0),
            unheard: AtomicU64::new(0),
            told: Mutex::new(None),
        }
    }
}

impl Tap {
    /// In which addresses runs are followed now.
    #[inline]
    pub fn way(&self) -> Way {
        Way::ALL[usize::from(self.way.load(Ordering::Relaxed)) % Way::ALL.len()]
    }

    /// From now on in these.
    pub fn set_way(&self, way: Way) {
        self.way.store(way as u8, Ordering::Relaxed);
    }

    /// Whether it can be asked what the guest's processors run.
    pub fn has_monitor(&self) -> bool {
        self.has_monitor.load(Ordering::Relaxed)
    }

    /// It can from now on, or cannot any more.
    pub fn set_monitor(&self, is_there: bool) {
        self.has_monitor.store(is_there, Ordering::Relaxed);
    }

    /// Tells of a fault.
    pub fn fault(&self, page: Page) {
        self.heard.fetch_add(1, Ordering::Relaxed);
        if !self.tell(News::Fault(page)) {
            self.unheard.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tells something; whether there was room.
    pub fn tell(&self, news: News) -> bool {
        !matches!(self.sender.try_send(news), Err(TrySendError::Full(_)))
    }

    /// Faults so far, that were told or not.
    pub fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// The other end, for the one thread that hears it.
    pub fn take_receiver(&self) -> Option<Receiver<News>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// What was counted last; `None`: nobody has looked into the guest's page tables.
    pub fn stats(&self) -> Option<stats::Guest> {
        let told = *self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.map(|told| stats::Guest { unheard: self.unheard.load(Ordering::Relaxed), ..told })
    }

    /// Says what was counted.
    pub fn set_stats(&self, stats: stats::Guest) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(stats);
    }

    /// Where the guest has a virtual address.
    ///
    /// # Errors
    /// One line: nobody follows the guest's page tables, or there is no answer.
    pub fn translate(&self, address: u64) -> Result<Vec<Translated>, String> {
        if !self.has_monitor() {
            return Err(format!(
                "translate {address:#x}: this guest's page tables are not looked at: start it with 'farshore vm run --prefetch guest'"
            ));
        }
        // Who runs now is asked for, so that the next question finds them.
        self.heard.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = sync_channel(1);
        let busy = || format!("translate {address:#x}: no answer within {} s: ask again", PATIENCE.as_secs());
        // Faults may have filled the queue. They are not waited for; whoever asks can wait.
        let until = Instant::now() + PATIENCE;
        while !self.tell(News::Translate(address, answer.clone())) {
            if Instant::now() > until {
                return Err(busy());
            }
            std::thread::sleep(PAUSE);
        }
        drop(answer);
        answered.recv_timeout(PATIENCE).map_err(|_| busy())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_who_does_not_hear() {
        let tap = Tap::default();
        assert_eq!(tap.way(), Way::Off);
        tap.set_way(Way::Guest);
        (0..WAITING_MAX as u64 + 7).for_each(|n| tap.fault(Page(n)));
        assert_eq!((tap.way(), tap.heard(), tap.stats()), (Way::Guest, WAITING_MAX as u64 + 7, None));
        tap.set_stats(stats::Guest { found: 3, ..stats::Guest::default() });
        assert_eq!(tap.stats(), Some(stats::Guest { found: 3, unheard: 7, ..stats::Guest::default() }));
        assert!(tap.translate(0x1000).unwrap_err().contains("farshore vm run --prefetch guest"));
        tap.set_monitor(true);
        assert!(tap.translate(0x1000).unwrap_err().contains("ask again"), "the queue is full");
        let receiver = tap.take_receiver().expect("nobody has it");
        assert!(tap.take_receiver().is_none());
        let heard = receiver.try_iter().filter(|news| matches!(news, News::Fault(_))).count();
        assert_eq!(heard, WAITING_MAX);
        drop(receiver);
        tap.fault(Page(1));
    }

    #[test]
    fn ways_are_named() {
        assert_eq!((Way::named("guest"), Way::named("host")), (Some(Way::Guest), Some(Way::Host)));
        assert_eq!((Way::named("off"), Way::named("none"), Way::named("sequential")), (None, None, None));
    }
}
