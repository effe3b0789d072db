use super::{Features, Version};

#[test]
fn versions_are_found_in_the_usual_texts() {
    assert_eq!(Version::find_in("iptables v1.8.9 (nf_tables)"), Some(Version(1, 8, 9)));
    assert_eq!(Version::find_in("Linux version 6.18.2-7-generic (gcc 13.2)"), Some(Version(6, 18, 2)));
    assert_eq!(Version::find_in("5.10"), Some(Version(5, 10, 0)));
    assert_eq!(Version::find_in("no number"), None);
    assert_eq!(Version::find_in("99999999999999.1"), None);
}

#[test]
fn each_feature_appears_with_its_version() {
    let old = Features::detect(None, None);
    assert!(!old.snat_random_fully && !old.masquerade_random_fully && !old.nflog_size);
    let mid = Features::detect(Some(Version(1, 6, 0)), Some(Version(3, 14, 0)));
    assert!(mid.snat_random_fully && !mid.masquerade_random_fully && !mid.nflog_size);
    assert!(!mid.restore_supports_lock);
    assert_eq!(Features::detect(Some(Version(1, 6, 2)), Some(Version(4, 8, 0))), Features::ALL);
}

#[test]
fn overrides_win_and_the_rest_is_reported() {
    let mut features = Features::ALL;
    let unused = features.apply_overrides("MASQFullyRandom=false, NFLogSize=0,IPIPDeviceIsL3=true,x");
    assert_eq!(unused, ["IPIPDeviceIsL3=true", "x"]);
    assert!(!features.masquerade_random_fully && !features.nflog_size && features.snat_random_fully);
}
