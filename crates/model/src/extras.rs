//! Fields that few values of a type have.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Rarely used fields: they are read like fields of the value, and allocated only if one of them is
/// set.
///
/// ```
/// use tortie_model::{Rule, RuleAction, RuleExtras};
/// let mut rule = Rule::new(RuleAction::Deny);
/// assert_eq!(rule.extras.icmp_type, None);
/// rule.extras.icmp_type = Some(8);
/// assert_eq!(rule.extras, RuleExtras { icmp_type: Some(8), ..RuleExtras::default() }.into());
/// ```
#[derive(Clone)]
pub struct Extras<T>(Option<Box<T>>);

/// Types that [`Extras`] can hold.
pub trait Seldom: Default + PartialEq + 'static {
    /// Returns the default value, which is read if nothing is set.
    fn unset() -> &'static Self;
}

impl<T> Extras<T> {
    /// Returns a value with no field set.
    #[must_use]
    pub const fn unset() -> Self {
        Self(None)
    }
}

impl<T> Extras<T> {
    /// Returns the fields, if any of them is set.
    pub(crate) fn if_set(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }
}

impl<T: Seldom> Deref for Extras<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(fields) => fields,
            None => T::unset(),
        }
    }
}

impl<T: Seldom> DerefMut for Extras<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Seldom> From<T> for Extras<T> {
    fn from(fields: T) -> Self {
        Self((fields != *T::unset()).then(|| Box::new(fields)))
    }
}

impl<T> Default for Extras<T> {
    fn default() -> Self {
        Self::unset()
    }
}

impl<T: Seldom> PartialEq for Extras<T> {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            _ => **self == **other,
        }
    }
}

impl<T: Seldom + Eq> Eq for Extras<T> {}

impl<T: Seldom + fmt::Debug> fmt::Debug for Extras<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
