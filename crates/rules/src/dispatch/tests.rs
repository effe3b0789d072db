use proptest::prelude::*;
use tortie_iptables::{Action, Chain, InterfaceName, Match};

use crate::{HostDispatch, Marks, Renderer, RulesConfig};

fn renderer() -> Renderer {
    Renderer::new(RulesConfig::with_mark_mask(Marks::DEFAULT_MASK).unwrap())
}

/// Returns the end of a packet's path for an interface, following gotos from the root chain.
fn walk(chains: &[Chain], root: &str, interface: &str) -> String {
    let chain = chains.iter().find(|chain| chain.name.as_str() == root);
    let Some(chain) = chain else { return root.to_owned() };
    for rule in &chain.rules {
        let matches = rule.matches.iter().all(|question| match question {
            Match::InInterface(pattern) | Match::OutInterface(pattern) => pattern.matches(interface),
            other => panic!("unexpected {other:?}"),
        });
        if matches {
            return match &rule.action {
                Some(Action::Goto(target)) => walk(chains, target.as_str(), interface),
                other => format!("{other:?}"),
            };
        }
    }
    "none".to_owned()
}

fn names() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec("[a-c]{1,6}|cali[0-9a-f]{1,11}|[a-z]+[+*:]", 0..40)
}

proptest! {
    #[test]
    fn every_listed_interface_reaches_its_chain_and_no_other_does(names in names(), other in "[a-c]{1,6}|cali[0-9]{1,4}") {
        let known: Vec<InterfaceName> = names.iter().filter_map(|n| InterfaceName::new(n).ok()).collect();
        let chains = renderer().workload_dispatch(known.iter().copied());
        for name in &known {
            prop_assert_eq!(walk(&chains, "cali-from-wl-dispatch", name.as_str()), format!("cali-fw-{name}"));
            prop_assert_eq!(walk(&chains, "cali-to-wl-dispatch", name.as_str()), format!("cali-tw-{name}"));
        }
        if !known.iter().any(|name| name.as_str() == other) {
            prop_assert_eq!(walk(&chains, "cali-from-wl-dispatch", &other), "Some(Drop)");
            prop_assert_eq!(walk(&chains, "cali-to-wl-dispatch", &other), "Some(Drop)");
        }
    }

    #[test]
    fn order_and_repetitions_of_the_input_do_not_matter(names in names(), seed in any::<u64>()) {
        let known: Vec<InterfaceName> = names.iter().filter_map(|n| InterfaceName::new(n).ok()).collect();
        let mut shuffled: Vec<InterfaceName> = known.iter().chain(&known).copied().collect();
        shuffled.sort_by_key(|name| name.as_str().bytes().fold(seed, |h, b| h.wrapping_mul(31) ^ u64::from(b)));
        let renderer = renderer();
        prop_assert_eq!(
            renderer.workload_dispatch(known.iter().copied()),
            renderer.workload_dispatch(shuffled.iter().copied())
        );
        for purpose in [HostDispatch::Filter, HostDispatch::MangleEgress] {
            prop_assert_eq!(
                renderer.host_dispatch(purpose, known.iter().copied(), true),
                renderer.host_dispatch(purpose, shuffled.iter().copied(), true)
            );
        }
    }
}

#[test]
fn without_endpoints_every_workload_interface_is_denied() {
    let chains = renderer().workload_dispatch([]);
    assert_eq!(chains.len(), 2);
    assert_eq!(walk(&chains, "cali-from-wl-dispatch", "cali1"), "Some(Drop)");
}
