//! The whole demo, on the real kernel.
#![allow(clippy::disallowed_methods, reason = "the demo is a program of its own")]

use std::path::Path;
use std::process::{Command, Output};

fn demo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tortie"))
        .arg("demo")
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output()
        .expect("the agent can be started")
}

/// What the demo wrote; it must have succeeded.
fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout)
}

/// The rows of a step's matrix.
fn matrix(shown: &str, step: usize) -> Vec<&str> {
    shown
        .lines()
        .skip_while(|line| !line.starts_with(&format!("{step}. ")))
        .skip_while(|line| !line.starts_with("   from \\ to"))
        .take_while(|line| !line.is_empty())
        .collect()
}

const HEAD: [&str; 2] = [
    "   from \\ to        shop/web   shop/api   shop/db    visitors/guest",
    "                    80/tcp     8080/tcp   5432/tcp   7/tcp",
];

fn check(shown: &str, step: usize, rows: [&str; 4]) {
    assert_eq!(matrix(shown, step), [&HEAD[..], &rows[..]].concat(), "step {step} of\n{shown}");
}

fn check_story(shown: &str) {
    check(
        shown,
        1,
        [
            "   shop/web         self       4 6        4 6        4 6",
            "   shop/api         4 6        self       4 6        4 6",
            "   shop/db          4 6        4 6        self       4 6",
            "   visitors/guest   4 6        4 6        4 6        self",
        ],
    );
    check(
        shown,
        2,
        [
            "   shop/web         self       4 6        - -        4 6",
            "   shop/api         4 6        self       4 6        4 6",
            "   shop/db          4 6        - -        self       4 6",
            "   visitors/guest   4 6        - -        - -        self",
        ],
    );
    check(
        shown,
        3,
        [
            "   shop/web         self       4 6       [4 6]       4 6",
            "   shop/api         4 6        self       4 6        4 6",
            "   shop/db          4 6        - -        self       4 6",
            "   visitors/guest   4 6        - -        - -        self",
        ],
    );
    assert!(shown.contains("   changed: shop/web -> shop/db 5432/tcp: open over IPv4, open over IPv6\n"), "{shown}");
    assert!(shown.contains(" ms from writing the file to the first connection that it lets through\n"), "{shown}");
    assert!(shown.contains(" ms from noticing the change to the kernel"), "{shown}");
}

tortie_testkit::kernel_test! {
    fn the_examples_are_enforced_on_nft() {
        check_story(&shown(&demo(&["--backend", "nft"])));
    }

    fn the_examples_are_enforced_on_legacy() {
        check_story(&shown(&demo(&["--backend", "legacy"])));
    }
}

#[test]
fn unusable_directories_end_it_early() {
    let output = demo(&["--manifests", "crates"]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(message, "tortie: crates has no pod with an address and `nodeName: demo-node`\n");
}
