//! The command `farshore-bench` by itself: whose it says it is, which `farshore` it measures, how it refuses. How it measures `tests/bench/test_bench.py` looks at.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use farshore_bench::compare;
use farshore_bench::result::Results;

const BENCH: &str = env!("CARGO_BIN_EXE_farshore-bench");

/// In place of `farshore`: it knows its version, runs programs as they are, and leaves the counters of one that fetched nothing.
const FARSHORE: &str = r#"#!/bin/sh
[ "$1" = --version ] && exec echo "farshore NAME"
while [ "$1" != -- ]; do
    case $1 in --stats=*) printf '%s' '{"schema": 1}' >"${1#--stats=}" ;; esac
    shift
done
shift
exec "$@"
"#;

fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.stdin(Stdio::null()).env_remove("FARSHORE_LOAD").env_remove("FARSHORE_SERVE").env_remove("FARSHORE_SWAP_DIR");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A `farshore` that calls itself so, with the load that is only looked for.
fn build(directory: &Path, name: &str) -> PathBuf {
    fs::create_dir_all(directory).unwrap();
    executable(&directory.join("farshore"), &FARSHORE.replace("NAME", name));
    executable(&directory.join("farshore-load"), "#!/bin/sh\n");
    directory.join("farshore")
}

#[test]
fn help_is_that_of_farshore_bench() {
    for (words, parts) in [
        (
            &["--help"][..],
            &["Usage: farshore bench WORKLOAD [OPTIONS]", "--against <TARGETS>", "Runs a workload, or a program of yours", "130"]
                [..],
        ),
        (&["-h"], &["Compare Farshore with Linux swap", "farshore bench --compare OLD.json NEW.json"]),
        (&["random", "--help"], &["Usage: farshore bench random [OPTIONS]", "--threads"]),
        (&["uthread", "--help"], &["farshore bench uthread"]),
        (&["paper", "--help"], &["farshore bench paper mage-9 --from results/paper/mage-9/raw.json", "--quick"]),
    ] {
        let called: [&[&str]; 2] = [&[], &["--farshore=/no/such/farshore"]];
        let shown = called.map(|first| {
            let output = command(BENCH).args(first).args(words).output().unwrap();
            assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{words:?}");
            text(&output.stdout)
        });
        assert!(parts.iter().all(|part| shown[0].contains(part)), "{words:?}: {}", shown[0]);
        assert!(shown[0] == shown[1] && !shown[0].contains("farshore-bench"), "{words:?}: {}", shown[0]);
    }
}

#[test]
fn what_is_wrong_is_one_line() {
    for (words, part) in [
        (&["walk"][..], "unknown word 'walk'"),
        (&["--bogus"], "unknown option '--bogus'"),
        (&["--version"], "unknown option '--version'"),
        (&["random", "--size", "1Q"], "--size: "),
        (&["random", "--rounds", "2", "--rounds", "3"], "--rounds is given twice"),
        (&["random", "--report", "a", "--results", "b"], "--report does not go with --results"),
        (&["random", "--farshore=/bin/true"], "unknown option '--farshore'"),
        (&["paper", "mage-99"], "no figure is called \"mage-99\": there are mage-5, "),
        (&["paper", "mage-9", "--against", "native"], "paper does not go with --against"),
        (&["paper", "--quick"], "--quick: name the figure, or all"),
        (&["paper", "mage-9", "--quick", "--from", "x"], "--quick does not go with --from"),
        (&[], "nothing to measure: name a workload (random,"),
    ] {
        let output = command(BENCH).args(words).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(125), 1), "{words:?}: {said}");
        assert!(said.starts_with("farshore: ") && said.contains(part), "{words:?}: {said}");
    }
}

#[test]
fn the_list_of_figures_needs_nothing() {
    let output = command(BENCH).arg("paper").output().unwrap();
    let shown = text(&output.stdout);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let names = farshore_bench::paper::all().map(|figure| figure.name);
    assert!(names.into_iter().all(|name| shown.lines().any(|line| line.starts_with(name))), "{shown}");
    for (words, part) in [
        (&["paper", "--from", "/nothing/raw.json"][..], "cannot read '/nothing/raw.json'"),
        (&["paper", "mage-9", "--from", "/dev/null"], "'/dev/null' holds no results of farshore bench"),
    ] {
        let output = command(BENCH).args(words).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.lines().count() == 1 && said.contains(part), "{words:?}: {said}");
    }
}

