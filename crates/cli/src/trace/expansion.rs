use tortie_analysis::trace::{Backend, SetNetwork};
use tortie_model::{NamespacedName, NetworkSetName};

use super::question::Question;

pub(super) enum Expansion {
    Connection,
    /// Several connections: their group, and a question about each; at least one.
    Group(Group, Vec<(Member, Question)>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Service {
        service: NamespacedName,
        port: u16,
    },
    NetworkSet(NetworkSetName),
    /// From each network of a set to each backend of a Service.
    Pairs {
        set: NetworkSetName,
        service: NamespacedName,
        port: u16,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Member {
    Backend(Backend),
    Network(SetNetwork),
    Pair(SetNetwork, Backend),
}
