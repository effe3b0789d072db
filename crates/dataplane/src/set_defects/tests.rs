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
