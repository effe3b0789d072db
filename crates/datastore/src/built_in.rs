//! What is there without anybody writing it.

use tortie_model::{Key, Profile, ProfileName, ProfileRules, TierName, Update};
use tortie_resources::stored::{DEFAULT_ALLOW_PROFILE, built_in_tier, built_in_tiers};

/// How many there are.
#[cfg(test)]
pub(crate) const COUNT: usize = 6;

/// The objects that every datastore of Calico provides: the profile which host endpoints are given so that their traffic
/// does not end where no policy speaks (`libcalico-go/lib/resources/static.go`), and the tiers that are made when it is
/// set up (`EnsureInitialized` of `libcalico-go/lib/clientv3/client.go`), and that it may be used, without which a Felix
/// ends. What somebody has written under their names counts instead.
pub(crate) fn objects() -> Vec<Update> {
    let tiers = built_in_tiers().map(|tier| Update::Tier(TierName::from(tier.name), Some(tier.tier())));
    default_allow().into_iter().chain(tiers).chain([Update::Ready(Some(true))]).collect()
}

/// The built-in object of this key.
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
