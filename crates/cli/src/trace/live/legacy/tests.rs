use proptest::prelude::*;

use super::*;

#[test]
fn prefixes_name_table_chain_and_rule() {
    let parts = |prefix: &str| LegacyStep::parse(prefix).map(|step| (step.table, step.chain, step.event));
    let expected = |chain: &str, event| Some(("filter".to_owned(), chain.to_owned(), event));
    let third = ChainEvent::Rule(RuleName::Number(3), None);
    assert_eq!(parts("TRACE: filter:cali-fw-cali1:rule:3 "), expected("cali-fw-cali1", third.clone()));
    assert_eq!(parts("TRACE: filter:a:b:rule:3 "), expected("a:b", third));
    assert_eq!(parts("TRACE: filter:cali-y:return:2 "), expected("cali-y", ChainEvent::Return));
    assert_eq!(parts("TRACE: filter:OUTPUT:policy:1 "), expected("OUTPUT", ChainEvent::Policy(None)));
    for other in ["calico-packet: ", "TRACE: ", "TRACE: filter:x:rule: ", "TRACE: filter:x:jump:1 ", "API0|x"] {
        assert_eq!(parts(other), None, "{other}");
    }
}

proptest! {
    #[test]
    fn no_prefix_is_too_strange(prefix in "(TRACE: )?[a-z:0-9 ]{0,40}") {
        let _ = LegacyStep::parse(&prefix);
    }
}
