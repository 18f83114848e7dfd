use super::*;
use farshore_config::stats::{Evictions, Faults, Swap};

fn journal() -> (tempfile::TempDir, Arc<Journal>) {
    let directory = tempfile::tempdir().unwrap();
    let journal = Arc::new(Journal::open(directory.path()).unwrap());
    (directory, journal)
}

fn place(directory: &Path) -> Place {
    Place {
        memory_bytes: 16 << 20,
        pool_bytes: 0,
        extra_bytes: 0,
        swap_bytes: 64 << 20,
        swap_files: 2,
        directory: directory.to_path_buf(),
    }
}

fn script(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn options(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(key, value)| ((*key).to_string(), (*value).to_string())).collect()
}

#[test]
fn the_command_line_has_everything() {
    let (directory, journal) = journal();
    let mut target =
        Farshore::new("/bin/farshore".into(), options(&[("evictors", "2")]), [("A".into(), "b".into())].into(), &journal);
    target.place = Some(place(directory.path()));
    let command = target.command(&["prog".into(), "--memory".into()]);
    let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let swap = format!("--swap=dir:{}", directory.path().display());
    let stats = format!("--stats={}", target.stats.display());
    assert_eq!(words, ["run", "--memory=16777216", &swap, &swap, &stats, "--evictors=2", "--", "prog", "--memory"]);
    assert!(command.get_envs().any(|(name, value)| name == "A" && value == Some("b".as_ref())));
    assert!(target.uses_device());
    target.options = options(&[("swap", "ram"), ("swap", "delay:1us")]);
    let command = target.command(&["prog".into()]);
    assert!(!command.get_args().any(|word| word == swap.as_str()));
    assert_eq!(target.settings()["swap"], "ram delay:1us");
    target.options = options(&[("swap", "dir"), ("swap", "dir,size=4M")]);
    let words: Vec<String> = target.command(&[]).get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let file = format!("--swap=file:{}/space-1,size=4194304", directory.path().display());
    assert_eq!(words[3..5], [swap, file]);
    assert!(is_on_device(&target.options, directory.path()));
}

