//! Built-in tiers and profile, which every datastore has and no user can delete.

use serde_json::{Map, Value, json};
use tortie_model::{Order, Tier, TierDefaultAction};

use crate::object::Kind;

/// Name of the profile that allows everything. It exists without an entry in the datastore, and
/// cannot be written.
pub const DEFAULT_ALLOW_PROFILE: &str = "projectcalico-default-allow";

/// Order of a tier without an order.
pub const DEFAULT_TIER_ORDER: u32 = 1_000_000;

/// Built-in tier (`libcalico-go/lib/clientv3/client.go`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BuiltIn {
    /// The name.
    pub name: &'static str,
    /// The order.
    pub order: f64,
    /// The action on packets that no policy of the tier decides.
    pub default_action: TierDefaultAction,
}

impl BuiltIn {
    /// Returns the tier as a resource.
    #[must_use]
    pub fn object(&self) -> Value {
        json!({
            "apiVersion": Kind::Tier.api_version(),
            "kind": "Tier",
            "metadata": {"name": self.name},
            "spec": {"order": self.order, "defaultAction": self.default_action.as_str()},
        })
    }

    /// Returns the tier as a value of the model.
    #[must_use]
    pub fn tier(&self) -> Tier {
        Tier { order: Order::new(self.order), default_action: Some(self.default_action) }
    }
}

const BUILT_IN: [BuiltIn; 3] = [
    BuiltIn { name: "default", order: DEFAULT_TIER_ORDER as f64, default_action: TierDefaultAction::Deny },
    BuiltIn { name: "kube-admin", order: 1_000.0, default_action: TierDefaultAction::Pass },
    BuiltIn { name: "kube-baseline", order: 10_000_000.0, default_action: TierDefaultAction::Pass },
];

/// Returns the built-in tiers.
pub fn built_in_tiers() -> impl Iterator<Item = BuiltIn> {
    BUILT_IN.into_iter()
}

/// Returns the built-in tier of this name.
#[must_use]
pub fn built_in_tier(name: &str) -> Option<BuiltIn> {
    BUILT_IN.into_iter().find(|tier| tier.name == name)
}

/// Returns the tier of a policy with this `spec`.
#[must_use]
pub fn tier_of(spec: &Map<String, Value>) -> &str {
    spec.get("tier").and_then(Value::as_str).filter(|tier| !tier.is_empty()).unwrap_or("default")
}

/// Error of a modified built-in tier. Its text begins with the field.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// It has another order.
    #[error("spec.order: must be {} for the tier {}", .0.order, .0.name)]
    Order(BuiltIn),
    /// It has another default action.
    #[error("spec.defaultAction: must be {} for the tier {}", .0.default_action.as_str(), .0.name)]
    DefaultAction(BuiltIn),
}

/// Checks that a built-in tier has its fixed order and default action
/// (`libcalico-go/lib/validator/v3/validator.go`).
///
/// # Errors
/// The field with its required value.
pub fn check_tier(name: &str, spec: &Map<String, Value>) -> Result<(), TierError> {
    let Some(tier) = built_in_tier(name) else { return Ok(()) };
    // Missing fields get the defaults of any tier.
    let order =
        spec.get("order").filter(|order| !order.is_null()).map_or(Some(f64::from(DEFAULT_TIER_ORDER)), Value::as_f64);
    if order != Some(tier.order) {
        return Err(TierError::Order(tier));
    }
    let action = spec.get("defaultAction").filter(|action| !action.is_null()).map_or(Some("Deny"), Value::as_str);
    if action != Some(tier.default_action.as_str()) {
        return Err(TierError::DefaultAction(tier));
    }
    Ok(())
}
