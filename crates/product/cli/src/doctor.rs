//! `farshore doctor`: what this kernel and this user can do, and how to mend what is missing.

mod measure;

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process;

use farshore_client::shown::bytes;
use farshore_command::refusal::{FAILED, Refusal};
use farshore_command::swap;
use farshore_config::{SwapSpec, plain};
use farshore_sites::table::Table;
use farshore_sites::{Image, NAMES, is_named};
use farshore_sys::probe::{Needed, Probe, probe_all};
use rustix::fs::{Mode, OFlags};
use serde_json::json;

use crate::args::DoctorArgs;
use crate::{library, print};

/// One thing that was looked at.
#[derive(Debug)]
struct Finding {
    name: String,
    /// What was found, or what is wrong.
    result: Result<String, String>,
    /// `None`: Farshore cannot run without it; else what it costs to be without it.
    without: Option<String>,
    /// How to mend it.
    advice: String,
}

impl Finding {
    fn required(name: &str, result: Result<String, String>, advice: &str) -> Self {
        Finding { name: name.into(), result, without: None, advice: advice.into() }
    }

    fn optional(name: &str, result: Result<String, String>, without: &str, advice: &str) -> Self {
        Finding { name: name.into(), result, without: Some(without.into()), advice: advice.into() }
    }

    fn stops(&self) -> bool {
        self.result.is_err() && self.without.is_none()
    }
}

impl From<Probe> for Finding {
    fn from(probe: Probe) -> Self {
        let without = match probe.needed {
            Needed::Required => None,
            Needed::Optional(without) => Some(without.to_string()),
        };
        Finding { name: probe.name.to_string(), result: probe.result, without, advice: probe.advice }
    }
}

/// Prints what was found; the exit status says whether `farshore run` can work.
///
/// # Errors
/// Standard output cannot be written, or the swap space to look at has no usable name.
pub fn doctor(arguments: &DoctorArgs) -> Result<u8, Refusal> {
    let mut findings: Vec<Finding> = probe_all().into_iter().map(Finding::from).collect();
    findings.push(find_library());
    findings.extend(library::find().ok().map(|path| knows_libc(&path)));
    findings.extend(encryption());
    for spec in specs(arguments)? {
        let before = findings.len();
        look_at_swap(&spec, &mut findings);
        if arguments.measure && !findings[before..].iter().any(Finding::stops) {
            findings.extend(measured(&spec));
        }
    }
    let usable = !findings.iter().any(Finding::stops);
    let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    print(&if arguments.json { as_json(&findings, usable) } else { as_table(&findings, usable, colour) })?;
    Ok(if usable { 0 } else { FAILED })
}

fn specs(arguments: &DoctorArgs) -> Result<Vec<SwapSpec>, Refusal> {
    let wrong = |error: farshore_config::ConfigError| Refusal::cannot_start(error.to_string());
    arguments.swap.iter().try_for_each(SwapSpec::check_supported).map_err(wrong)?;
    let asked = (!arguments.swap.is_empty()).then(|| arguments.swap.clone());
    farshore_config::with_default(asked).map_err(wrong)
}

fn find_library() -> Finding {
    let (result, advice) = match library::find() {
        Ok(path) => (Ok(path.display().to_string()), ""),
        Err(refusal) => (Err(refusal.text), ""),
    };
    Finding::required(library::FILE_NAME, result, advice)
}

/// glibc's dynamic linker, where the ABI says that it is.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// Whether the library has plans for this machine's libc and loader.
fn knows_libc(library: &Path) -> Finding {
    let read = |path: &Path| std::fs::read(path).map_err(|error| format!("'{}' cannot be read ({error})", path.display()));
    let look = || {
        let bytes = read(library)?;
        let table = Table::in_file(&bytes).ok_or("the library has no table of system calls")?;
        let files = linked_with(library)?;
        for path in &files {
            let file = read(path)?;
            let known = Image::of_file(&file).is_some_and(|image| image.build_id().is_some_and(|id| table.find(id).is_some()));
            if !known {
                return Err(format!("the library was built for another '{}'", path.display()));
            }
        }
        if files.is_empty() { Err(format!("{LOADER} loads no glibc")) } else { Ok("the library knows this machine's".into()) }
    };
    Finding::optional(
        "libc",
        look(),
        "a start takes some 2 ms more, for a search",
        "build Farshore on this machine, with this libc",
    )
}