#[test]
fn a_policy_is_attached_by_a_command_of_its_own() {
    let (directory, journal) = journal();
    let all = options(&[("attach", "csr,ahead=32"), ("prefetch", "none")]);
    let mut target = Farshore::new("/bin/farshore".into(), all, BTreeMap::new(), &journal);
    target.place = Some(place(directory.path()));
    let words = |command: Command| command.get_args().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>();
    let run = words(target.command(&["prog".into()]));
    assert!(run.contains(&"--prefetch=none".into()) && !run.iter().any(|word| word.contains("attach")), "{run:?}");
    assert_eq!(target.beside(77).map(words), Some(["policy", "csr", "77", "ahead=32"].map(String::from).to_vec()));
    for (text, attached) in [("{}", false), (r#"{"policies": [{"requests": 3}]}"#, true)] {
        fs::write(&target.stats, text).unwrap();
        let mut round = Round::default();
        target.after(&mut round);
        assert_eq!(round.wrong.iter().any(|why| why.starts_with("no policy was attached")), !attached, "{:?}", round.wrong);
    }
}

#[test]
fn another_limit_while_it_runs_is_what_its_promises_are_held_to() {
    let (directory, journal) = journal();
    let command = directory.path().join("farshore");
    script(&command, "#!/bin/sh\n[ \"$*\" = 'set 7 memory=33554432' ] && exit 0\necho 'farshore: no such process' >&2\nexit 1\n");
    let mut target = Farshore::new(command, Vec::new(), BTreeMap::new(), &journal);
    target.place = Some(place(directory.path()));
    target.before().unwrap();
    let why = target.set_memory(8, 1 << 20).unwrap_err();
    assert!(why.contains("1048576 bytes") && why.contains("no such process"), "{why}");
    target.set_memory(7, 32 << 20).unwrap();
    let wrong = |target: &mut Farshore, limit: u64| {
        fs::write(&target.stats, format!("{{\"schema\": 1, \"memory_limit_bytes\": {limit}}}")).unwrap();
        let mut round = Round::default();
        target.after(&mut round);
        round.wrong
    };
    assert_eq!(wrong(&mut target, 32 << 20), [""; 0]);
    assert_eq!(wrong(&mut target, (32 << 20) + 1).len(), 1);
    // The next run has its own again.
    target.before().unwrap();
    assert_eq!(wrong(&mut target, 32 << 20).len(), 1);
}

#[test]
fn ram_for_compressed_pages_is_for_pools_alone() {
    let (directory, _) = journal();
    let place = Place { pool_bytes: 4 << 20, ..place(directory.path()) };
    let limit = |all: &[(&str, &str)]| memory_bytes(&options(all), &place) >> 20;
    assert_eq!(limit(&[]), 16);
    assert_eq!(limit(&[("swap", "ram"), ("swap", "delay:1us")]), 16);
    assert_eq!(limit(&[("swap", "ram:lz4")]), 20);
    assert_eq!(limit(&[("swap", "ram:zstd,size=64M"), ("swap", "dir:/x")]), 20);
}

#[test]
fn swap_spaces_are_on_the_device_if_one_is() {
    let directory = tempfile::tempdir().unwrap();
    let dir = format!("dir:{}", directory.path().display());
    let file = format!("file:{}/swap,size=1G", directory.path().display());
    let on = |all: &[(&str, &str)]| is_on_device(&options(all), directory.path());
    assert!(on(&[]));
    assert!(on(&[("swap", "ram"), ("swap", &dir)]));
    assert!(on(&[("swap", &file)]));
    assert!(on(&[("swap", "ram:lz4"), ("swap", OWN_DIRECTORY)]));
    assert!(!on(&[("swap", "ram"), ("swap", "delay:1us"), ("swap", "dir:/proc")]));
}

#[test]
fn the_directory_of_this_command_has_a_short_name() {
    let (directory, journal) = journal();
    let mut target =
        Farshore::new("/bin/farshore".into(), options(&[("swap", "ram:lz4"), ("swap", "dir")]), BTreeMap::new(), &journal);
    target.place = Some(place(directory.path()));
    let command = target.command(&["true".into()]);
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let own = format!("--swap=dir:{}", place(directory.path()).directory.display());
    let swaps: Vec<_> = words.iter().filter(|word| word.starts_with("--swap")).collect();
    assert_eq!(swaps, ["--swap=ram:lz4", &own]);
}

#[test]
fn what_the_counters_tell_is_taken_over() {
    let (directory, journal) = journal();
    let mut target = Farshore::new("/bin/farshore".into(), Vec::new(), BTreeMap::new(), &journal);
    target.place = Some(place(directory.path()));
    let stats = Stats {
        memory_limit_bytes: 16 << 20,
        resident_bytes_peak: 15 << 20,
        faults: Faults { fetch: 7, zero: 1, rescue: 2, wait: 3, write_protect: 4 },
        swap: Swap { pages_in: 5, pages_out: 6, ..Swap::default() },
        ..Stats::default()
    };
    fs::write(&target.stats, stats.to_json()).unwrap();
    let mut round = Round::default();
    target.after(&mut round);
    let counted = round.counters;
    assert_eq!((counted.fetches, counted.other_faults, counted.pages_in, counted.pages_out), (7, 10, 5, 6));
    assert_eq!((round.peak_limited_bytes, round.wrong.len()), (15 << 20, 0));
    assert_eq!(round.stats.unwrap()["faults"]["rescue"], 2);
    assert!(!target.stats.exists());

    let broken = Stats {
        memory_limit_bytes: 17 << 20,
        resident_bytes_peak: 18 << 20,
        evictions: Evictions { synchronous: 2, ..Evictions::default() },
        swap: Swap { errors: 3, ..Swap::default() },
        ..Stats::default()
    };
    fs::write(&target.stats, broken.to_json()).unwrap();
    let mut round = Round::default();
    target.after(&mut round);
    assert_eq!(round.wrong.len(), 4, "{:?}", round.wrong);
}

#[test]
fn missing_counters_are_wrong_unless_the_run_failed() {
    let (directory, journal) = journal();
    let mut target = Farshore::new("/bin/farshore".into(), Vec::new(), BTreeMap::new(), &journal);
    target.place = Some(place(directory.path()));
    let mut round = Round::default();
    target.after(&mut round);
    assert_eq!(round.wrong, ["farshore left no counters (No such file or directory)"]);
    let mut round = Round { wrong: vec!["it was ended by SIGKILL".into()], ..Round::default() };
    target.after(&mut round);
    assert_eq!(round.wrong.len(), 1);
    fs::write(&target.stats, "{").unwrap();
    let mut round = Round::default();
    target.after(&mut round);
    assert!(round.wrong[0].contains("no JSON"), "{:?}", round.wrong);
}

#[test]
fn a_command_that_refuses_is_told_at_set_up() {
    let (directory, journal) = journal();
    let command = directory.path().join("farshore");
    let target = |command: &Path| Farshore::new(command.into(), Vec::new(), BTreeMap::new(), &journal);
    let why = target(&command).set_up(&place(directory.path())).unwrap_err();
    assert!(why.contains("is no command that can be run"), "{why}");
    script(
        &command,
        "#!/bin/sh\n[ \"$1\" = --version ] && { echo farshore 9.8; exit; }\necho 'farshore: no luck' >&2\nexit 125\n",
    );
    let mut refused = target(&command);
    assert_eq!(refused.set_up(&place(directory.path())).unwrap_err(), "farshore: no luck");
    assert!(refused.before().is_err());
    script(&command, "#!/bin/sh\n[ \"$1\" = --version ] && { echo farshore 9.8; exit; }\nexit 0\n");
    let mut taken = target(&command);
    taken.set_up(&place(directory.path())).unwrap();
    taken.before().unwrap();
    assert_eq!(taken.settings()["version"], "9.8");
}
