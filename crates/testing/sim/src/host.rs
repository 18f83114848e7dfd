//! The engine's view of the world: kernel, clock, futex, policy. Every call may switch actors, before and after its
//! effect.

use crate::kernel::{Place, stamp_of};
use crate::sched::{block, maybe_switch, switch, wake};
use crate::world::{World, broken, note, world};
use farshore_core::page::{GranuleId, Page, PageRange};
use farshore_core::seams::{Ahead, Fetch, Prefetcher};
use farshore_core::seams::{
    Came, Clock, HugePages, Kernel, KernelError, PageBuf, Policy, Protect, Return, Use, Verdict, Watched,
};
use farshore_core::sync::{AtomicU32, Futex, Ordering};
use farshore_core::word::Word;

/// The simulated kernel.
#[derive(Debug)]
pub struct SimKernel;
/// Simulated time.
#[derive(Debug)]
pub struct SimClock;
/// Sleeping in simulated time.
#[derive(Debug)]
pub struct SimFutex;
/// A policy that answers at random.
#[derive(Debug)]
pub struct SimPolicy;
/// A prefetcher that asks for random pages.
#[derive(Debug)]
pub struct SimPrefetcher;

/// Applies `what` to the world, between two places where actors may switch.
fn call<R>(what: impl FnOnce(&mut World) -> R) -> R {
    maybe_switch();
    let result = world(what);
    maybe_switch();
    result
}

fn inject(w: &mut World, rate: u32) -> bool {
    let hit = w.rng.chance(rate);
    w.counts.injected += u64::from(hit);
    hit
}

/// The faults that any request to the userfaultfd can meet.
fn refuse(w: &mut World) -> Result<(), KernelError> {
    w.actors[w.current].luck.no_memory = false;
    let (again, no_memory) = (w.rates.again, w.rates.no_memory);
    if inject(w, again) {
        return Err(KernelError::Again);
    }
    if inject(w, no_memory) {
        w.actors[w.current].luck.no_memory = true;
        return Err(KernelError::NoMemory);
    }
    Ok(())
}

/// How often in a row a copy of a page that can be read another way may be refused; the other way is refused now and then
/// too.
const REFUSALS_MAX: u32 = 20;

/// Checks what an evictor must ensure before it copies or unmaps a page: that no thread can write it any more.
fn promised(place: Option<&Place>, page: Page, readable: bool) {
    match place {
        Some(place) if place.registered && place.bytes.is_some() => {
            if !place.protected {
                broken(page.0, "an evictor copies or unmaps a page that the program can still write");
            }
            if readable && place.no_access && !place.untold {
                broken(page.0, "an evictor reads a page that the program itself may not read");
            }
        }
        _ => broken(page.0, "an evictor copies or unmaps a page that is not there"),
    }
}

impl Kernel for SimKernel {
    fn map(&self, page: Page, bytes: &PageBuf, protect: Protect) -> Result<(), KernelError> {
        call(|w| {
            refuse(w)?;
            note("map", page.0, u64::from(protect == Protect::WriteProtected));
            w.memory.copy(page, bytes, protect)?;
            if w.is_outlived() {
                w.noted.insert(page.0, w.current);
            }
            Ok(())
        })
    }

    unsafe fn give_back(&self, memory: *mut PageBuf, count: usize) -> bool {
        // Nobody may read these any more, so they need not be the zeros that they are: others are found sooner.
        // SAFETY: pages of the staging memory that nobody uses, by this function's own condition.
        unsafe { core::ptr::write_bytes(memory, 0xdb, count) };
        world(|w| w.counts.stages_given += 1);
        true
    }

    fn is_outlived(&self) -> bool {
        world(|w| w.is_outlived())
    }

    fn forget_mapped(&self) {
        world(|w| w.noted.retain(|_, actor| *actor != w.current));
    }

