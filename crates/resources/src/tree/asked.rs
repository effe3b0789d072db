//! Questions of a reader about a document, besides its values.

use super::Position;

/// Judges the value of a parameter by its name, both as Felix writes them in text: what is wrong with it or has no effect,
/// and what is used instead. That becomes a warning at the parameter's field.
#[derive(Clone, Copy, Debug)]
pub struct ParameterCheck(pub fn(name: &str, value: &str) -> Option<String>);

impl Default for ParameterCheck {
    /// Has nothing to say.
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

/// Where the rules of a policy are written, in the order in which they are looked at. One that is written may say several
/// things: one for each peer and protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RulePositions {
    /// Those for traffic to endpoints.
    pub ingress: Vec<Position>,
    /// Those for traffic from endpoints.
    pub egress: Vec<Position>,
}
