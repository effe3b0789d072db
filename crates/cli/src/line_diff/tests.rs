use std::process::Command;

use proptest::prelude::*;

use super::*;

#[test]
fn hunks() {
    let before: String = (1..=20).map(|line| format!("line {line}\n")).collect();
    let after = before.replace("line 3\n", "").replace("line 18\n", "line 18\nline 18a\n");
    insta::assert_snapshot!(unified("a.yaml", Some(&before), Some(&after)), @r"
    --- a.yaml
    +++ a.yaml
    @@ -1,6 +1,5 @@
     line 1
     line 2
    -line 3
     line 4
     line 5
     line 6
    @@ -16,5 +15,6 @@
     line 16
     line 17
     line 18
    +line 18a
     line 19
     line 20
    ");
    assert_eq!(unified("a", Some("x\n"), None), "--- a\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n");
    assert_eq!(unified("a", None, Some("x\n")), "--- /dev/null\n+++ a\n@@ -0,0 +1,1 @@\n+x\n");
    assert_eq!(unified("a", Some("x\n"), Some("x\n")), "");
}

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
