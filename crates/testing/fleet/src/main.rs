//! Prints what comes of a fleet when nodes and racks are lost, and what placement makes of it. Its defaults are those of `docs/src/guide/fleet.md`.
#![forbid(unsafe_code)]

use clap::Parser;
use farshore_config::{Size, Time};
use farshore_fleet::place::Choice;
use farshore_fleet::report::Report;
use farshore_fleet::scenario::{Outcome, Scenario, run, warm};
use farshore_fleet::setup::{PAGE, Setup};
use farshore_fleet::{balls, scenario};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Many clients and memory nodes, in a simulation from a seed
#[derive(Parser, Debug)]
#[command(name = "farshore-fleet", max_term_width = 100)]
struct Args {
    /// Clients
    #[arg(long, default_value_t = 1000)]
    clients: usize,
    /// Memory nodes
    #[arg(long, default_value_t = 100)]
    nodes: usize,
    /// Racks, among which the nodes are divided
    #[arg(long, default_value_t = 10)]
    racks: usize,
    /// Memory of a node
    #[arg(long, default_value = "256G")]
    memory: Size,
    /// Far memory of a client, in the mean
    #[arg(long, default_value = "6G")]
    need: Size,
    /// The standard deviation of the logarithm of what clients need
    #[arg(long, default_value_t = 1.0)]
    skew: f64,
    /// What is placed by itself: whole, or the size of a part
    #[arg(long, value_delimiter = ',', default_value = "whole,1G")]
    part: Vec<Part>,
    /// Copies of each page, 1 to 3
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    copies: Vec<usize>,
    /// What places copies [default: with two copies all, else two-choices]
    #[arg(long, value_delimiter = ',')]
    choice: Vec<Choice>,
    /// Only with copies in different racks
    #[arg(long)]
    apart: bool,
    /// What happens [default: all; restarts of all nodes where clients are placed whole, by two choices, in different racks]
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<Scenario>,
    /// What a node's link carries in a second, in each direction
    #[arg(long, default_value = "1192M")]
    node_link: Size,
    /// What a rack's link carries
    #[arg(long, default_value = "5960M")]
    rack_link: Size,
    /// What a client's link carries
    #[arg(long, default_value = "1192M")]
    client_link: Size,
    /// What a client copies to a copy in a second, at most
    #[arg(long, default_value = "60M")]
    repair: Size,
    /// After how long a node that is lost is replaced
    #[arg(long, default_value = "120s")]
    exchange: Time,
    /// In how long a client writes as many pages as it has out there
    #[arg(long, default_value = "600s")]
    rewrite: Time,
    /// After how long a client needs more or less, in the mean
    #[arg(long, default_value = "120s")]
    change: Time,
    /// How long a client's program runs, in the mean
    #[arg(long, default_value = "1800s")]
    life: Time,
    /// How long the fleet runs before anything happens
    #[arg(long, default_value = "600s")]
    warm: Time,
    /// The seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write all results as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tables to DIR/fleet.md, and all results to DIR/fleet.json
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// What is placed by itself; none: all of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part(Option<u64>);

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        if text == "whole" {
            return Ok(Part(None));
        }
        text.parse::<Size>().map(|size| Part(Some(size.bytes()))).map_err(|why| why.to_string())
    }
}

impl Args {
    fn setup(&self) -> Setup {
        let seconds = |time: Time| time.ns() as f64 / 1e9;
        Setup {
            clients: self.clients,
            nodes: self.nodes,
            racks: self.racks,
            memory: self.memory.bytes() / PAGE,
            need: self.need.bytes() / PAGE,
            skew: self.skew,
            node_link: self.node_link.bytes(),
            rack_link: self.rack_link.bytes(),
            client_link: self.client_link.bytes(),
            repair: self.repair.bytes(),
            exchange: self.exchange.ns() / 1000,
            rewrite: seconds(self.rewrite),
            change: seconds(self.change),
            life: seconds(self.life),
            warm: self.warm.ns() / 1000,
            seed: self.seed,
            ..Setup::default()
        }
    }