/// The files of libc and the loader that programs get, and the library with them. This command has its own libc.
fn linked_with(library: &Path) -> Result<Vec<PathBuf>, String> {
    let output = process::Command::new(LOADER).arg("--list").arg(library).env_clear().output();
    let output = output.map_err(|error| format!("{LOADER} cannot be executed ({error})"))?;
    if !output.status.success() {
        return Err(format!("{LOADER} --list fails: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    // "libc.so.6 => /lib/libc.so.6 (0x1000)", and "/lib64/ld-linux-x86-64.so.2 (0x2000)".
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(path).filter(|path| is_named(&path.to_string_lossy(), NAMES)).collect())
}

/// What `--encrypt` needs: a page of locked memory, and, to be fast, AES instructions.
fn encryption() -> [Finding; 2] {
    const PAGE: u64 = 4096;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let locked = match limit {
        Some(limit) if limit < PAGE && !rustix::process::geteuid().is_root() => {
            Err(format!("the limit is {} (RLIMIT_MEMLOCK)", bytes(limit)))
        }
        Some(limit) => Ok(format!("up to {}", bytes(limit))),
        None => Ok("without a limit".to_string()),
    };
    let instructions = if std::arch::is_x86_feature_detected!("aes") { Ok("there".into()) } else { Err("not there".into()) };
    [
        Finding::optional("locked memory", locked, "no --encrypt", "ulimit -l 64, or memlock in /etc/security/limits.conf"),
        Finding::optional(
            "AES instructions",
            instructions,
            "--encrypt takes some 50 us a page instead of 1",
            "use a processor that has them, or let the virtual machine have them",
        ),
    ]
}

/// Looks at a swap space: can it be used, and how well.
fn look_at_swap(spec: &SwapSpec, findings: &mut Vec<Finding>) {
    if let SwapSpec::Mirror(copies) = spec {
        return copies.iter().for_each(|copy| look_at_swap(copy, findings));
    }
    let name = format!("swap {spec}");
    if let Err(refusal) = swap::check(spec) {
        // It says what to do.
        return findings.push(Finding::required(&name, Err(refusal.text), ""));
    }
    if matches!(spec, SwapSpec::Dir(_) | SwapSpec::File { .. } | SwapSpec::Dev { .. }) {
        findings.push(Finding::required(&format!("{name}: what stays"), Ok(what_stays(spec).into()), ""));
    }
    let folder = match spec {
        SwapSpec::Dir(path) => path.as_path(),
        SwapSpec::File { path, .. } => path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        SwapSpec::Dev { .. } => {
            let seen = "a block device; whether it is free is seen when it is taken";
            return findings.push(Finding::required(&name, Ok(seen.into()), ""));
        }
        SwapSpec::Nbd(_) => {
            let seen = "an export of a server, encrypted; whether it can be used is seen when a program starts";
            return findings.push(Finding::required(&name, Ok(seen.into()), ""));
        }
        SwapSpec::Redis(_) => {
            let seen = "keys of a server or of a Cluster, encrypted; whether they can be used is seen when a program starts";
            return findings.push(Finding::required(&name, Ok(seen.into()), ""));
        }
        _ => return findings.push(Finding::required(&name, Ok("lies in RAM".into()), "")),
    };
    let room = swap::room(folder).map_or_else(|| "room not known".into(), |room| format!("{} free", bytes(room)));
    findings.push(Finding::required(&name, Ok(room), ""));
    let file = nameless(folder);
    let direct = match &file {
        Ok(file) => try_direct(file).map(|()| "one page written past the page cache".to_string()),
        Err(why) => Err(why.clone()),
    };
    findings.push(Finding::optional(
        &format!("{name}: O_TMPFILE"),
        file.map(|_| "a file without a name".into()),
        "the swap file has a name for a moment, until it is removed",
        "use a directory on ext4, xfs or btrfs",
    ));
    findings.push(Finding::optional(
        &format!("{name}: O_DIRECT"),
        direct,
        "cold pages go through the page cache, which takes RAM itself",
        "use a directory on ext4, xfs or btrfs",
    ));
}

/// What a page costs that the space has.
fn measured(spec: &SwapSpec) -> Vec<Finding> {
    let found = |(what, text): (&str, String)| Finding::required(&format!("swap {spec}: {what}"), Ok(text), "");
    match measure::measure(spec) {
        Ok(lines) => lines.into_iter().map(found).collect(),
        Err(why) => vec![Finding::required(&format!("swap {spec}: measured"), Err(why), "")],
    }
}

/// What there is of a program in a swap space after its end.
fn what_stays(spec: &SwapSpec) -> &'static str {
    match spec {
        SwapSpec::Dev { .. } => {
            "cold pages, as plain text, until they are overwritten; with --encrypt, or if programs that it starts share it, noise"
        }
        _ => "no file; cold pages, as plain text, in free blocks of the disk; with --encrypt noise",
    }
}

/// A file without a name in `folder`; it is gone when it is closed.
fn nameless(folder: &Path) -> Result<OwnedFd, String> {
    let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| errno.to_string())
}

