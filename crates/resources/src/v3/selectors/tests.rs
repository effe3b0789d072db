use tortie_model::SelectorCache;
use tortie_selector::Selector;

use super::{SideSelectors, global_policy, misses_nodes, namespaced_policy, side_selector};

#[test]
fn sides_of_rules() {
    let ns = SideSelectors::default;
    let accounts = || SideSelectors {
        account_selector: "key == 'v'",
        account_names: vec!["sa2", "sa1"],
        ..SideSelectors::default()
    };
    for (namespace, written, expected) in [
        ("ns1", ns(), None),
        (
            "ns1",
            SideSelectors { selector: "a=='b'", ..ns() },
            Some("(projectcalico.org/namespace == 'ns1') && (a=='b')"),
        ),
        ("ns1", SideSelectors { not_selector: "has(x)", ..ns() }, Some("projectcalico.org/namespace == 'ns1'")),
        ("ns1", SideSelectors { namespace_selector: "k=='v'", ..ns() }, Some("pcns.k == \"v\"")),
        (
            "ns1",
            SideSelectors { namespace_selector: "all()", selector: "has(l)", ..ns() },
            Some("(has(projectcalico.org/namespace)) && (has(l))"),
        ),
        (
            "ns1",
            SideSelectors { namespace_selector: "global()", selector: "has(l)", ..ns() },
            Some("(!has(projectcalico.org/namespace)) && (has(l))"),
        ),
        (
            "ns1",
            accounts(),
            Some(
                "(projectcalico.org/namespace == 'ns1') && \
                 ((pcsa.key == \"v\") && (projectcalico.org/serviceaccount in {\"sa1\", \"sa2\"}))",
            ),
        ),
        ("", accounts(), Some("(pcsa.key == \"v\") && (projectcalico.org/serviceaccount in {\"sa1\", \"sa2\"})")),
        ("", SideSelectors { selector: "a == 'b' || c", ..ns() }, Some("a == 'b' || c")),
    ] {
        assert_eq!(side_selector(namespace, &written, &mut SelectorCache::default()).as_deref(), expected);
    }
}

#[test]
fn literals_are_not_rewritten() {
    let written = SideSelectors { namespace_selector: "k == 'all()' || all()", ..SideSelectors::default() };
    assert_eq!(
        side_selector("", &written, &mut SelectorCache::default()).as_deref(),
        Some("(pcns.k == \"all()\" || has(projectcalico.org/namespace))")
    );
}

#[test]
fn policies() {
    assert_eq!(namespaced_policy("n", "", "", &mut SelectorCache::default()), "projectcalico.org/namespace == 'n'");
    assert_eq!(
        namespaced_policy("n", "a || b", "x == 'y'", &mut SelectorCache::default()),
        "((a || b) && projectcalico.org/namespace == 'n') && pcsa.x == \"y\""
    );
    assert_eq!(global_policy("", "", "", &mut SelectorCache::default()), "");
    assert_eq!(global_policy("has(a)", "x == 'y'", "", &mut SelectorCache::default()), "(has(a)) && pcns.x == \"y\"");
    assert_eq!(global_policy("", "all()", "", &mut SelectorCache::default()), "has(projectcalico.org/namespace)");
    assert_eq!(
        global_policy("has(a)", "", "all()", &mut SelectorCache::default()),
        "(has(a) && has(projectcalico.org/serviceaccount))"
    );
    assert_eq!(
        global_policy("all()", "k == 'v'", "", &mut SelectorCache::default()),
        "(has(projectcalico.org/namespace) && pcns.k == \"v\")"
    );
}

/// The values are those of a published example.
#[test]
fn published_example() {
    let policy = namespaced_policy(
        "policy-demo",
        "projectcalico.org/orchestrator == 'k8s' && app == 'nginx'",
        "",
        &mut SelectorCache::default(),
    );
    let policy = Selector::parse(&policy).unwrap();
    assert_eq!(policy.id().as_str(), "s:_a6cuVnIgjWqODIbU16OZjCg0vnck1Ck71LG2w");
    let written = SideSelectors {
        selector: "projectcalico.org/orchestrator == 'k8s' && run == 'access'",
        ..SideSelectors::default()
    };
    let side =
        Selector::parse(&side_selector("policy-demo", &written, &mut SelectorCache::default()).unwrap()).unwrap();
    assert_eq!(side.id().as_str(), "s:AMAB7BNa5u3MmIiwZrblkWt4eY3LuNV_frvthw");
}

#[test]
fn selectors_that_name_nodes_in_vain_are_told_from_those_that_select_nodes() {
    let misses = |text: &str| misses_nodes(&Selector::parse(text).unwrap());
    for text in [
        "pcnode.a == 'x'",
        "has(pcnode.a) && b == 'pcnode.c'",
        "app == 'pcnode.'",
        "pcnode.a == 'x' || pcnode.b == 'y'",
        "(!has(projectcalico.org/namespace)) && (has(pcnode.a))",
    ] {
        assert!(!misses(text), "{text}");
    }
    for text in ["!has(pcnode.a)", "has(pcnode.a) || has(b)", "(projectcalico.org/namespace == 'n') && (has(pcnode.a))"]
    {
        assert!(misses(text), "{text}");
    }
}
