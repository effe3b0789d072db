use std::ffi::OsStr;
use std::io::Write;

use serde_json::json;

use super::{Addressing, Case, CaseError, bundled, bundled_admin, part, read};
use crate::pods::Family;

#[test]
fn bundled_files_are_complete() {
    let counts: Vec<(usize, usize, usize, usize)> = bundled()
        .iter()
        .chain([&bundled_admin()])
        .map(|path| {
            let cases = read(path).unwrap();
            let steps: Vec<_> = cases.iter().flat_map(|case| &case.steps).collect();
            let rows = steps.iter().map(|step| step.expected.len()).sum();
            (cases.len(), steps.len(), rows, steps.iter().map(|step| step.contested.len()).sum())
        })
        .collect();
    assert_eq!(counts, [(330, 464, 275_700, 5), (49, 59, 2_712, 0), (68, 144, 88_512, 0)]);
}

#[test]
fn readdressing_keeps_containment_and_doubles_rows() {
    let cases = read(&bundled()[0]).unwrap();
    let case = cases
        .iter()
        .find(|case| case.steps[0].policies.iter().any(|policy| policy.to_string().contains("\"except\"")))
        .unwrap();
    let v6 = case.readdressed(Addressing::V6);
    let text = v6.steps[0].policies.iter().map(ToString::to_string).collect::<String>();
    assert!(text.contains("2001:db8:64::c0a8:"), "{text}");
    assert!(!text.contains("192.168."), "{text}");
    assert!(v6.steps[0].expected.iter().all(|(flow, _)| flow.family == Family::V6));
    let dual = case.readdressed(Addressing::Dual);
    assert_eq!(dual.steps[0].expected.len(), 2 * case.steps[0].expected.len());
    assert!(dual.steps[0].cluster.pods.iter().all(|pod| pod.addresses.len() == 2));
    assert_eq!(&case.readdressed(Addressing::V4), case);
}

#[test]
fn a_case_that_contradicts_itself_is_named_with_its_line() {
    let case = |matrix| {
        json!({"file": "f", "name": "n", "tags": [], "cluster": {"namespaces": [], "pods": []},
               "steps": [{"policies": [], "pods": [], "matrix": matrix}]})
    };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{}\n\n{}", case(json!({})), case(json!({"TCP/80": ["."]}))).unwrap();
    let error = read(file.path()).unwrap_err();
    assert!(matches!(&error, CaseError::Content { line: 3, .. }), "{error}");
}

#[test]
fn parts_of_consecutive_changes_cover_all_cases() {
    let cases = read(&bundled()[1]).unwrap();
    let names = |cases: &[Case]| cases.iter().map(|case| case.name.clone()).collect::<Vec<_>>();
    let part_of = |change: &str| part(cases.clone(), 4, Some(OsStr::new(change)));
    let mut covered: Vec<String> = ["1262", "1263", "1264", "1265"].iter().flat_map(|n| names(&part_of(n))).collect();
    let mut all = names(&cases);
    covered.sort();
    all.sort();
    assert_eq!(covered, all);
    assert_eq!(names(&part_of("all")), names(&cases));
    assert_eq!(names(&part(cases.clone(), 4, None)), names(&part_of("0")));
}
