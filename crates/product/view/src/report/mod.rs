//! `farshore report`: one page of a recording.
//!
//! | module | what it does |
//! |---|---|
//! | [`seen`] | goes through the file twice: what there is, then counts by place, time, mapping and instruction |
//! | [`code`] | functions and lines of instructions, as a tree |
//! | [`names`] | what they are, found out by processes of their own |
//! | [`symbols`] | the same from one file, which is not believed |
//! | [`policies`] | what each replacement policy would have read |
//! | [`page`] | the page, and the data in it |

pub mod code;
pub mod names;
pub mod page;
pub mod policies;
pub mod seen;
pub mod symbols;

use std::fs::OpenOptions;
use std::io::{BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use farshore_command::refusal::Refusal;
use farshore_command::regular;

use crate::args::ReportArgs;
use crate::record::file::Reader;
use crate::record::line;

/// Makes the page.
///
/// # Errors
/// The recording cannot be read, or the page not be written.
pub fn report(arguments: &ReportArgs) -> Result<u8, Refusal> {
    let place = arguments.file.display();
    let wrong = |why: String| Refusal::failed(format!("cannot report of '{place}': {why}"));
    let open = || {
        // It is read twice.
        let (file, _) = regular::open(&arguments.file).map_err(|why| wrong(format!("{why}")))?;
        Reader::new(BufReader::new(file)).map_err(wrong)
    };
    let found = seen::Found::of(open()?).map_err(wrong)?;
    let mut seen = seen::Seen::of(open()?, found);
    let policies = policies::Policies::of(std::mem::take(&mut seen.recording), &seen);
    let others = names::Others::default();
    let flame = code::flame(&seen, |asked| others.ask(asked));
    let page = page::page(&seen, &flame, &policies);
    match arguments.output.as_deref() {
        Some(path) if path.as_os_str() == "-" => crate::print(&page)?,
        other => {
            // A page tells what its recording tells, so it is for its user alone, too.
            let (path, written) = match other {
                Some(path) => (path.to_path_buf(), write_to(path, page.as_bytes())),
                None => {
                    let mut path = arguments.file.clone().into_os_string();
                    path.push(".html");
                    let path = PathBuf::from(path);
                    // The directory may be that of somebody else, who has a link there.
                    let written = regular::replace(&path, page.as_bytes());
                    (path, written)
                }
            };
            written.map_err(|why| {
                Refusal::failed(format!("cannot write '{}' ({why}): name another file with --output", path.display()))
            })?;
            eprintln!("{}", line(&format!("wrote '{}'", path.display())));
        }
    }
    if !seen.found.broken.is_empty() {
        eprintln!("{}", line(&format!("'{place}' is not whole ({}): the page shows what is before", seen.found.broken)));
    }
    Ok(0)
}

/// Writes to what the user has named, whatever it is.
fn write_to(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::file::tests::{entries, file};
    use farshore_replay::recorded::Recording;

    fn made(bytes: &[u8]) -> Result<String, String> {
        with_policies(bytes, policies::Policies::of)
    }

    fn with_policies(
        bytes: &[u8],
        policies: impl Fn(Recording, &seen::Seen) -> Result<policies::Policies, &'static str>,
    ) -> Result<String, String> {
        let found = seen::Found::of(Reader::new(bytes)?)?;
        let mut seen = seen::Seen::of(Reader::new(bytes)?, found);
        let policies = policies(std::mem::take(&mut seen.recording), &seen);
        let flame = code::flame(&seen, |asked| {
            let mut answer = names::Answer::default();
            names::look_up(asked, symbols::Limits::default(), &mut |line| {
                answer.hear(line, asked);
            });
            answer
        });
        Ok(page::page(&seen, &flame, &policies))
    }

    /// The data in a page.
    fn data(page: &str) -> serde_json::Value {
        let (_, rest) = page.split_once("id=\"data\">").expect("there is data");
        let (text, _) = rest.split_once("</script>").expect("it ends");
        serde_json::from_str(text).expect("it is JSON")
    }

    #[test]
    fn names_are_escaped() {
        let page = made(&file(&entries())).expect("it is whole");
        assert!(!page.contains("<b>") && !page.contains("<x>"), "{page}");
        assert!(page.contains("./a &lt;b&gt;&amp;\u{fffd}"), "{page}");
        let data = data(&page);
        assert_eq!(data["program"], "./a <b>&\u{fffd}");
        assert_eq!((&data["counts"]["faults"], &data["lost"], &data["end"]), (&1.into(), &u64::MAX.into(), &"stopped".into()));
        assert_eq!(data["code"][0]["path"][0], "/bin/<x>");
    }

    #[test]
    fn a_recording_that_is_cut_off_or_damaged_is_shown_up_to_there() {
        // All policies over each of these would take minutes.
        let made = |bytes: &[u8]| with_policies(bytes, |_, _| Err("it is not asked"));
        let whole = file(&entries());
        let mut shown = 0;
        for length in 0..whole.len() {
            if let Ok(page) = made(&whole[..length]) {
                assert!(page.contains("id=\"broken\"") && data(&page)["end"] == "cut off", "{length}");
                shown += 1;
            }
        }
        // A bit of each byte: the reader has a test with all of them.
        for byte in 0..whole.len() {
            let (mut other, bit) = (whole.clone(), byte % 8);
            other[byte] ^= 1 << bit;
            assert!(made(&other).map_or_else(|why| !why.is_empty(), |page| page.contains("id=\"broken\"")), "{byte}, {bit}");
        }
        assert!(shown > whole.len() / 2, "{shown} of {}", whole.len());
        assert!(made(&file(&entries()[1..])).is_err_and(|why| why.contains("no program")));
    }

    #[test]
    fn of_an_event_no_more_is_looked_at_than_there_can_be() {
        use crate::record::file::{Entry, Happened, What};
        let all = |what, ns| {
            Entry::Happened(Happened { what, detail: 0, ns, address: 1 << 30, pages: u64::MAX, thread: 0, instruction: 0 })
        };
        let told = [entries()[0].clone(), all(What::Evicted, 1 << 41), all(What::Fetched, 1 << 42)];
        let data = data(&made(&file(&told)).expect("it can be read"));
        let returns =
            data["distances"].as_array().expect("there are some").iter().map(|it| it["returns"].as_f64().unwrap_or(0.0));
        assert_eq!((returns.sum::<f64>(), &data["counts"]["fetched"]), (512.0, &u64::MAX.into()));
    }

    #[test]
    fn places_are_bounded_and_a_sweep_is_one() {
        use crate::record::file::{Entry, Happened, What};
        let fault = |n: u64, address| {
            Entry::Happened(Happened { what: What::Fault, detail: 0, ns: n, address, pages: 1, thread: 1, instruction: 0 })
        };
        let begin = entries()[0].clone();
        let Entry::Program { ns, .. } = begin else { panic!("it is the program") };
        // All over the addresses that there are: as many places as are kept at most.
        let wide: Vec<Entry> = std::iter::once(begin.clone()).chain((0..200_000).map(|n| fault(ns + n, n << 30))).collect();
        let all = data(&made(&file(&wide)).expect("it can be read"));
        assert!(all["heat"].as_array().is_some_and(|rows| rows.len() <= seen::ROWS), "{}", all["heat"]);
        assert_eq!(all["counts"]["faults"], 200_000);
        // In order: the row with the faults goes down with time.
        let sweep: Vec<Entry> =
            std::iter::once(begin).chain((0..8192).map(|n| fault(ns + n * 1000, (1 << 40) + n * 4096))).collect();
        let all = data(&made(&file(&sweep)).expect("it can be read"));
        let rows = all["heat"].as_array().expect("there are rows");
        let middle = |row: &serde_json::Value| {
            let cells = row["faults"].as_array().expect("there are cells").iter().enumerate();
            let (sum, count) = cells.fold((0, 0), |(sum, count), (n, cell)| {
                (sum + n as u64 * cell.as_u64().unwrap_or(0), count + cell.as_u64().unwrap_or(0))
            });
            sum / count
        };
        assert!(rows.len() > 100 && rows.iter().map(middle).is_sorted(), "{}", rows.len());
    }
}
