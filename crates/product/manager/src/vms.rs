//! `farshore vm list`, `stat`, `set`, `translate` and `policy`: virtual machines that run, found by their managers' control sockets, with no daemon between.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use farshore_client::client::Client;
use farshore_client::programs;
use farshore_client::round::{Outcome, Rounds, unlooked};
use farshore_client::shown::bytes;
use farshore_client::vms::{Vm, of_manager};
use farshore_command::refusal::Refusal;
use farshore_command::usage::cannot_print;
use farshore_config::control::Translated;
use farshore_config::plain;
use farshore_config::stats::Stats;
use serde_json::{Value, json};

use crate::args::{VmListArgs, VmStatArgs, VmTranslateArgs};

/// How long managers may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A virtual machine, and what has come of asking its manager.
type Found = (Vm, Outcome);

/// All virtual machines that this user may ask.
fn all() -> Result<Vec<Found>, Refusal> {
    let programs = programs::of_user(rustix::process::geteuid().as_raw());
    let programs = programs.map_err(|error| Refusal::failed(unlooked(&error)))?;
    let (vms, managers): (Vec<_>, Vec<_>) =
        programs.into_iter().filter_map(|program| Some((of_manager(program.pid).ok()??, program))).unzip();
    let outcomes = Rounds::default().ask(&managers, Instant::now() + PATIENCE);
    let mut found: Vec<Found> = vms.into_iter().zip(outcomes).filter(|(_, outcome)| *outcome != Outcome::Gone).collect();
    found.sort_by_key(|(vm, _)| vm.pid);
    Ok(found)
}

/// Prints all virtual machines.
///
/// # Errors
/// Standard output cannot be written (1).
pub fn list(arguments: &VmListArgs) -> Result<u8, Refusal> {
    let found = all()?;
    let text = if arguments.json { format!("{:#}\n", Value::Array(found.iter().map(object).collect())) } else { table(&found) };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| cannot_print(&error))?;
    Ok(0)
}

fn table(found: &[Found]) -> String {
    let head = ["PID", "NAME", "MANAGER", "LEVEL", "LIMIT", "RESIDENT", "MEMORY", "OUT"].map(String::from).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(found.iter().map(row)).collect();
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..8).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn row((vm, outcome): &Found) -> Vec<String> {
    let first = [vm.pid.to_string(), vm.name.clone(), vm.manager.to_string()];
    let rest = match outcome {
        Outcome::Answered(stats) => {
            vec![
                level(stats),
                bytes(stats.memory_limit_bytes),
                bytes(stats.resident_bytes),
                bytes(stats.managed_bytes),
                bytes(out(stats)),
            ]
        }
        Outcome::Refused(why) | Outcome::Unasked(why) => vec![plain(why)],
        _ => vec!["no answer: is it stopped?".into()],
    };
    first.into_iter().chain(rest).collect()
}

fn object((vm, outcome): &Found) -> Value {
    let mut object = json!({ "pid": vm.pid, "name": vm.name, "manager": vm.manager });
    match outcome {
        Outcome::Answered(stats) => {
            for (name, value) in [
                ("limit_bytes", stats.memory_limit_bytes),
                ("resident_bytes", stats.resident_bytes),
                ("managed_bytes", stats.managed_bytes),
                ("out_bytes", out(stats)),
            ] {
                object[name] = value.into();
            }
            object["level"] = level(stats).into();
            object["policy"] = plain(&stats.policy).into();
        }
        Outcome::Refused(why) | Outcome::Unasked(why) => object["why"] = plain(why).into(),
        _ => object["why"] = "no answer: is it stopped?".into(),
    }
    object
}

/// How the limit comes about.
fn level(stats: &Stats) -> String {
    let percent = |ppm: u64| ppm as f64 / 10_000.0;
    match (&stats.budget, &stats.autopilot) {
        (Some(budget), _) => format!("budget {}", plain(&budget.name)),
        (None, Some(it)) => format!("slowdown {:.1} of {} %", percent(it.measured_ppm), percent(it.target_ppm)),
        (None, None) => "fixed".into(),
    }
}

fn out(stats: &Stats) -> u64 {
    stats.spaces.iter().map(|space| space.used_bytes).fold(0, u64::saturating_add)
}

/// Becomes `farshore stat` of a virtual machine.
///
/// # Errors
/// There is no such one (1), or `farshore` cannot be run.
pub fn stat(arguments: &VmStatArgs, farshore: Option<PathBuf>) -> Result<u8, Refusal> {
    let mut words = vec!["stat".to_owned()];
    words.extend(arguments.json.then(|| "--json".into()));
    words.extend(arguments.watch.iter().flat_map(|seconds| ["--watch".into(), seconds.clone()]));
    words.push(manager(&arguments.vm)?.to_string());
    become_farshore(farshore, &words)
}

/// Becomes `farshore set` of a virtual machine.
///
/// # Errors
/// There is no such one (1), or `farshore` cannot be run.
pub fn set(vm: &str, settings: &[String], farshore: Option<PathBuf>) -> Result<u8, Refusal> {
    let words: Vec<String> = ["set".to_owned(), manager(vm)?.to_string()].into_iter().chain(settings.iter().cloned()).collect();
    become_farshore(farshore, &words)
}

