//! Two states that are compared.

/// A value before and after a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct States<T> {
    pub(crate) before: T,
    pub(crate) after: T,
}

impl<T> States<T> {
    pub(crate) fn map<U>(self, mut with: impl FnMut(T) -> U) -> States<U> {
        States { before: with(self.before), after: with(self.after) }
    }
}