/// One page, as direct I/O wants it to lie.
#[repr(align(4096))]
struct Page([u8; 4096]);

/// Writes one page with `O_DIRECT`. Some file systems take the flag and refuse the write.
fn try_direct(file: &OwnedFd) -> Result<(), String> {
    let refused = |errno: rustix::io::Errno| errno.to_string();
    let flags = rustix::fs::fcntl_getfl(file.as_fd()).map_err(refused)?;
    rustix::fs::fcntl_setfl(file.as_fd(), flags | OFlags::DIRECT).map_err(refused)?;
    let page = Page([0; 4096]);
    match rustix::io::pwrite(file.as_fd(), &page.0, 0) {
        Ok(4096) => Ok(()),
        Ok(count) => Err(format!("only {count} bytes of a page were written")),
        Err(errno) => Err(errno.to_string()),
    }
}

fn as_json(findings: &[Finding], usable: bool) -> String {
    let rows: Vec<serde_json::Value> = findings
        .iter()
        .map(|finding| {
            let (ok, detail) = match &finding.result {
                Ok(detail) => (true, detail),
                Err(detail) => (false, detail),
            };
            json!({
                "name": finding.name,
                "ok": ok,
                "required": finding.without.is_none(),
                "detail": detail,
                "without": finding.without,
                "advice": finding.advice,
            })
        })
        .collect();
    let mut text = format!("{:#}", json!({ "schema": 1, "usable": usable, "findings": rows }));
    text.push('\n');
    text
}

