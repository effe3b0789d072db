use super::*;

#[test]
fn objects_are_listed_with_their_place_in_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    let text =
        "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\nmetadata: {name: a}\nspec: {nets: [10.0.0.0/8]}\n";
    std::fs::write(folder.path().join("sets.yaml"), format!("{text}---\n{}", text.replace("name: a", "name: b")))
        .unwrap();
    let places = places(&format!("file:{}", folder.path().display()));
    let place = places["network set b"].strip_prefix(&folder.path().display().to_string()).unwrap();
    assert_eq!(place, "/sets.yaml:6:1");
    let held = HeldChanges {
        objects: vec!["network set b".into(), "host endpoint n1/host".into()],
        unprotected: vec!["host endpoint n1/host".into()],
        ..HeldChanges::default()
    };
    let shown: BTreeMap<&str, &String> = places.iter().map(|(object, place)| (object.as_str(), place)).collect();
    let text = list(&held, &shown).replace(&folder.path().display().to_string(), "");
    assert_eq!(
        text,
        "  network set b (/sets.yaml:6:1)\n  host endpoint n1/host, which does not protect the host meanwhile\n"
    );
    assert!(super::places("etcd://127.0.0.1:2379").is_empty());
}
