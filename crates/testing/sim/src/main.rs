//! `farshore-sim`: runs seeds until one breaks.

use farshore_config::Ablate;
use farshore_config::Size;
use farshore_sim::setup::{Single, Wish};
use std::process::exit;

const USAGE: &str = "usage: farshore-sim [--seed N | --seeds A..B] [--steps M] [--threads T] [--pages P] [--memory SIZE] [--spaces S] [--unithreads U] \
                     [--fail NTH,error|short|full|corrupt|hang] [--ablate LIST] [--rough]";

fn usage(why: &str) -> ! {
    eprintln!("farshore-sim: {why}\n{USAGE}");
    exit(2)
}

/// A number, for which `300K` may stand as in a size.
fn number(flag: &str, text: &str) -> u64 {
    text.parse::<Size>().map_or_else(|error| usage(&format!("{flag}: {error}")), Size::bytes)
}

fn main() {
    let mut wish = Wish { steps: 300_000, ..Wish::default() };
    let mut seeds = None;
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        if flag == "--rough" {
            wish.rough = true;
            continue;
        }
        let Some(value) = args.next() else { usage(&format!("{flag}: unknown, or without its value")) };
        match flag.as_str() {
            "--seed" => seeds = Some(number(&flag, &value)..number(&flag, &value) + 1),
            "--seeds" => {
                let Some((from, to)) = value.split_once("..") else { usage(&format!("--seeds {value}: not A..B")) };
                seeds = Some(number(&flag, from)..number(&flag, to));
            }
            "--steps" => wish.steps = number(&flag, &value),
            "--threads" => wish.threads = Some(number(&flag, &value).max(1) as usize),
            "--pages" => wish.pages = Some(number(&flag, &value)),
            "--spaces" => wish.spaces = Some(number(&flag, &value).max(1) as usize),
            "--ablate" => wish.ablated = value.parse::<Ablate>().unwrap_or_else(|why| usage(&why.to_string())).0,
            "--unithreads" => wish.unithreads = Some(number(&flag, &value) as usize),
            "--fail" => {
                let parts = value.split_once(',').and_then(|(nth, fault)| Some((nth, fault.parse().ok()?)));
                let Some((nth, fault)) = parts else { usage(&format!("--fail {value}: not NTH,FAULT")) };
                wish.single = Some(Single { nth: number(&flag, nth), fault });
            }
            "--memory" => wish.memory = Some(number(&flag, &value).max(4 << 20)),
            _ => usage(&format!("{flag}: unknown")),
        }
    }
    let random = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64 >> 4);
    let seeds = seeds.unwrap_or_else(|| {
        let seed = random();
        seed..seed + 1
    });
    let (begun, mut held, mut steps) = (std::time::Instant::now(), 0_u64, 0_u64);
    for seed in seeds {
        let started = std::time::Instant::now();
        match farshore_sim::run(&Wish { seed, ..wish }) {
            Ok(s) => {
                held += 1;
                steps += s.steps;
                println!(
                    "seed {seed}: holds. {} steps in {:.1} s, {:.1} s simulated; {} accesses, {} pinned calls, {} memory calls, {} forks, {} spaces came and {} went ({} left, {} undone), {} extents given back, {} faults of unithreads put aside; \
                 {} pages out by {} evictors, {} written, {} read; {} faults injected, {} SIGBUS as due",
                    s.steps,
                    started.elapsed().as_secs_f64(),
                    s.virtual_ns as f64 / 1e9,
                    s.counts.accesses,
                    s.counts.pinned_calls,
                    s.counts.memory_calls,
                    s.counts.forks,
                    s.counts.spaces_added,
                    s.counts.spaces_gone,
                    s.counts.spaces_left,
                    s.counts.drains_undone,
                    s.counts.given_back,
                    s.counts.aside_for_read + s.counts.aside_for_time + s.counts.aside_to_look,
                    s.evicted,
                    s.setup.evictors,
                    s.pages_out,
                    s.pages_in,
                    s.counts.injected,
                    s.counts.sigbus,
                );
            }
            Err(report) => {
                println!("{report}\nseed {seed} breaks");
                exit(1);
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{held} seeds: {steps} steps in {seconds:.0} s, {:.0} a second", steps as f64 / seconds.max(0.001));
}
