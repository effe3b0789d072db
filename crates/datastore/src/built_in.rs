//! What is there without anybody writing it.

use tortie_model::{Key, Labels, Profile, ProfileName, ProfileRules, Rule, RuleAction, Update, Value};

/// The profile that allows everything, which host endpoints are given so that their traffic does not end where no
/// policy speaks.
const DEFAULT_ALLOW: &str = "projectcalico-default-allow";

/// The objects that every datastore of Calico provides (`libcalico-go/lib/resources/static.go`), in the order of keys.
fn objects() -> [(Key, Value); 2] {
    let allow = [Rule { action: RuleAction::Allow, ..Rule::default() }];
    let rules = ProfileRules { inbound: allow.clone().into(), outbound: allow.into() };
    let name = ProfileName::new(DEFAULT_ALLOW);
    let mut objects = [
        (Key::ProfileRules(name.clone()), Value::ProfileRules(rules.into())),
        (Key::Profile(name), Value::Profile(Profile { labels: Labels::default() })),
    ];
    objects.sort_by(|a, b| a.0.cmp(&b.0));
    objects
}

/// Adds the built-in objects to updates that begin a datastore and are in the order of keys. What somebody has written
/// under their names counts instead.
pub(crate) fn begin(updates: &mut Vec<Update>) {
    for (key, value) in objects() {
        match updates.binary_search_by(|update| update.key.cmp(&key)) {
            Ok(at) if updates[at].value.is_none() => updates[at].value = Some(value),
            Ok(_) => {}
            Err(at) => updates.insert(at, Update::set(key, value)),
        }
    }
}

/// Lets a built-in object come back when what counted instead of it is gone.
pub(crate) fn restore(updates: &mut [Update]) {
    if updates.iter().all(|update| update.value.is_some()) {
        return;
    }
    for (key, value) in objects() {
        for update in updates.iter_mut().filter(|update| update.key == key) {
            update.value.get_or_insert_with(|| value.clone());
        }
    }
}
