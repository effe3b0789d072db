//! What is there without anybody writing it.

use tortie_model::{Key, Labels, Profile, ProfileName, ProfileRules, Rule, RuleAction, Value};

/// The profile that allows everything, which host endpoints are given so that their traffic does not end where no
/// policy speaks.
const DEFAULT_ALLOW: &str = "projectcalico-default-allow";

/// The objects that every datastore of Calico provides (`libcalico-go/lib/resources/static.go`). What somebody has
/// written under their names counts instead.
pub(crate) fn objects() -> [(Key, Value); 2] {
    let allow = [Rule { action: RuleAction::Allow, ..Rule::default() }];
    let rules = ProfileRules { inbound: allow.clone().into(), outbound: allow.into() };
    let name = ProfileName::new(DEFAULT_ALLOW);
    [
        (Key::ProfileRules(name.clone()), Value::ProfileRules(rules.into())),
        (Key::Profile(name), Value::Profile(Profile { labels: Labels::default() })),
    ]
}

/// The built-in object of this key.
pub(crate) fn object(key: &Key) -> Option<Value> {
    match key {
        Key::Profile(name) | Key::ProfileRules(name) if name.as_str() == DEFAULT_ALLOW => {
            objects().into_iter().find(|(built_in, _)| built_in == key).map(|(_, value)| value)
        }
        _ => None,
    }
}
