use super::service_account;
use tortie_model::NamespacedName;

#[test]
fn service_account_names_may_contain_dots() {
    assert_eq!(service_account("ksa.ns.a.b"), Some(NamespacedName::new("ns", "a.b")));
    assert_eq!(service_account("ksa.ns"), None);
    assert_eq!(service_account("kns.ns"), None);
}