    fn map_zeros(&self, first: Page, count: u64) -> Result<u64, KernelError> {
        call(|w| {
            refuse(w)?;
            let partial = w.rates.partial;
            let count = if inject(w, partial) { w.rng.between(1, count) } else { count };
            let done = w.memory.zeros(first, count)?;
            (0..done).for_each(|i| note("map zeros", first.0 + i, done));
            Ok(done)
        })
    }

    fn huge_pages(&self) -> HugePages {
        world(|w| w.setup.huge)
    }

    fn map_huge(&self, granule: GranuleId) -> Result<(), KernelError> {
        call(|w| {
            refuse(w)?;
            w.memory.huge(granule)?;
            w.counts.huge += 1;
            granule.range().iter().for_each(|page| note("map huge", page.0, granule.0));
            Ok(())
        })
    }

    fn split_huge(&self, granule: GranuleId) {
        for page in granule.range().iter() {
            call(|w| {
                if let Some(number) = w.memory.get(page).map(|place| place.huge).filter(|&number| number != 0) {
                    note("split huge", page.0, number);
                    w.memory.split(number);
                }
            });
        }
    }

    fn protect(&self, range: PageRange) -> Result<(), KernelError> {
        call(|w| {
            let refused = w.rates.refused;
            if inject(w, refused) {
                return Err(KernelError::Again);
            }
            range.iter().for_each(|p| note("protect", p.0, range.len()));
            w.memory.protect(range)
        })
    }

    fn unprotect(&self, page: Page) -> Result<(), KernelError> {
        call(|w| {
            refuse(w)?;
            note("unprotect", page.0, 0);
            w.memory.unprotect(page)
        })
    }

    fn copy_out(&self, page: Page, into: &mut PageBuf, readable: bool) -> Result<(), KernelError> {
        maybe_switch();
        // The page is copied in two halves, so that a write between them would show as a torn page.
        for half in [0..2048, 2048..4096] {
            world(|w| {
                let refused = w.rates.refused / 8;
                if inject(w, refused) {
                    return Err(KernelError::Refused);
                }
                if w.strict {
                    promised(w.memory.get(page), page, readable);
                }
                let place = w.memory.get_mut(page).ok_or(KernelError::Gone)?;
                if readable && place.no_access {
                    place.refusals += 1;
                    if place.refusals > REFUSALS_MAX {
                        broken(page.0, "a page stays for ever that could be read another way");
                    }
                    return Err(KernelError::Gone);
                }
                place.refusals = 0;
                let bytes = place.bytes.as_ref().ok_or(KernelError::Gone)?;
                into.0[half.clone()].copy_from_slice(&bytes.0[half.clone()]);
                Ok(())
            })?;
            maybe_switch();
        }
        note("copy out", page.0, stamp_of(into).unwrap_or(u64::MAX));
        Ok(())
    }

    fn unmap(&self, pages: &[Page]) -> Result<(), (usize, KernelError)> {
        maybe_switch();
        let stop = world(|w| {
            let partial = w.rates.refused;
            inject(w, partial).then(|| w.rng.below(pages.len().max(1) as u64) as usize)
        });
        for (n, &page) in pages.iter().enumerate() {
            if stop == Some(n) {
                return Err((n, KernelError::Again));
            }
            world(|w| {
                if w.strict {
                    promised(w.memory.get(page), page, false);
                }
                let place = w.memory.get_mut(page).filter(|p| p.mapped).ok_or((n, KernelError::Gone))?;
                if w.strict && place.huge != 0 {
                    broken(page.0, "a page leaves a huge page that was not split: its RAM stays");
                }
                place.bytes = None;
                (place.protected, place.mark) = (false, 0);
                note("unmap", page.0, pages.len() as u64);
                Ok(())
            })?;
            if n % 16 == 15 {
                maybe_switch();
            }
        }
        maybe_switch();
        Ok(())
    }

