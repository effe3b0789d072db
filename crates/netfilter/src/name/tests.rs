use proptest::prelude::*;

use super::{ChainName, ChainPrefix, limited_id};

const PREFIX: ChainPrefix = ChainPrefix::new("cali-pi-");

#[test]
fn known_limited_ids() {
    assert_eq!(limited_id("felix", "_2345", 10), "felix_kMQI");
    assert_eq!(limited_id("felix", "12345678910", 13), "felix_Y2QCZIS");
    assert_eq!(limited_id("cali-", "", 28), "cali-_");
    assert_eq!(
        ChainName::limited(PREFIX, "gnp/long-policy-name-that-gets-hashed").as_str(),
        "cali-pi-_PymyFHQQg3808jiz1OJ"
    );
}

#[test]
fn a_limit_beyond_the_hash_is_not_an_error() {
    let id = limited_id("x", &"y".repeat(300), 256);
    assert_eq!(id.len(), 1 + 1 + 43);
}

#[test]
fn text_that_iptables_restore_would_split_is_refused() {
    for bad in ["", "a b", "a\tb", "a\"b", "-A", "!x", "a\nb", "é", "0123456789012345678901234567890x"] {
        assert!(ChainName::new(bad).is_err(), "{bad:?}");
    }
    assert_eq!(
        ChainName::new("a b").unwrap_err().to_string(),
        "chain name \"a b\" must be 1 to 28 printable ASCII characters that need no quoting"
    );
}

#[test]
fn order_is_the_order_of_the_text() {
    let mut names = ["cali-b", "cali-a", "cali", "cali-aa"].map(|n| ChainName::new(n).unwrap());
    names.sort_unstable();
    assert_eq!(names.map(|n| n.to_string()), ["cali", "cali-a", "cali-aa", "cali-b"]);
}

proptest! {
    #[test]
    fn every_id_gives_a_legal_name(id in ".{0,40}") {
        let name = ChainName::limited(PREFIX, &id);
        prop_assert!(name.as_str().len() <= ChainName::MAX_LEN);
        prop_assert!(name.as_str().starts_with("cali-pi-"));
        prop_assert!(ChainName::new(name.as_str()).is_ok());
    }

    #[test]
    fn different_ids_give_different_names(a in "[a-z_/ ]{0,30}", b in "[a-z_/ ]{1,30}") {
        // An empty id stands for "_".
        prop_assume!(a != b && !(a.is_empty() && b == "_"));
        prop_assert_ne!(ChainName::limited(PREFIX, &a), ChainName::limited(PREFIX, &b));
    }

    #[test]
    fn the_hash_of_another_id_cannot_be_chosen(id in "[a-z]{21,40}") {
        let hashed = ChainName::limited(PREFIX, &id);
        let spoof = &hashed.as_str()[PREFIX.as_str().len()..];
        prop_assert_ne!(ChainName::limited(PREFIX, spoof), hashed);
    }
}
