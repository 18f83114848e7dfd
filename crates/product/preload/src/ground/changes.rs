//! Which swap spaces were asked to come and go, and what has become of that. `control/spaces.rs` does the work.

use core::sync::atomic::{AtomicU32, Ordering};
use farshore_config::SwapSpec;
use farshore_sys::lock::Mutex;

/// Changes that are remembered when they have ended.
const REMEMBERED: usize = 64;

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A space comes.
    Add,
    /// This one goes.
    Drain(usize),
    /// A copy of a space that is kept several times comes.
    AddCopy,
    /// A copy goes.
    RemoveCopy,
}

impl What {
    const fn is_of_copy(self) -> bool {
        matches!(self, What::AddCopy | What::RemoveCopy)
    }
}

/// What has become of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    Waits,
    UnderWay,
    Done,
    /// Why not, in a line.
    Failed(String),
}

#[derive(Debug)]
pub struct Asked {
    pub id: u64,
    pub spec: SwapSpec,
    pub what: What,
    pub state: State,
    /// Processes that may use the copy which goes.
    pub readers: Vec<Reader>,
}

/// A process that this one has forked, and those that it has forked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reader {
    /// Which of the families that this process has been in.
    pub family: u32,
    /// Its line there.
    pub line: u32,
    /// The line's generation.
    pub generation: u32,
}

/// All changes of this process, in order.
#[derive(Debug)]
pub struct Changes {
    pub list: Mutex<Vec<Asked>>,
    /// Spaces that wait to be added.
    waiting: AtomicU32,
    /// Copies that come or go.
    copies: AtomicU32,
}

impl Changes {
    /// None yet.
    pub const fn new() -> Changes {
        Changes { list: Mutex::new(Vec::new()), waiting: AtomicU32::new(0), copies: AtomicU32::new(0) }
    }

    /// Whether some were not begun, or need somebody who looks after them.
    pub fn are_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 || self.concern_copies()
    }

    /// Whether copies come or go.
    pub fn concern_copies(&self) -> bool {
        self.copies.load(Ordering::Acquire) > 0
    }

    /// Notes a change. Its number.
    pub fn note(&self, spec: SwapSpec, what: What, state: State) -> u64 {
        self.list.with(|list| {
            let id = list.last().map_or(1, |last| last.id + 1);
            if list.len() >= REMEMBERED
                && let Some(oldest) = list.iter().position(|asked| matches!(asked.state, State::Done | State::Failed(_)))
            {
                list.remove(oldest);
            }
            if state == State::Waits {
                self.waiting.fetch_add(1, Ordering::Release);
            }
            if what.is_of_copy() {
                self.copies.fetch_add(1, Ordering::Release);
            }
            list.push(Asked { id, spec, what, state, readers: Vec::new() });
            id
        })
    }

    /// The oldest that waits is under way now.
    pub fn begin_next(&self) -> Option<(u64, What, SwapSpec)> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.list.with(|list| {
            let next = list.iter_mut().find(|asked| asked.state == State::Waits)?;
            next.state = State::UnderWay;
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            Some((next.id, next.what, next.spec.clone()))
        })
    }

    pub fn end(&self, which: impl Fn(&Asked) -> bool, result: Result<(), String>) {
        let state = result.map_or_else(State::Failed, |()| State::Done);
        self.list.with(|list| {
            let under_way = list.iter_mut().filter(|asked| asked.state == State::UnderWay && which(asked));
            under_way.for_each(|asked| {
                asked.state.clone_from(&state);
                if asked.what.is_of_copy() {
                    self.copies.fetch_sub(1, Ordering::Relaxed);
                }
            });
        });
    }
}
