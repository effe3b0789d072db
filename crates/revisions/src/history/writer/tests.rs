use tempfile::TempDir;
use tortie_resources::stored::ResourceKind;

use super::*;

fn tier(name: &str, order: u32) -> (ResourceKey, Option<Vec<u8>>) {
    let key = ResourceKey::new(ResourceKind::Tier, "", name).unwrap();
    (key, Some(format!("{{\"spec\": {{\"order\": {order}}}}}").into_bytes()))
}

#[test]
fn unreadable_objects_stay_and_unlisted_ones_are_removed() {
    let folder = TempDir::new().unwrap();
    let mut mirror = Mirror::open(folder.path(), Origin::Etcd("etcd://a:1".into()), "n1", 4).unwrap();
    let mut pending = PendingValues { is_whole: true, values: [tier("a", 1), tier("b", 1), tier("c", 1)].into() };
    mirror.take(&texts(&mirror, &pending, |_, object| Ok(object))).unwrap();
    assert_eq!(mirror.paths().collect::<Vec<_>>(), ["Tier/a.yaml", "Tier/b.yaml", "Tier/c.yaml"]);

    pending.then(PendingValues {
        is_whole: false,
        values: [(tier("a", 0).0, Some(b"torn".to_vec())), tier("b", 2)].into(),
    });
    let written = texts(&mirror, &pending, |_, object| Ok(object));
    assert_eq!(written.keys().collect::<Vec<_>>(), ["Tier/b.yaml", "Tier/c.yaml"]);
    pending.then(PendingValues {
        is_whole: true,
        values: [(tier("a", 0).0, Some(b"torn".to_vec())), tier("b", 3)].into(),
    });
    let written = texts(&mirror, &pending, |_, object| Ok(object));
    assert_eq!(written.keys().collect::<Vec<_>>(), ["Tier/b.yaml", "Tier/c.yaml"]);
    assert_eq!(written["Tier/c.yaml"], None);
}
