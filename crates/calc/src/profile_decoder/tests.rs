use super::{service_account, without_prefix};
use tortie_model::{Labels, NamespacedName};

#[test]
fn service_account_names_may_contain_dots() {
    assert_eq!(service_account("ksa.ns.a.b"), Some(NamespacedName::new("ns", "a.b")));
    assert_eq!(service_account("ksa.ns"), None);
    assert_eq!(service_account("kns.ns"), None);
}

#[test]
fn only_the_prefix_is_stripped() {
    let labels = Labels::from_pairs([("pcns.a", "1"), ("b", "2"), ("pcns.projectcalico.org/name", "ns")]).unwrap();
    let keys: Vec<String> = without_prefix(&labels, "pcns.").keys().map(ToString::to_string).collect();
    assert_eq!(keys, ["a", "b", "projectcalico.org/name"]);
}