/// What comes of comparing `true` under `against`, with the command at `bench`.
fn measured(bench: &Path, first: &[&str], more: &[&str], path: &Path) -> (Results, Output) {
    let work = tempfile::tempdir().unwrap();
    let json = work.path().join("out.json");
    let mut command = command(bench);
    command
        .args(first)
        .args(more)
        .args(["--memory", "8M", "--rounds", "1", "--warm-up-rounds", "0", "--no-device", "--dir"])
        .arg(work.path());
    command.arg("--json").arg(&json).args(["--", "true", ""]).env("PATH", format!("{}:/usr/bin:/bin", path.display()));
    let output = command.output().unwrap();
    let results = compare::load(&json).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    (results, output)
}

/// The versions of the targets of `results`.
fn versions(results: &Results) -> Vec<&str> {
    let targets = results.experiments.iter().flat_map(|experiment| &experiment.targets);
    targets.map(|target| target.settings.get("version").map_or("none", String::as_str)).collect()
}

#[test]
fn it_measures_the_farshore_that_it_belongs_to() {
    let folder = tempfile::tempdir().unwrap();
    let places = ["caller", "beside", "path"].map(|name| folder.path().join(name));
    let farshores = places.each_ref().map(|place| build(place, place.file_name().unwrap().to_str().unwrap()));
    // By another process: a descriptor of ours for writing would go to what other tests start just then, and the file be busy.
    let bench = places[1].join("farshore-bench");
    assert!(Command::new("cp").arg(BENCH).arg(&bench).status().unwrap().success());
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&bench, &link).unwrap();
    let caller = format!("--farshore={}", farshores[0].display());
    let of = |bench: &Path, first: &[&str], more: &[&str]| {
        let (results, output) = measured(bench, first, more, &places[2]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        // As the user has written it, an empty word too.
        assert_eq!(results.command[..2], ["farshore", "bench"]);
        assert_eq!(results.command[results.command.len() - 3..], ["--", "true", ""]);
        assert!(!results.command.iter().any(|word| word.starts_with("--farshore")), "{:?}", results.command);
        versions(&results).join(" ")
    };
    let against = ["--against", "farshore"];
    assert_eq!(of(&bench, &[&caller], &against), "caller");
    assert_eq!(of(&bench, &[], &against), "beside");
    assert_eq!(of(&link, &[], &against), "beside");
    // An older build has no command for this beside it, and none is needed.
    let (old, new) = (places[2].display().to_string(), farshores[0].display().to_string());
    assert_eq!(of(&bench, &[&caller], &["--builds", &old, &new]), "caller path");
    fs::remove_file(&farshores[1]).unwrap();
    assert_eq!(of(&bench, &[], &against), "path");
}

#[test]
fn without_farshore_it_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let bench = folder.path().join("farshore-bench");
    assert!(Command::new("cp").arg(BENCH).arg(&bench).status().unwrap().success());
    let work = tempfile::tempdir().unwrap();
    let call = |load: Option<&Path>| {
        let mut command = command(&bench);
        command.args(["--memory", "8M", "--no-device", "--rounds", "1", "--against", "farshore", "--dir"]).arg(work.path());
        command.args(["--", "true"]).env("PATH", "/usr/bin:/bin").envs(load.map(|load| ("FARSHORE_LOAD", load)));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let said = call(None);
    assert!(said.lines().count() == 1 && said.contains("/farshore-load' is not there: build it (make build)"), "{said}");
    let said = call(Some(Path::new("/bin/true")));
    assert!(said.contains("/farshore' is no command that can be run"), "{said}");
    assert_eq!(fs::read_dir(work.path()).unwrap().count(), 0, "something is left");
}

/// A reader that has gone away ends it as it ends other commands, and not by an error in writing.
#[test]
fn a_reader_that_has_gone_away_ends_it_quietly() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(BENCH).arg("--help").stdout(writer).output().unwrap();
    assert_eq!((output.status.signal(), text(&output.stderr)), (Some(13), String::new()));
}
