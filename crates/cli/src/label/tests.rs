use super::*;

#[test]
fn names_and_labels_are_distinguished() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let (names, change) = sorted_out(&words("web db team=shop note= old-")).unwrap();
    assert_eq!(names, ["web", "db"]);
    let expected = [("note", Some("")), ("old", None), ("team", Some("shop"))];
    let change: Vec<(&str, Option<&str>)> = change.iter().map(|(k, v)| (k.as_str(), v.as_deref())).collect();
    assert_eq!(change, expected);
    for (text, why) in [
        ("web", "no label is given"),
        ("web a=b db", "names come before labels"),
        ("web =b", "the key is missing"),
        ("web a=b a-", "the label a is given twice"),
    ] {
        let error = sorted_out(&words(text)).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}
