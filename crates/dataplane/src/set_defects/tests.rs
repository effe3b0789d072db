use tortie_model::Rule;

use super::*;

const ABSENT: SetDefect = SetDefect { absent: true, lacks: false, exceeds: false };
const LACKS: SetDefect = SetDefect { absent: false, lacks: true, exceeds: false };
const EXCEEDS: SetDefect = SetDefect { absent: false, lacks: false, exceeds: true };

#[test]
fn each_defect_of_each_set_of_each_rule() {
    use Effect::{Closes, LeftOut, Stays};
    use RuleAction::{Allow, Deny, Log, NextTier};
    let id = || ["s:x".into()].into_iter().collect::<SetIds>();
    let none = RuleSets::default;
    let required = [
        RuleSets { src: id(), ..none() },
        RuleSets { src_named_ports: id(), ..none() },
        RuleSets { dst: id(), ..none() },
        RuleSets { dst_named_ports: id(), ..none() },
        RuleSets { dst_ip_ports: id(), ..none() },
    ];
    let excluded = [
        RuleSets { not_src: id(), ..none() },
        RuleSets { not_src_named_ports: id(), ..none() },
        RuleSets { not_dst: id(), ..none() },
        RuleSets { not_dst_named_ports: id(), ..none() },
    ];
    // Effects for a set that the packet must be in, and for one that it must not be in.
    let cases = [
        (Allow, ABSENT, LeftOut, LeftOut),
        (Allow, LACKS, Stays, LeftOut),
        (Allow, EXCEEDS, LeftOut, Stays),
        (Deny, ABSENT, Closes, Closes),
        (Deny, LACKS, Closes, Stays),
        (Deny, EXCEEDS, Stays, Closes),
        (NextTier, ABSENT, Closes, Closes),
        (NextTier, LACKS, Closes, Closes),
        (NextTier, EXCEEDS, Closes, Closes),
        (Log, ABSENT, LeftOut, LeftOut),
        (Log, LACKS, Stays, Stays),
        (Log, EXCEEDS, Stays, Stays),
    ];
    for (action, defect, if_required, if_excluded) in cases {
        for (all, expected) in [(&required[..], if_required), (&excluded, if_excluded)] {
            for sets in all {
                assert_eq!(effect(action, sets, |_| defect), expected, "{action:?} {defect:?} {sets:?}");
                assert_eq!(effect(action, sets, |_| SetDefect::default()), Stays);
            }
        }
        assert_eq!(effect(action, &none(), |_| defect), Stays, "it has no sets");
    }
}

/// A rule keeps its other destinations; one without others is left out as a whole.
#[test]
fn domains_are_an_alternative_that_can_be_missing() {
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect::<SetIds>();
    let with =
        |dst: &[&str], domains: &[&str]| RuleSets { dst: ids(dst), dst_domains: ids(domains), ..RuleSets::default() };
    let all = [with(&[], &["d:x"]), with(&["s:y"], &["d:x"]), with(&[], &["d:x", "d:z"]), with(&["s:y"], &["d:z"])];
    let mut written = Rule::new(RuleAction::Allow);
    written.destination.extras.domains = ["a.io".parse().unwrap()].into();
    let all: Vec<RuleSets> = all.into_iter().chain([with(&["s:y"], &["d:x"])]).collect();
    let rules = [vec![Rule::new(RuleAction::Allow); 4], vec![written]].concat();
    let rules = Rules::new(rules.into(), all.clone().into()).unwrap();
    let bad = |wanted| move |id: &IpSetId| if id.as_str() == "d:x" { wanted } else { SetDefect::default() };
    for defect in [ABSENT, EXCEEDS] {
        let WithoutDomains { rules, reduced, sets } = without_domains(&rules, bad(defect)).unwrap();
        assert_eq!((reduced, sets), (vec![1, 2], ["d:x".into()].into()));
        let left = [all[0].clone(), with(&["s:y"], &[]), with(&[], &["d:z"]), all[3].clone(), all[4].clone()];
        assert_eq!(**rules.sets(), left);
        let effects = rules.iter().map(|view| effect(view.action(), view.sets, bad(defect)));
        let (left_out, stays) = (Effect::LeftOut, Effect::Stays);
        assert_eq!(effects.collect::<Vec<_>>(), [left_out, stays, stays, stays, left_out]);
    }
    assert!(without_domains(&rules, bad(LACKS)).is_none());
    assert_eq!(ABSENT.or(LACKS), SetDefect { absent: true, lacks: true, exceeds: false });
    assert_eq!(LACKS.or(EXCEEDS), SetDefect { absent: false, lacks: true, exceeds: true });
}
