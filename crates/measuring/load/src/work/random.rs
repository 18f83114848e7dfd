//! `random`: each operation goes through a run of neighbouring pages at a random place.
//!
//! With runs of one page it is the uniformly random load of the papers; with 512 the "random" access of mmapbench.

use farshore_load::outcome::Outcome;
use farshore_load::workload;
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Access, accessed};
use crate::memory::{Contents, Memory, PAGE, generator};
use crate::report::Report;
use crate::team::{self, Stage};
use crate::verify;

/// Runs it.
///
/// # Errors
/// If memory or threads are not to be had, or if runs are longer than the memory.
pub fn run(args: &workload::Random, report: &mut Report) -> Result<Outcome, String> {
    let common = &args.common;
    let memory = Memory::new(common.size)?;
    let contents = Contents::new(common.seed);
    let run_length = args.run_length as usize;
    let starts = (memory.pages() + 1).checked_sub(run_length).filter(|starts| *starts > 0);
    let starts = starts
        .ok_or_else(|| format!("--run-length {run_length} is more than the {} pages of {}", memory.pages(), common.size))?;
    verify::fill(&memory, contents, common.threads, report)?;
    let worker = |thread| Worker {
        access: Access::new(&memory, contents, args.mode),
        random: generator(common.seed, thread),
        starts,
        run_length,
    };
    let (total, workers) = team::timed(common, report, None, worker)?;
    let accesses = workers.into_iter().map(|worker| worker.access).collect();
    let outcome = accessed(&memory, contents, args.mode, common.threads, report, accesses)?;
    Ok(Outcome { bytes_per_operation: (run_length * PAGE) as u64, ..super::measured(outcome, total) })
}

struct Worker<'a> {
    access: Access<'a>,
    random: Xoshiro256PlusPlus,
    /// Runs start at pages below this.
    starts: usize,
    run_length: usize,
}

impl team::Worker for Worker<'_> {
    fn operate(&mut self, _: Stage) {
        let start = self.random.random_range(0..self.starts);
        for page in start..start + self.run_length {
            self.access.page(page, &mut self.random);
        }
    }
}
