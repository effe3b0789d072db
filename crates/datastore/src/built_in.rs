//! What is there without anybody writing it.

use tortie_model::{Key, Labels, Profile, ProfileName, ProfileRules, Rule, RuleAction, TierName, Value};
use tortie_resources::stored::{DEFAULT_ALLOW_PROFILE, built_in_tier, built_in_tiers};

/// How many there are.
#[cfg(test)]
pub(crate) const COUNT: usize = 6;

/// The objects that every datastore of Calico provides: the profile which host endpoints are given so that their traffic
/// does not end where no policy speaks (`libcalico-go/lib/resources/static.go`), and the tiers that are made when it is
/// set up (`EnsureInitialized` of `libcalico-go/lib/clientv3/client.go`), and that it may be used, without which a Felix
/// ends. What somebody has written under their names counts instead.
pub(crate) fn objects() -> Vec<(Key, Value)> {
    let tiers = built_in_tiers().map(|tier| (Key::Tier(TierName::from(tier.name)), Value::Tier(tier.tier())));
    default_allow().into_iter().chain(tiers).chain([(Key::Ready, Value::Ready(true))]).collect()
}

/// The built-in object of this key.
pub(crate) fn object(key: &Key) -> Option<Value> {
    match key {
        Key::Ready => Some(Value::Ready(true)),
        Key::Tier(name) => built_in_tier(name.as_str()).map(|tier| Value::Tier(tier.tier())),
        Key::Profile(name) | Key::ProfileRules(name) if name.as_str() == DEFAULT_ALLOW_PROFILE => {
            default_allow().into_iter().find(|(built_in, _)| built_in == key).map(|(_, value)| value)
        }
        _ => None,
    }
}

fn default_allow() -> [(Key, Value); 2] {
    let allow = [Rule { action: RuleAction::Allow, ..Rule::default() }];
    let rules = ProfileRules { inbound: allow.clone().into(), outbound: allow.into() };
    let name = ProfileName::new(DEFAULT_ALLOW_PROFILE);
    [
        (Key::ProfileRules(name.clone()), Value::ProfileRules(rules.into())),
        (Key::Profile(name), Value::Profile(Profile { labels: Labels::default() })),
    ]
}
