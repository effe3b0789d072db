use std::fs;

use super::*;

fn check(manifest: &str, strict: bool) -> Result<(), Failure> {
    let dir = tempfile::TempDir::new().unwrap();
    fs::write(dir.path().join("m.yaml"), manifest).unwrap();
    run(&Args { paths: vec![dir.path().to_owned()], strict })
}

#[test]
fn errors_fail_and_warnings_do_not() {
    assert!(check("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n", true).is_ok());
    let unknown = "apiVersion: example.org/v1\nkind: Gadget\nmetadata: {name: a}\n";
    assert!(check(unknown, false).is_ok());
    assert!(matches!(check(unknown, true), Err(Failure::Reported(1))));
    assert!(matches!(check("apiVersion: v1\nkind: Namespace\nmetadata: {}\n", false), Err(Failure::Reported(1))));
}

#[test]
fn one_file_can_be_checked() {
    let dir = tempfile::TempDir::new().unwrap();
    let file = dir.path().join("m.yaml");
    fs::write(&file, "{").unwrap();
    assert!(matches!(run(&Args { paths: vec![file], strict: false }), Err(Failure::Reported(1))));
    let missing = run(&Args { paths: vec!["/no/such/path".into()], strict: false }).unwrap_err();
    assert!(missing.to_string().starts_with("/no/such/path: No such file"), "{missing}");
}
