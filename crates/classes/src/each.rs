//! Values for each family, and for each direction.

use std::ops::{Index, IndexMut};

use tortie_model::{Direction, Family};

/// A value for each family.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByFamily<T> {
    pub(crate) v4: T,
    pub(crate) v6: T,
}

impl<T> Index<Family> for ByFamily<T> {
    type Output = T;
    fn index(&self, family: Family) -> &T {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }
}

impl<T> IndexMut<Family> for ByFamily<T> {
    fn index_mut(&mut self, family: Family) -> &mut T {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

/// A value for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ByDirection<T> {
    pub(crate) egress: T,
    pub(crate) ingress: T,
}

impl<T> ByDirection<T> {
    pub(crate) fn new(mut of: impl FnMut(Direction) -> T) -> Self {
        Self { egress: of(Direction::Egress), ingress: of(Direction::Ingress) }
    }
}

impl<T> Index<Direction> for ByDirection<T> {
    type Output = T;
    fn index(&self, direction: Direction) -> &T {
        match direction {
            Direction::Egress => &self.egress,
            Direction::Ingress => &self.ingress,
        }
    }
}

impl<T> IndexMut<Direction> for ByDirection<T> {
    fn index_mut(&mut self, direction: Direction) -> &mut T {
        match direction {
            Direction::Egress => &mut self.egress,
            Direction::Ingress => &mut self.ingress,
        }
    }
}
