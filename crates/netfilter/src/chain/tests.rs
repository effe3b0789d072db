use super::*;
use crate::{LogPrefix, RejectWith};

#[test]
fn a_rule_that_rejects_drops_in_its_place() {
    let (reject, log) = (Action::Reject(RejectWith::TcpReset), Action::Log(LogPrefix::new("denied")));
    let several = |last: Action| Action::Several([log.clone(), last].into());
    for (before, after) in [
        (reject.clone(), Action::Drop),
        (several(reject.clone()), several(Action::Drop)),
        (several(several(reject.clone())), several(several(Action::Drop))),
    ] {
        let mut rule = Rule::new(before);
        assert!(rule.rejects());
        rule.drop_silently();
        assert_eq!(rule, Rule::new(after));
    }
    for other in [Action::Accept, several(Action::Return), Action::Several([reject, Action::Accept].into())] {
        let mut rule = Rule::new(other.clone());
        assert!(!rule.rejects());
        rule.drop_silently();
        assert_eq!(rule, Rule::new(other));
    }
}
