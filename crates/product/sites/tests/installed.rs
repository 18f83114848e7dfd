//! The libc of this machine, from its files.

use farshore_sites::table::{Table, Writer};
use farshore_sites::{ANY_NUMBER, Image, NAMES, Plan, installed, is_named};

fn files() -> Vec<Vec<u8>> {
    let named = |path: &std::path::PathBuf| is_named(&path.to_string_lossy(), NAMES);
    let files: Vec<_> = installed::files().into_iter().filter(named).map(|path| std::fs::read(path).expect("a file")).collect();
    if files.is_empty() {
        eprintln!("skipped: this test is not linked with glibc");
    }
    files
}

#[test]
fn a_plan_goes_through_a_table_unchanged() {
    let table = installed::table();
    let table = Table::new(&table).expect("a table");
    for file in files() {
        let image = Image::of_file(&file).expect("an image");
        let plan = Plan::of(&image).expect("functions");
        assert!(!plan.windows.is_empty() && plan.windows.iter().all(|window| image.agrees_with(window)));
        let known = table.find(image.build_id().expect("Debian and all others have build ids")).expect("it is in the table");
        let wanted: [&dyn Fn(u64) -> bool; 3] = [&|_| true, &|number| number == ANY_NUMBER || number == 9, &|_| false];
        for wanted in wanted {
            assert_eq!(known.plan_for(&image, wanted), Some(plan.clone().keep(wanted)));
        }
    }
}

#[test]
fn windows_are_apart_and_hold_one_call_each() {
    for file in files() {
        let image = Image::of_file(&file).expect("an image");
        let plan = Plan::of(&image).expect("functions");
        assert!(plan.windows.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
        for window in &plan.windows {
            let call = (window.site - window.range.start) as usize - 2;
            assert_eq!(window.bytes()[call..call + 2], farshore_sites::SYSCALL);
            assert!(image.texts().iter().any(|text| text.start <= window.range.start && window.range.end <= text.end));
            assert!(window.number == ANY_NUMBER || image.number_before(window.site).is_none_or(|number| number == window.number));
        }
    }
}

#[test]
fn a_table_that_is_cut_off_or_of_another_version_knows_nothing() {
    let table = installed::table();
    for file in files() {
        let image = Image::of_file(&file).expect("an image");
        let id = image.build_id().expect("a build id");
        let find = |bytes: &[u8]| Table::new(bytes)?.find(id)?.plan_for(&image, &|_| true);
        let whole = find(&table).expect("known");
        for length in (0..table.len()).step_by(97) {
            assert!(find(&table[..length]).is_none_or(|plan| plan == whole), "{length}");
        }
        let mut other = table.clone();
        other[15] ^= 1;
        assert!(find(&other).is_none());
    }
}

#[test]
fn an_image_that_is_laid_out_otherwise_is_not_the_one() {
    for file in files() {
        let image = Image::of_file(&file).expect("an image");
        let mut table = Writer::default();
        table.add(&image, &Plan::of(&image).expect("functions")).expect("it has a build id");
        let table = table.finish();
        let known = Table::new(&table).expect("a table").find(image.build_id().expect("one")).expect("known");
        // One text is not executable where it lies.
        let parts = image.parts().iter().map(|part| farshore_sites::Part { executable: false, ..*part }).collect();
        let other = Image::new(image.parts()[0].start, parts).expect("an image");
        assert!(known.plan_for(&other, &|_| true).is_none());
    }
}

#[test]
fn bytes_that_are_no_image_are_refused() {
    for file in files() {
        assert!(Image::of_file(&file[..40]).is_none() && Image::of_file(&file[1..]).is_none() && Image::of_file(&[]).is_none());
        // Cut off anywhere: no panic, and nothing is read that is not there.
        for length in (64..file.len()).step_by(file.len() / 40) {
            let _ = Image::of_file(&file[..length]).map(|image| Plan::of(&image));
        }
    }
}
