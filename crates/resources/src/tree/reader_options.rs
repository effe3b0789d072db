//! Requests of a reader besides the values of a document.

use super::Position;

/// Validates a parameter by name and value, both in Felix's text form.
#[derive(Clone, Copy, Debug)]
pub struct ParameterCheck(pub fn(name: &str, value: &str) -> Option<ParameterRemark>);

/// Remark about the value of a parameter: a warning at its field, worded to follow the name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a check must name both")]
pub enum ParameterRemark {
    /// The value is valid and has no effect, for this reason.
    NoEffect(String),
    /// No agent uses the value. In an object that is to be written it is an error.
    Invalid {
        /// The flaw.
        flaw: String,
        /// The value that agents use instead.
        instead: String,
    },
}

impl Default for ParameterCheck {
    /// Accepts every value.
    fn default() -> Self {
        Self(|_, _| None)
    }
}

impl PartialEq for ParameterCheck {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for ParameterCheck {}

/// Positions of the rules of a policy, in the order of evaluation. One written rule may stand for
/// several: one for each peer and protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RulePositions {
    /// Rules for traffic to endpoints.
    pub ingress: Vec<Position>,
    /// Rules for traffic from endpoints.
    pub egress: Vec<Position>,
}
