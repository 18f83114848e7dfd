//! The thread that watches swap spaces: it says in one line what becomes of one, keeps memory ready for evictors, and makes threads that read ahead when
//! they are of use. The autopilot looks on it ([`pilot`]).
//!
//! Evictors do not write to stderr: it may be a pipe that nobody reads.

use crate::family::pilot;
use crate::ground::own_threads;
use crate::ground::report;
use crate::ground::runtime::Runtime;
use farshore_core::seams::Spaces;
use farshore_engine::health::{Change, News, Watcher};

/// The thread.
pub fn run(runtime: &'static Runtime, watcher: &mut Watcher) {
    let (tell, make_reader) = (&mut |news| tell(runtime, news), &mut || own_threads::make_reader(runtime));
    watcher.run(&runtime.engine, &own_threads::STOP, tell, make_reader, &mut || pilot::look(runtime));
}

/// A time, in ns, as a person reads it.
struct Span(u64);

impl core::fmt::Display for Span {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 / 1_000_000 {
            ms @ ..2000 => write!(f, "{ms} ms"),
            ms => write!(f, "{} s", ms / 1000),
        }
    }
}

fn tell(runtime: &Runtime, News { slot, change, others }: News) {
    let name = runtime.engine.backend.name_of(slot);
    let where_to = match others {
        true => "new pages go to the other swap spaces; it is tried again now and then",
        false => "no other swap space takes its place, so pages stay in memory; it is tried again all the time",
    };
    match change {
        Change::Full => report::line(format_args!("swap space {name} is full: {where_to}")),
        Change::Fails(why) => report::line(format_args!("swap space {name} fails ({why}): {where_to}")),
        Change::Works => report::line(format_args!("swap space {name} works again")),
        Change::Hangs(ns) => {
            let rest = match others {
                true => "new pages go to the other swap spaces",
                false => "no other swap space takes its place",
            };
            report::line(format_args!(
                "swap space {name} has not answered for {}: threads that need a page from it wait, and {rest}",
                Span(ns)
            ));
        }
        Change::Answers(ns) => report::line(format_args!("swap space {name} answers again, after {}", Span(ns))),
    }
}