    /// All ways to place copies, and what happens to each.
    fn cases(&self) -> Vec<(Setup, Vec<Scenario>)> {
        let mut cases = Vec::new();
        for (&copies, &Part(part)) in self.copies.iter().flat_map(|copies| self.part.iter().map(move |part| (copies, part))) {
            let choices: &[Choice] = match (&self.choice[..], copies) {
                ([], 2) => &[Choice::Random, Choice::TwoChoices, Choice::RoundRobin],
                ([], _) => &[Choice::TwoChoices],
                (chosen, _) => chosen,
            };
            for (&choice, apart) in choices.iter().flat_map(|choice| [(choice, true), (choice, false)]) {
                // A single copy is in one rack.
                if apart && copies == 1 && !self.apart || !apart && self.apart {
                    continue;
                }
                let setup = Setup { copies, part: part.map(|bytes| bytes / PAGE), choice, apart, ..self.setup() };
                let is_chosen = choice == Choice::TwoChoices && apart && part.is_none();
                let happens = |of: &Scenario| match of {
                    Scenario::Rolling | Scenario::Hasty => is_chosen,
                    // A single space is not exchanged.
                    Scenario::Leaves | Scenario::Filled => copies > 1,
                    _ => true,
                };
                let all = scenario::SCENARIOS.into_iter().filter(happens);
                cases.push((setup, if self.scenario.is_empty() { all.collect() } else { self.scenario.clone() }));
            }
        }
        cases
    }
}

/// What comes of each case, in their order.
fn outcomes(cases: &[(Setup, Vec<Scenario>)]) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some((setup, scenarios)) = cases.get(n) else { return };
            let warm = warm(setup);
            let of_it: Vec<Outcome> = scenarios.iter().map(|&scenario| run(&warm, scenario)).collect();
            done.lock().unwrap_or_else(PoisonError::into_inner).push((n, of_it));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|&(n, _)| n);
    done.into_iter().flat_map(|(_, outcomes)| outcomes).collect()
}

fn main() -> ExitCode {
    let args = Args::parse();
    let cases = args.cases();
    if let Some(why) = cases.iter().find_map(|(setup, _)| setup.wrong()) {
        eprintln!("farshore-fleet: {why}");
        return ExitCode::from(125);
    }
    let report = Report { setup: args.setup(), thrown: balls::cases(args.seed), outcomes: outcomes(&cases) };
    let text = report.markdown();
    print!("{text}");
    match write(&args, &report, &text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("farshore-fleet: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Writes what is to be kept.
fn write(args: &Args, report: &Report, text: &str) -> Result<(), String> {
    let json = serde_json::to_string_pretty(report).map_err(|why| why.to_string())? + "\n";
    let write =
        |path: PathBuf, text: &str| std::fs::write(&path, text).map_err(|why| format!("cannot write {}: {why}", path.display()));
    if let Some(path) = &args.json {
        write(path.clone(), &json)?;
    }
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder).map_err(|why| format!("cannot make {}: {why}", folder.display()))?;
        write(folder.join("fleet.md"), text)?;
        write(folder.join("fleet.json"), &json)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound_and_its_defaults_are_the_setups() {
        Args::command().debug_assert();
        let args = Args::parse_from(["farshore-fleet"]);
        assert_eq!(format!("{:?}", args.setup()), format!("{:?}", Setup::default()));
        let cases = args.cases();
        assert!(cases.iter().all(|(setup, _)| setup.wrong().is_none()));
        // One copy: two; two copies: three choices, in racks or not, twice; three copies: two times two.
        assert_eq!(cases.len(), 2 + 12 + 4);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let wrong = |words: &[&str]| {
            let args = Args::try_parse_from(["farshore-fleet"].iter().chain(words)).ok()?;
            args.cases().iter().find_map(|(setup, _)| setup.wrong())
        };
        for words in
            [["--nodes", "95"], ["--copies", "4"], ["--racks", "2"], ["--clients", "0"], ["--node-link", "0"], ["--part", "1"]]
        {
            assert!(wrong(&words).is_some(), "{words:?}");
        }
        assert_eq!(wrong(&["--nodes", "90"]), None);
        assert!(Args::try_parse_from(["farshore-fleet", "--part", "much"]).is_err());
    }
}
