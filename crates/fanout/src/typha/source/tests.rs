use super::*;

#[test]
fn urls() {
    let servers = |url| TyphaOptions::from_url(url, "n").map(|options| options.servers);
    assert_eq!(servers("typha://a:1,b/"), Some(vec!["a:1".into(), "b:5473".into()]));
    assert_eq!(servers("[::1]"), Some(vec!["[::1]:5473".into()]));
    assert_eq!(servers("typha://"), None);
    assert_eq!(servers("a,,b"), None);
}
