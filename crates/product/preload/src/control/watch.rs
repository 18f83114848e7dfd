//! The thread that watches swap spaces: it says in one line what becomes of one, keeps memory ready for evictors, and makes threads that read ahead when
//! they are of use. The autopilot looks on it ([`pilot`]).
//!
//! Evictors do not write to stderr: it may be a pipe that nobody reads.

use crate::family::pilot;
use crate::ground::own_threads;
use crate::ground::report;
use crate::ground::runtime::Runtime;
use farshore_core::seams::Spaces;
use farshore_engine::health::{News, Watcher};

/// The thread.
pub fn run(runtime: &'static Runtime, watcher: &mut Watcher) {
    let (tell, make_reader) = (&mut |news| tell(runtime, news), &mut || own_threads::make_reader(runtime));
    watcher.run(&runtime.engine, &own_threads::STOP, tell, make_reader, &mut || pilot::look(runtime));
}

fn tell(runtime: &Runtime, news: News) {
    report::line(format_args!("{}", news.line(runtime.engine.backend.name_of(news.slot))));
}