/// Prints where the guest of a virtual machine has a virtual address.
///
/// # Errors
/// There is no such virtual machine, or it cannot tell (1).
pub fn translate(arguments: &VmTranslateArgs) -> Result<u8, Refusal> {
    let found = Client::connect(manager(&arguments.vm)?)?.translate(arguments.address)?;
    let text = if arguments.json { format!("{:#}\n", json!(found)) } else { translations(&found) };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| cannot_print(&error))?;
    Ok(0)
}

fn translations(found: &[Translated]) -> String {
    let line = |root: &str, physical: &str, host: &str, page: &str| format!("{root:<16}  {physical:<16}  {host:<16}  {page}\n");
    let row = |it: &Translated| {
        let host = it.host.map_or("-".into(), |host| format!("{host:x}"));
        line(&format!("{:x}", it.root), &format!("{:x}", it.physical), &host, &bytes(it.bytes))
    };
    std::iter::once(line("ROOT", "PHYSICAL", "HOST", "PAGE")).chain(found.iter().map(row)).collect()
}

fn become_farshore(farshore: Option<PathBuf>, words: &[String]) -> Result<u8, Refusal> {
    let farshore = farshore.unwrap_or_else(|| "farshore".into());
    let error = Command::new(&farshore).args(words).exec();
    Err(Refusal::not_executable(format!("cannot run '{}' ({error}): is Farshore installed completely?", farshore.display())))
}

/// The manager of the virtual machine that the user means.
fn manager(wanted: &str) -> Result<u32, Refusal> {
    let found: Vec<Vm> = all()?.into_iter().map(|(vm, _)| vm).collect();
    chosen(wanted, &found).map_err(Refusal::failed)
}

fn chosen(wanted: &str, found: &[Vm]) -> Result<u32, String> {
    let number = wanted.parse::<u32>().ok();
    let by_number = found.iter().find(|vm| number.is_some_and(|pid| pid == vm.pid || pid == vm.manager));
    if let Some(vm) = by_number {
        return Ok(vm.manager);
    }
    let named: Vec<&Vm> = found.iter().filter(|vm| vm.name == wanted).collect();
    match &named[..] {
        [one] => Ok(one.manager),
        [] => Err(format!("there is no virtual machine '{wanted}' under Farshore, or not of this user: see 'farshore vm list'")),
        several => {
            let pids: Vec<String> = several.iter().map(|vm| vm.pid.to_string()).collect();
            Err(format!(
                "{} virtual machines are called '{wanted}': give the process of one ({})",
                several.len(),
                pids.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_config::stats::{Autopilot, Budget, Space};

    fn vm(pid: u32, name: &str) -> Vm {
        Vm { pid, started: 1, manager: pid + 1, name: name.into() }
    }

    #[test]
    fn a_virtual_machine_is_named_by_number_or_name() {
        let found = [vm(10, "one"), vm(20, "two"), vm(30, "two"), vm(40, "10")];
        for (wanted, manager) in [("10", 11), ("11", 11), ("one", 11), ("20", 21)] {
            assert_eq!(chosen(wanted, &found), Ok(manager), "{wanted}");
        }
        assert!(
            chosen("two", &found).unwrap_err().contains("2 virtual machines are called 'two': give the process of one (20, 30)")
        );
        assert!(chosen("three", &found).unwrap_err().contains("no virtual machine 'three'"));
    }

    #[test]
    fn each_address_space_has_its_row() {
        let one = Translated { root: 0x1000, physical: 0x5008, host: Some(0x7f00_0000_5008), bytes: 4096 };
        let text = translations(&[one, Translated { host: None, bytes: 2 << 20, ..one }]);
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect();
        assert_eq!(rows[1..], [["1000", "5008", "7f0000005008", "4.0 KiB"], ["1000", "5008", "-", "2.0 MiB"]]);
    }

    #[test]
    fn each_level_has_its_row() {
        let mut stats = Stats {
            memory_limit_bytes: 64 << 20,
            spaces: vec![Space { used_bytes: 4096, ..Space::default() }],
            ..Stats::default()
        };
        let of = |stats: &Stats| row(&(vm(10, "one"), Outcome::Answered(Box::new(stats.clone())))).join("|");
        assert_eq!(of(&stats), "10|one|11|fixed|64.0 MiB|0 B|0 B|4.0 KiB");
        stats.autopilot = Some(Autopilot { target_ppm: 50_000, measured_ppm: 26_000, ..Autopilot::default() });
        assert!(of(&stats).contains("|slowdown 2.6 of 5 %|"));
        stats.budget = Some(Budget { name: "guests".into(), ..Budget::default() });
        assert!(of(&stats).contains("|budget guests|"));
        assert_eq!(
            table(&[(vm(10, "one"), Outcome::Silent)]).lines().nth(1),
            Some("10   one   11       no answer: is it stopped?")
        );
        let told = object(&(vm(10, "one"), Outcome::Answered(Box::new(stats))));
        assert_eq!((&told["limit_bytes"], &told["level"], &told["pid"]), (&json!(64 << 20), &json!("budget guests"), &json!(10)));
    }
}
