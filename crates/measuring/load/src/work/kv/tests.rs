//! Against servers that are not even there, or silent. Those that answer, rightly or wrongly, are in `tests/kv.rs`.

use std::io::Read;
use std::net::TcpListener;

use clap::Parser;
use farshore_load::workload::Workload;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    workload: Workload,
}

fn arguments(line: &str) -> workload::Kv {
    let words = ["x", "kv"].into_iter().chain(line.split(' '));
    match Line::try_parse_from(words).map(|line| line.workload) {
        Ok(Workload::Kv(args)) => args,
        other => panic!("{line}: {:?}", other.err()),
    }
}

#[test]
fn a_server_that_takes_requests_and_never_answers_is_waited_for_and_then_told() -> Result<(), String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || std::io::copy(&mut { stream }.by_ref().take(u64::MAX), &mut std::io::sink()));
        }
    });
    let args =
        arguments(&format!("--address {address} --size 64K --seconds 0.2 --warmup 0 --rate 2000 --connections 3 --threads 2"));
    let patience = Duration::from_millis(300);
    let said = Session::open(&args, patience)?.run(&mut Report::new(false)?).expect_err("it cannot be filled");
    assert!(said.contains("300ms"), "{said}");
    // The same under load.
    let mut session = Session::open(&args, patience)?;
    let loaded = session.load(&mut Report::new(false)?);
    assert_eq!((loaded.record.operations(), loaded.answers, loaded.broken), (0, 0, false));
    let lines = loaded.wrong.lines("under load");
    assert!(lines.len() == 1 && lines[0].starts_with("under load: requests unanswered: "), "{lines:?}");
    let count = lines[0].split([':', ';']).nth(2).and_then(|count| count.trim().parse::<u64>().ok());
    // 2000 a second for 0.2 s; six standard deviations.
    assert!(count.is_some_and(|count| count.abs_diff(400) < 120), "{lines:?}");
    Ok(())
}

#[test]
fn more_requests_than_may_be_under_way_are_not_sent_and_that_is_wrong() -> Result<(), String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let args = arguments(&format!("--address {address} --size 64K --seconds 0.5 --warmup 0 --rate 400000 --connections 2"));
    // Nobody reads at all: sockets fill up, then the buffers.
    let mut session = Session::open(&args, Duration::from_millis(100))?;
    let loaded = session.load(&mut Report::new(false)?);
    let lines = loaded.wrong.lines("under load");
    assert!(lines.iter().any(|line| line.contains("cannot keep up")), "{lines:?}");
    assert_eq!(loaded.open, 100_000);
    Ok(())
}

#[test]
fn where_nobody_listens_the_address_is_told() {
    let args = arguments("--address /nowhere/redis.sock --size 64K");
    let said = Session::open(&args, PATIENCE).err().unwrap_or_default();
    assert!(said.contains("/nowhere/redis.sock") && !said.contains('\n'), "{said}");
}
