//! `farshore doctor --measure`: how long a page takes that a swap space has, and how many come a second.
//!
//! A program of Farshore's (`farshore-view`) runs under `farshore run` with that swap space alone, and touches four times the memory that it may have. So what
//! is measured is what programs get: the fault, the space's own work and its device, encryption and all.

use std::ffi::OsString;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use farshore_client::shown::{bytes, duration};
use farshore_config::{ServerPlace, SwapSpec, plain};
use serde_json::Value;

/// The program, and what makes it one (`crates/product/view/src/touch.rs`).
const PROGRAM: &str = "farshore-view";
const WORD: &str = "touch-pages";
/// Its memory and its data. A pool lies within the memory, and has what half of the data leaves.
const LIMIT: &str = "16M";
const LIMIT_WITH_POOL: &str = "48M";
const MIB: &str = "64";
/// Connections that are made to see how far away a server is, and how long each may take.
const CONNECTIONS: usize = 9;
const PATIENCE: Duration = Duration::from_secs(2);

/// Measures the space: pairs of a name and what was found.
///
/// # Errors
/// What the run says, in a line.
pub fn measure(spec: &SwapSpec) -> Result<Vec<(&'static str, String)>, String> {
    let mut found: Vec<(&str, String)> = round_trip(spec).map(|text| ("round trip", text)).into_iter().collect();
    let farshore = std::env::current_exe().map_err(|error| format!("cannot find out where this command is ({error})"))?;
    let swap: OsString = spec.to_string().into();
    let memory = if matches!(spec, SwapSpec::Ram { compress: Some(_), .. }) { LIMIT_WITH_POOL } else { LIMIT };
    let mut command = Command::new(&farshore);
    command.args(["run", "--memory", memory, "--swap"]).arg(swap).arg("--").arg(beside(&farshore)?).args([WORD, MIB]);
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("'farshore run' cannot be started ({error})"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(said
            .trim()
            .lines()
            .last()
            .map_or_else(|| format!("the run ended with {}", output.status), |line| plain(line).to_string()));
    }
    let touched: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("the run said something else ({error})"))?;
    found.extend(told(&touched));
    Ok(found)
}

/// The program that touches pages.
fn beside(farshore: &Path) -> Result<OsString, String> {
    let path = farshore.with_file_name(PROGRAM);
    match crate::program::executable(&path) {
        Ok(()) => Ok(path.into()),
        Err(refusal) => Err(refusal.text),
    }
}

/// The lines about what was measured.
fn told(touched: &Value) -> [(&'static str, String); 3] {
    let number = |key: &str| touched[key].as_f64().unwrap_or(0.0);
    let time = |key: &str| duration(number(key) as u64);
    let rate = |key: &str| format!("{}/s", bytes(number(key) as u64));
    // Of a program that needs a thousand such pages a second, one thread.
    let lost = number("median_ns") * 1000.0 / 1e9 * 100.0;
    [
        (
            "a page",
            format!(
                "{} (99 of 100: {}), {:.0} a second with one thread, {:.0} with eight",
                time("median_ns"),
                time("high_ns"),
                number("one"),
                number("eight")
            ),
        ),
        ("in order", format!("{} read, {} written at first", rate("in_order"), rate("written"))),
        ("expect", format!("a thread that needs 1,000 pages a second from there waits {lost:.0} % of its time")),
    ]
}

/// How long it takes to connect to a server by TCP, in the median: once there and back.
fn round_trip(spec: &SwapSpec) -> Option<String> {
    let server = match spec {
        SwapSpec::Nbd(export) => &export.server,
        SwapSpec::Redis(keys) => &keys.server,
        _ => return None,
    };
    let ServerPlace::Tcp { host, port } = server else { return None };
    let address = (host.as_str(), *port).to_socket_addrs().ok()?.next()?;
    let connect = || {
        let begun = Instant::now();
        TcpStream::connect_timeout(&address, PATIENCE).ok().map(|_| begun.elapsed())
    };
    let mut times: Vec<Duration> = (0..CONNECTIONS).map_while(|_| connect()).collect();
    times.sort_unstable();
    times.get(times.len() / 2).map(|median| format!("{} to connect", duration(median.as_nanos() as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::net::TcpListener;

    #[test]
    fn numbers_become_lines() {
        let touched =
            json!({"written": 2e8, "in_order": 1e9, "median_ns": 50_000, "high_ns": 120_000, "one": 19_000.4, "eight": 70_000.0});
        let lines = told(&touched).map(|(_, text)| text);
        assert_eq!(lines[0], "50.0 us (99 of 100: 120.0 us), 19000 a second with one thread, 70000 with eight");
        assert_eq!(lines[2], "a thread that needs 1,000 pages a second from there waits 5 % of its time");
    }

    #[test]
    fn a_server_has_a_distance() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let port = listener.local_addr().expect("it has an address").port();
        for kind in ["nbd", "redis"] {
            let spec: SwapSpec = format!("{kind}://127.0.0.1:{port}").parse().expect("it is one");
            assert!(round_trip(&spec).is_some_and(|text| text.ends_with("to connect")));
        }
        assert_eq!(round_trip(&"ram".parse().expect("it is one")), None);
    }
}
