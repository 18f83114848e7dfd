use super::*;
use crate::result::{Round, TargetResult};
use std::collections::BTreeSet;

fn arguments(only: &[&str], local: &[f64]) -> FamiliesArgs {
    FamiliesArgs { only: only.iter().map(|text| (*text).to_string()).collect(), local: local.to_vec(), list: false }
}

/// Writes down what is made, with a peak for each native run.
struct Book {
    directory: tempfile::TempDir,
    peak: u64,
    made: Vec<(String, u64, Rounds, Vec<String>)>,
    first: Vec<Vec<OsString>>,
    left_out: Vec<String>,
}

impl Book {
    fn new(peak: u64) -> Book {
        Book { directory: tempfile::tempdir().unwrap(), peak, made: Vec::new(), first: Vec::new(), left_out: Vec::new() }
    }
}

impl Maker for Book {
    fn make(&mut self, experiment: &Experiment, rounds: Rounds) -> Result<Option<result::Experiment>, Failure> {
        let labels = spec::labels(&experiment.targets);
        self.made.push((experiment.name.clone(), experiment.memory_bytes, rounds, labels));
        let round = Round { number: 1, figure: Some(1.0), peak_resident_bytes: self.peak, ..Round::default() };
        let target = TargetResult { rounds: vec![round], ..TargetResult::default() };
        Ok(Some(result::Experiment { targets: vec![target], ..result::Experiment::default() }))
    }

    fn say(&mut self, _: &str) {}
}

impl Kitchen for Book {
    fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn make_first(&mut self, _: &str, words: &[OsString]) -> Result<(), String> {
        self.first.push(words.to_vec());
        Ok(())
    }

    fn leave_out(&mut self, name: &str, _: &str) {
        self.left_out.push(name.to_string());
    }
}

#[test]
fn every_row_can_be_read_and_names_differ() {
    let names: BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), ROWS.len());
    for row in ROWS {
        let made = subject(row, Path::new("/d")).unwrap_or_else(|why| panic!("{}: {why}", row.name));
        if let Subject::Workload(workload) = made {
            assert!(workload.data_bytes() >> 20 <= row.about_mib, "{}: its data are more than its peak", row.name);
        }
    }
    let targets = Families::new(&arguments(&[], &[50.0]), &[]).unwrap().targets;
    assert_eq!(
        spec::labels(&targets),
        ["farshore", "ram:lz4", "ram:auto", "linux-swap", "zram:pool=counted", "zswap:pool=counted"]
    );
}

#[test]
fn limits_are_parts_of_the_native_peak() {
    let families =
        Families::new(&arguments(&["tree"], &[75.0, 25.0]), &spec::parse_list("farshore,linux-swap").unwrap()).unwrap();
    let mut book = Book::new(200 << 20);
    families.run(&mut book).unwrap();
    let made: Vec<(&str, u64, Rounds, usize)> =
        book.made.iter().map(|(name, memory, rounds, labels)| (name.as_str(), memory >> 20, *rounds, labels.len())).collect();
    let wanted = [
        ("tree, 100 % local", 0, Rounds::One, 1),
        ("tree, 75 % local", 150, Rounds::All, 2),
        ("tree, 25 % local", 50, Rounds::All, 2),
    ];
    assert_eq!(made, wanted);
    assert!(book.left_out.is_empty());
}

#[test]
fn a_row_without_a_peak_is_left_out() {
    let mut book = Book::new(0);
    Families::new(&arguments(&["tree", "grid"], &[50.0]), &[]).unwrap().run(&mut book).unwrap();
    assert_eq!(book.left_out, ["tree", "grid"]);
    assert_eq!(book.made.len(), 2);
}

#[test]
fn a_programs_file_is_written_and_what_it_needs_is_made() {
    let row = Row {
        name: "x",
        about: "",
        tools: &[],
        about_mib: 1,
        what: What::Program {
            module: None,
            file: ("x.txt", "text"),
            first: &["cp", "{}/x.txt", "{}/y.txt"],
            run: &["cat", "{}/y.txt"],
        },
    };
    let mut book = Book::new(1);
    make_ready(&row, &mut book).unwrap();
    let at = |name: &str| book.directory.path().join(name).into_os_string();
    assert_eq!(std::fs::read_to_string(at("x.txt")).unwrap(), "text");
    assert_eq!(book.first, [vec![OsString::from("cp"), at("x.txt"), at("y.txt")]]);
    assert_eq!(subject(&row, book.directory.path()), Ok(Subject::Program(vec!["cat".into(), at("y.txt")])));
}

#[test]
fn what_is_not_there_is_said() {
    let row = |tools, module| Row {
        name: "x",
        about: "",
        tools,
        about_mib: 1,
        what: What::Program { module, file: ("x", ""), first: &[], run: &["x"] },
    };
    let why = missing(&row(&[("no-such-tool", "its-package")], None)).unwrap_err();
    assert!(why.contains("no-such-tool") && why.contains("its-package"), "{why}");
    if tools::find("python3").is_some() {
        let why = missing(&row(&[], Some("no_such_module"))).unwrap_err();
        assert!(why.contains("pip install no_such_module"), "{why}");
        missing(&row(&[], Some("sys"))).unwrap();
    }
    assert!(Families::new(&arguments(&["nothing like it"], &[50.0]), &[]).unwrap_err().contains("--list"));
}
