//! `farshore metrics`.

pub mod schema;
pub mod text;

use std::sync::Mutex;
use std::time::Duration;

use farshore_client::kinds;
use farshore_client::programs::State;
use farshore_client::round::{Found, Outcome, Rounds};
use farshore_command::http;
use farshore_command::listen::Listener;
use farshore_command::refusal::Refusal;
use farshore_config::plain;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::MetricsArgs;
use crate::print;

/// How long programs may take to answer. Prometheus waits ten seconds, if it is not told otherwise.
const PATIENCE: Duration = Duration::from_secs(2);

/// Prints the metrics, or serves them.
///
/// # Errors
/// It cannot listen there (1).
pub fn metrics(arguments: &MetricsArgs) -> Result<u8, Refusal> {
    let user = rustix::process::geteuid().as_raw();
    let with_kinds = arguments.kinds;
    let Some(address) = &arguments.listen else {
        return match gather(&mut Rounds::default(), user, with_kinds) {
            (_, Some(why)) => Err(Refusal::failed(why)),
            (text, None) => print(&text).map(|()| 0),
        };
    };
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])
        .map_err(|error| Refusal::failed(format!("cannot listen for signals ({error}): is there memory left?")))?;
    let listener = std::sync::Arc::new(Listener::at(address).map_err(Refusal::failed)?);
    let serving = listener.clone();
    std::thread::spawn(move || {
        // One look at a time: a stopped program is asked once, however many ask for it.
        let rounds = Mutex::new(Rounds::default());
        serving.serve_metrics(http::OPEN_METRICS, move || {
            let mut rounds = rounds.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            gather(&mut rounds, user, with_kinds).0
        });
    });
    // Who reads this finds the thread that answers.
    eprintln!("farshore: metrics are at {}", plain(&listener.page_at()));
    let signal = signals.forever().next().unwrap_or(SIGTERM);
    listener.remove();
    Ok(128_u8.saturating_add(u8::try_from(signal).unwrap_or(0)))
}

/// Asks all programs of a user, and makes the text; with it, why it is of programs that were found before.
fn gather(rounds: &mut Rounds, user: u32, with_kinds: bool) -> (String, Option<String>) {
    let Found { mut programs, mut outcomes, trouble } = rounds.look(user, PATIENCE);
    for (program, outcome) in programs.iter().zip(&mut outcomes) {
        if let Outcome::Answered(stats) = outcome
            && with_kinds
        {
            stats.kinds = kinds::of(program.pid, PATIENCE);
        }
    }
    // Whether these are programs under Farshore is not known.
    let is_known: Vec<bool> = programs.iter().map(|program| !matches!(program.state, State::Hidden(_))).collect();
    let (mut of_program, mut of_outcome) = (is_known.iter(), is_known.iter());
    programs.retain(|_| of_program.next() == Some(&true));
    outcomes.retain(|_| of_outcome.next() == Some(&true));
    (text::text(&programs, outcomes), trouble)
}
