//! `tortie map`, as its users run it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program")]

use std::path::Path;
use std::process::{Command, Stdio};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns standard output, standard error and the exit code.
fn run(folder: &Path, arguments: &[&str]) -> (String, String, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_tortie"))
        .arg("map")
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code().unwrap())
}

fn drawn(arguments: &[&str]) -> String {
    let mut all = vec!["--datastore", "file:examples/demo"];
    all.extend(arguments);
    let (text, errors, code) = run(Path::new(REPOSITORY), &all);
    let is_expected = errors.is_empty() || errors.starts_with("Left out");
    assert!(is_expected && code == 0, "{errors}");
    text
}

#[test]
fn the_demo_for_graphviz() {
    insta::assert_snapshot!("demo.dot", drawn(&["-o", "dot"]));
}

#[test]
fn the_demo_as_a_picture() {
    let svg = drawn(&["-o", "svg"]);
    // The style is not part of the snapshot.
    let (before, rest) = svg.split_once("<style>").unwrap();
    let (_, after) = rest.split_once("</style>").unwrap();
    insta::assert_snapshot!("demo.svg", format!("{before}{after}"));
    assert_eq!(svg, drawn(&["-o", "svg"]));
}

#[test]
fn the_picture_of_the_guide_on_domain_names_is_that_of_its_command() {
    let (svg, errors, code) = run(Path::new(REPOSITORY), &["--datastore", "file:examples/names", "-o", "svg"]);
    assert_eq!((errors.as_str(), code), ("", 0));
    let picture = Path::new(REPOSITORY).join("docs/book/src/pictures/only-these-names.svg");
    assert_eq!(svg, std::fs::read_to_string(picture).unwrap());
}

#[test]
fn a_namespace_comes_with_its_peers() {
    let text = drawn(&["-o", "dot", "--namespace", "visitors"]);
    assert!(text.contains("guest") && text.contains("web"), "{text}");
    assert!(!text.contains("db"), "{text}");
    let text = drawn(&["-o", "dot", "--selector", "role == 'db' && pcns.team == 'shop'"]);
    assert!(text.contains("db") && text.contains("api") && !text.contains("guest"), "{text}");
}

#[test]
fn a_port_is_asked_about_alone() {
    let text = drawn(&["-o", "dot", "--port", "5432"]);
    assert!(text.contains("tcp 5432") && !text.contains("8080") && !text.contains("tcp 80"), "{text}");
    let text = drawn(&["-o", "dot", "--port", "5432/udp", "--ipv6"]);
    assert!(!text.contains("tcp") && !text.contains("->"), "{text}");
}

#[test]
fn usage_errors_are_reported() {
    let demo = ["--datastore", "file:examples/demo"];
    let with = |more: &[&str]| run(Path::new(REPOSITORY), &[&demo[..], more].concat());
    let (text, errors, code) = with(&["--namespace", "nowhere"]);
    assert_eq!((&*text, &*errors, code), ("", "tortie: there are no such pods\n", 1));
    let (_, errors, code) = with(&["--selector", "role =="]);
    assert!(code == 2 && errors.contains("role =="), "{errors}");
    let (_, errors, code) = with(&["--port", "http"]);
    assert!(code == 2 && errors.contains("http is not a port"), "{errors}");
}