    fn watch(&self, pages: &mut [Watched], _alone: bool, _ns: u64) -> bool {
        maybe_switch();
        let watches = world(|w| w.rng.below(3) > 0);
        for watched in pages.iter_mut().filter(|_| watches) {
            call(|w| {
                // Some do not take the mark.
                let takes = w.rng.below(16) > 0;
                w.counts.watched += 1;
                let mark = w.counts.watched;
                if let Some(place) = w.memory.get_mut(watched.page).filter(|place| takes && place.bytes.is_some()) {
                    (place.mark, place.idle, watched.mark) = (mark, true, mark);
                    note("watch", watched.page.0, mark);
                }
            });
        }
        watches
    }

    fn settle(&self) -> bool {
        maybe_switch();
        world(|w| w.rng.below(16) > 0)
    }

    fn uses(&self, pages: &[Watched], uses: &mut [Use]) {
        for (watched, used) in pages.iter().zip(uses) {
            *used =
                call(|w| match w.memory.get(watched.page).filter(|place| place.bytes.is_some() && place.mark == watched.mark) {
                    Some(_) if watched.mark == 0 => Use::Unknown,
                    // Some are watched by samples, which never tell that a page was not used.
                    Some(place) if place.idle && watched.mark.is_multiple_of(4) => Use::Unknown,
                    Some(place) if place.idle => Use::Unused,
                    Some(_) => Use::Used,
                    None => Use::Unknown,
                });
        }
    }

    fn current_thread(&self) -> u64 {
        world(|w| w.current as u64)
    }

    fn interleave(&self) {
        maybe_switch();
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        world(|w| w.now)
    }
}

impl SimFutex {
    fn sleep(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
        maybe_switch();
        if word.load(Ordering::SeqCst) != expected {
            return;
        }
        let until = world(|w| {
            let spurious = w.rates.spurious;
            if inject(w, spurious) { Some(w.now + w.rng.below(5_000)) } else { timeout_ns.map(|ns| w.now + ns) }
        });
        block(std::ptr::from_ref(word).addr(), until);
    }
}

impl Futex for SimFutex {
    fn wait(&self, word: &AtomicU32, expected: u32) {
        Self::sleep(word, expected, None);
    }
    fn wait_for(&self, word: &AtomicU32, expected: u32, timeout_ns: u64) {
        Self::sleep(word, expected, Some(timeout_ns));
    }
    fn wake_all(&self, word: &AtomicU32) {
        maybe_switch();
        wake(std::ptr::from_ref(word).addr());
    }
}

impl Prefetcher for SimPrefetcher {
    fn fetch(&self, fetch: &dyn Fetch) -> Option<Ahead> {
        maybe_switch();
        let along = world(|w| if w.rng.chance(5000) { w.rng.between(0, 30) as i32 - 15 } else { 0 });
        fetch.count_used(fetch.take(along));
        if world(|w| w.rng.chance(5000)) {
            fetch.in_stream();
        }
        maybe_switch();
        world(|w| {
            if !w.rng.chance(3000) {
                return None;
            }
            let step = w.rng.pick(&[1, 1, 1, -1, -1, 2, 3, -7, 300]);
            let first = Page(fetch.page().0.saturating_add_signed(w.rng.between(0, 40) as i64 - 20));
            Some(Ahead { first, step, pages: w.rng.between(1, 20) as u32 })
        })
    }
}

impl Policy for SimPolicy {
    type Prefetch = SimPrefetcher;

    fn prefetcher(&self) -> &SimPrefetcher {
        &SimPrefetcher
    }

    fn verdict(&self, _page: Page, _word: Word) -> Verdict {
        if world(|w| {
            let often = w.setup.switch_rate / 8;
            w.rng.chance(often)
        }) {
            switch();
        }
        match world(|w| w.rng.below(100)) {
            0 => Verdict::Keep,
            1..=30 => Verdict::Evict,
            _ => Verdict::EvictUnlessChances,
        }
    }
    fn chances(&self, _came: Came) -> u8 {
        world(|w| w.rng.pick(&[0, 1, 1, 1, 2, 7]))
    }
    fn keep(&self, _returned: Return) -> u16 {
        world(|w| w.rng.pick(&[0, 0, 10_000, u16::MAX]))
    }
}
