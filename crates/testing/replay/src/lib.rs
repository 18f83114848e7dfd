//! Replacement policies over the same traces of page accesses, and what the optimum (Bélády, 1966) would have read.
//!
//! ```text
//!  work ── a trace: pages in the order in which a program touches them
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
pub mod work;

/// One access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Which page, from 0 on.
    pub page: u32,
    /// Which place in the program's text makes it.
    pub site: u16,
}

/// A trace, and what its program knows of its memory.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The workload's name.
    pub name: &'static str,
    /// The accesses, in order.
    pub accesses: Vec<Access>,
    /// All pages lie below this.
    pub pages: u32,
    /// Pages that are only streamed over (a graph's edges), if the program has such.
    pub streamed: core::ops::Range<u32>,
}

impl Trace {
    /// How many pages are touched.
    pub fn touched(&self) -> usize {
        let mut seen = vec![false; self.pages as usize];
        self.accesses.iter().filter(|access| !std::mem::replace(&mut seen[access.page as usize], true)).count()
    }
}

/// A policy with its memory: a model.
pub trait Model {
    /// The program touches a page. Whether it was there.
    fn touch(&mut self, access: Access) -> bool;
}

/// How many pages a model reads back in this trace: those that it has had before.
pub fn reads(model: &mut dyn Model, trace: &Trace) -> u64 {
    let mut seen = vec![false; trace.pages as usize];
    let mut reads = 0;
    for &access in &trace.accesses {
        let here = model.touch(access);
        let before = std::mem::replace(&mut seen[access.page as usize], true);
        assert!(before || !here, "a page is there that was never touched");
        reads += u64::from(before && !here);
    }
    reads
}
