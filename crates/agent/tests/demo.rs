//! The whole demonstration, on the real kernel.

use std::path::Path;

use tortie_lab::demo::{Options, run};

/// Returns the output of the demonstration for the examples.
fn shown(backend: &str) -> String {
    let options = Options {
        agent: env!("CARGO_BIN_EXE_tortie").into(),
        manifests: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo"),
        backend: backend.to_owned(),
        keep: false,
        colors: false,
        interrupted: || false,
    };
    let mut out = Vec::new();
    run(&options, &mut out).unwrap_or_else(|error| panic!("{error}\n{}", String::from_utf8_lossy(&out)));
    String::from_utf8(out).expect("text")
}

/// Returns the rows of a step's matrix.
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
    assert!(shown.contains(" ms from writing the file to the first allowed connection\n"), "{shown}");
    assert!(shown.contains(" ms from noticing the change to the kernel"), "{shown}");
}

tortie_lab::kernel_test! {
    fn the_examples_are_enforced_on_nft() {
        check_story(&shown("nft"));
    }

    fn the_examples_are_enforced_by_ebpf_programs() {
        check_story(&shown("ebpf"));
    }

    fn the_examples_are_enforced_on_legacy() {
        check_story(&shown("legacy"));
    }
}