fn as_table(findings: &[Finding], usable: bool, colour: bool) -> String {
    let paint = |code: &str, word: &str| if colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_string() };
    let width = findings.iter().map(|finding| finding.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    let advice = |at: usize| findings.get(at).filter(|finding| finding.result.is_err()).map_or("", |finding| &finding.advice);
    for (at, finding) in findings.iter().enumerate() {
        let name = plain(&finding.name);
        match (&finding.result, &finding.without) {
            (Ok(detail), _) => {
                let _ = writeln!(text, "{}       {name:<width$}  {}", paint("32", "ok"), plain(detail));
            }
            (Err(why), None) => {
                let _ = writeln!(text, "{}  {name:<width$}  {}", paint("1;31", "MISSING"), plain(why));
            }
            (Err(why), Some(without)) => {
                let _ = writeln!(text, "{}  {name:<width$}  {}", paint("33", "missing"), plain(why));
                let _ = writeln!(text, "         {:<width$}  without it: {without}", "");
            }
        }
        // What mends several things that stand together is said once, behind the last of them.
        if !advice(at).is_empty() && advice(at) != advice(at + 1) {
            let _ = writeln!(text, "         {:<width$}  to mend it: {}", "", advice(at));
        }
    }
    let verdict = if usable {
        paint("1;32", "'farshore run' can work here.")
    } else {
        paint("1;31", "'farshore run' cannot work here: mend what is MISSING.")
    };
    let _ = writeln!(text, "\n{verdict}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Finding> {
        vec![
            Finding::required("kernel", Ok("6.18".into()), "none"),
            Finding::optional("move", Err("no such ioctl".into()), "pages are copied", "use Linux 6.8"),
            Finding::required("userfaultfd", Err("not permitted".into()), "sysctl"),
        ]
    }

    #[test]
    fn a_library_without_a_table_does_not_know_libc() {
        let missing = |path: &Path| knows_libc(path).result.expect_err("it has none");
        let itself = std::env::current_exe().expect("where this test lies");
        assert_eq!(missing(&itself), "the library has no table of system calls");
        assert!(missing(Path::new("/no/such/library")).starts_with("'/no/such/library' cannot be read"));
        assert!(!knows_libc(&itself).stops());
    }

    #[test]
    fn the_table_tells_what_is_needed_from_what_is_nice() {
        let text = as_table(&sample(), false, false);
        let expected = "\
ok       kernel       6.18
missing  move         no such ioctl
                      without it: pages are copied
                      to mend it: use Linux 6.8
MISSING  userfaultfd  not permitted
                      to mend it: sysctl

'farshore run' cannot work here: mend what is MISSING.
";
        assert_eq!(text, expected);
        assert!(as_table(&sample(), false, true).contains("\x1b[1;31mMISSING\x1b[0m"));
    }

    #[test]
    fn what_mends_several_things_is_said_once() {
        let lacks = |name: &str| Finding::optional(name, Err("no".into()), "it is slower", "use another disk");
        let text = as_table(&[lacks("O_TMPFILE"), lacks("O_DIRECT")], true, false);
        assert!(text.matches("to mend it").count() == 1 && text.contains("slower\n                    to mend it"), "{text}");
        let mut findings = Vec::new();
        look_at_swap(&SwapSpec::Dir("/nonexistent/here".into()), &mut findings);
        let text = as_table(&findings, false, false);
        assert!(text.contains("make it, or name another") && !text.contains("to mend it"), "{text}");
    }

    #[test]
    fn json_says_the_same() {
        let value: serde_json::Value = serde_json::from_str(&as_json(&sample(), false)).expect("it is JSON");
        assert_eq!((value["schema"].as_u64(), value["usable"].as_bool()), (Some(1), Some(false)));
        assert_eq!(value["findings"][1]["without"], "pages are copied");
        assert_eq!(value["findings"][2]["required"], true);
    }

    #[test]
    fn what_stays_in_a_swap_space_is_told() {
        let device = SwapSpec::Dev { path: "/dev/null".into(), size: None, force: false };
        for spec in [SwapSpec::Dir(std::env::temp_dir()), device] {
            let mut findings = Vec::new();
            look_at_swap(&spec, &mut findings);
            let told = |finding: &Finding| finding.result.as_ref().is_ok_and(|text| text.contains("plain text"));
            // Of what is no device there is nothing to say.
            assert_eq!(findings.iter().any(told), matches!(spec, SwapSpec::Dir(_)), "{findings:?}");
        }
    }

    #[test]
    fn a_full_or_missing_swap_directory_stops() {
        let mut findings = Vec::new();
        look_at_swap(&SwapSpec::Dir("/nonexistent/here".into()), &mut findings);
        assert!(findings.iter().any(Finding::stops), "{findings:?}");
        let mut findings = Vec::new();
        look_at_swap(&SwapSpec::Dir(std::env::temp_dir()), &mut findings);
        assert!(!findings.iter().any(Finding::stops), "{findings:?}");
    }
}
