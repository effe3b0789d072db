use super::*;

#[test]
fn hunks() {
    let before: String = (1..=20).map(|line| format!("line {line}\n")).collect();
    let after = before.replace("line 3\n", "").replace("line 18\n", "line 18\nline 18a\n");
    let expected = [
        "--- a.yaml",
        "+++ a.yaml",
        "@@ -1,6 +1,5 @@",
        " line 1",
        " line 2",
        "-line 3",
        " line 4",
        " line 5",
        " line 6",
        "@@ -16,5 +15,6 @@",
        " line 16",
        " line 17",
        " line 18",
        "+line 18a",
        " line 19",
        " line 20",
        "",
    ];
    assert_eq!(unified("a.yaml", Some(&before), Some(&after)), expected.join("\n"));
    assert_eq!(unified("a", Some("x\n"), None), "--- a\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n");
    assert_eq!(unified("a", None, Some("x\n")), "--- /dev/null\n+++ a\n@@ -0,0 +1,1 @@\n+x\n");
    assert_eq!(unified("a", Some("x\n"), Some("x\n")), "");
}
