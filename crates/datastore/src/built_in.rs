//! Objects that exist in every datastore without being written.

use tortie_model::{Key, Profile, ProfileName, ProfileRules, TierName, Update};
use tortie_resources::stored::{DEFAULT_ALLOW_PROFILE, built_in_tier, built_in_tiers};

/// Number of built-in updates.
#[cfg(test)]
pub(crate) const COUNT: usize = 6;

/// Returns the objects that every Calico datastore provides:
///
/// - the profile `projectcalico-default-allow`, which host endpoints are given so that traffic to
///   which no policy applies is not denied (`libcalico-go/lib/resources/static.go`);
/// - the tiers that are created when the datastore is initialized (`EnsureInitialized` of
///   `libcalico-go/lib/clientv3/client.go`);
/// - the ready flag, without which Felix exits.
///
/// An object that is stored under one of their names takes precedence.
pub(crate) fn objects() -> Vec<Update> {
    let tiers = built_in_tiers().map(|tier| Update::Tier(TierName::from(tier.name), Some(tier.tier())));
    default_allow().into_iter().chain(tiers).chain([Update::Ready(Some(true))]).collect()
}

/// Returns the built-in object of this key.
pub(crate) fn object(key: &Key) -> Option<Update> {
    match key {
        Key::Ready => Some(Update::Ready(Some(true))),
        Key::Tier(name) => built_in_tier(name.as_str()).map(|tier| Update::Tier(name.clone(), Some(tier.tier()))),
        Key::Profile(name) | Key::ProfileRules(name) if name.as_str() == DEFAULT_ALLOW_PROFILE => {
            default_allow().into_iter().find(|built_in| built_in.is_about(key))
        }
        _ => None,
    }
}

fn default_allow() -> [Update; 2] {
    let name = ProfileName::new(DEFAULT_ALLOW_PROFILE);
    [
        Update::ProfileRules(name.clone(), Some(ProfileRules::allow_all())),
        Update::Profile(name, Some(Profile::without_labels())),
    ]
}
