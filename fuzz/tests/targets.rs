//! The folders of the fuzz targets. Cargo builds the targets together with this test.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn names(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn each_target_has_a_check_and_inputs_that_plain_tests_replay() {
    let targets = names("fuzz_targets");
    assert_eq!(names("checks"), targets);
    assert_eq!(names("regressions"), targets);
    let unknown: Vec<String> = names("corpus").difference(&targets).cloned().collect();
    assert!(unknown.is_empty(), "no target has this corpus: {unknown:?}");
}
