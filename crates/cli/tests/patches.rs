//! Differences that `history` and `plan` print are patches.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs a program")]

use std::process::Command;

use proptest::prelude::*;
use tortie_analysis::line_diff::unified;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

    /// `git apply` turns the old text into the new one.
    #[test]
    fn patches_apply(old in proptest::collection::vec(0_u8..4, 0..30), new in proptest::collection::vec(0_u8..4, 0..30)) {
        let text = |lines: &[u8]| lines.iter().map(|line| format!("line {line}\n")).collect::<String>();
        let (old, new) = (text(&old), text(&new));
        let folder = tempfile::TempDir::new().unwrap();
        let (file, patch) = (folder.path().join("file"), folder.path().join("patch"));
        std::fs::write(&file, &old).unwrap();
        std::fs::write(&patch, unified("file", Some(&old), Some(&new))).unwrap();
        if old != new {
            let output = Command::new("git").args(["apply", "--unidiff-zero", "-p0", "patch"]).current_dir(&folder).output().unwrap();
            prop_assert!(output.status.success(), "{output:?}\n{}", std::fs::read_to_string(&patch).unwrap());
        }
        prop_assert_eq!(std::fs::read_to_string(&file).unwrap(), new);
    }
}
