use serde_json::json;
use tortie_resources::stored::ResourceKind;

use super::*;

fn resource(name: &str, revision: i64) -> StoredResource {
    let key = ResourceKey::new(ResourceKind::Tier, "", name).expect("a key");
    StoredResource { key, revision: Revision(revision), object: json!({}) }
}

#[test]
fn a_repeated_list_reports_differences() {
    let mut known = Known::default();
    let drain = |known: &mut Known| std::iter::from_fn(|| known.pop()).collect::<Vec<_>>();
    known.list_begins();
    for name in ["a", "b", "c"] {
        known.set(resource(name, 1));
    }
    known.list_ends();
    let changed = |name, revision| WatchEvent::Changed(resource(name, revision));
    assert_eq!(drain(&mut known), [changed("a", 1), changed("b", 1), changed("c", 1), WatchEvent::Complete]);
    known.list_begins();
    known.set(resource("a", 1));
    known.set(resource("b", 2));
    known.list_ends();
    assert_eq!(drain(&mut known), [changed("b", 2), WatchEvent::Deleted(resource("c", 1)), WatchEvent::Complete]);
    known.unreadable(resource("a", 3).key, Revision(3), "no".into());
    known.unreadable(resource("a", 3).key, Revision(3), "no".into());
    known.remove(&resource("a", 3).key);
    known.remove(&resource("a", 3).key);
    let unreadable = WatchEvent::Unreadable(resource("a", 3).key, "no".into());
    assert_eq!(drain(&mut known), [unreadable, WatchEvent::Deleted(resource("a", 1))]);
}
