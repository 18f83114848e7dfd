//! Replacement policies over the same traces of page accesses, and what the optimum (Bélády, 1966) would have read.
//!
//! ```text
//!  a trace: pages in the order in which a program touches them (a workload's, or what `recorded` makes of a recording)
//!    ├─▶ policies   models of policies from papers and kernels, which see each access
//!    ├─▶ engine     the engine that ships, with its own policies as they are compiled into the library; it sees faults alone
//!    └─▶ optimum    takes the page that is touched again last
//! ```
//!
//! Counted are the pages that are read back. First touches are the same for all, and cost no read. So a number is comparable with
//! what a device has to do, and a policy is compared with the best that anybody could do who has the same memory and fetches a page when it is
//! touched.
//!
//! Models see each access, as if access bits were free. The engine does not: that is what it is compared for.
#![forbid(unsafe_op_in_unsafe_fn)]

pub mod engine;
pub mod lists;
pub mod optimum;
pub mod policies;
pub mod recorded;
pub mod sample;

/// One access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Which page, from 0 on.
    pub page: u32,
    /// Which place in the program's text makes it.
    pub site: u16,
}

/// A trace, and what its program knows of its memory.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The workload's name.
    pub name: &'static str,
    /// The accesses, in order.
    pub accesses: Vec<Access>,
    /// All pages lie below this.
    pub pages: u32,
    /// Pages that are only streamed over (a graph's edges), if the program has such.
    pub streamed: core::ops::Range<u32>,
    /// Pages whose bytes are thrown away (unmapped) before the access of this number, in order: the next touch of each is a first one again.
    pub gone: Vec<(usize, u32)>,
    /// Accesses before this one bring memory to the state that it begins with: what they read is not counted.
    pub from: usize,
}

/// What happens in a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A page is touched.
    Touch {
        /// Which access it is.
        at: usize,
        /// The access.
        access: Access,
        /// Whether the page has no bytes yet, so that nobody reads it.
        first: bool,
    },
    /// A page's bytes are thrown away.
    Gone(u32),
}

impl Trace {
    /// How many pages are touched.
    pub fn touched(&self) -> usize {
        let mut seen = vec![false; self.pages as usize];
        self.accesses.iter().filter(|access| !std::mem::replace(&mut seen[access.page as usize], true)).count()
    }

    /// All that happens, in order.
    pub fn steps(&self) -> impl Iterator<Item = Step> {
        let mut has_bytes = vec![false; self.pages as usize];
        let (mut at, mut gone) = (0, self.gone.iter().peekable());
        std::iter::from_fn(move || {
            if let Some(&(_, page)) = gone.next_if(|(before, _)| *before <= at) {
                has_bytes[page as usize] = false;
                return Some(Step::Gone(page));
            }
            let &access = self.accesses.get(at)?;
            let first = !std::mem::replace(&mut has_bytes[access.page as usize], true);
            at += 1;
            Some(Step::Touch { at: at - 1, access, first })
        })
    }
}

/// A policy with its memory: a model.
pub trait Model {
    /// The program touches a page. Whether it was there.
    fn touch(&mut self, access: Access) -> bool;
    /// The page's bytes are thrown away: it takes no memory any more, and nothing is known of it.
    fn forget(&mut self, page: u32);
}

/// How many pages a model reads back in this trace: those that it has had before.
///
/// # Panics
/// The model has a page that has no bytes.
pub fn reads(model: &mut dyn Model, trace: &Trace) -> u64 {
    let mut reads = 0;
    for step in trace.steps() {
        match step {
            Step::Touch { at, access, first } => {
                let here = model.touch(access);
                assert!(!first || !here, "a page is there that has no bytes");
                reads += u64::from(at >= trace.from && !first && !here);
            }
            Step::Gone(page) => model.forget(page),
        }
    }
    reads
}
