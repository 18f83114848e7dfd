//! Every committed seed passes its target, in an ordinary build.

use farshore_fuzz::TARGETS;
use std::path::{Path, PathBuf};

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

#[test]
fn every_seed_holds() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    for target in TARGETS {
        let files = files(&seeds.join(target.name));
        assert!(files.len() >= 3, "{} has {} seeds: give it a few", target.name, files.len());
        for file in files {
            println!("{}", file.display());
            (target.run)(&std::fs::read(&file).expect("a seed can be read"));
        }
    }
}

/// A fuzzer that begins with what is refused gets nowhere. (Options get new fields; changes to valid ones are in the other form.)
#[test]
fn config_files_among_the_seeds_are_accepted() {
    for name in ["plain", "all"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/toml").join(name);
        let text = std::fs::read_to_string(&file).expect("a seed can be read");
        farshore_config::Partial::from_toml(&text, &file).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn every_directory_of_seeds_has_its_target() {
    for directory in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds")) {
        let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        assert!(farshore_fuzz::find(name).is_some(), "there is no target {name:?}");
    }
}
