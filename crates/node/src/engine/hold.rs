//! Reasons to leave the kernel as it is.

use std::fmt;

use tortie_calc::Graph;
use tortie_model::Hostname;
use tortie_resources::spelling;

const NEAREST: usize = 3;

/// Reason for which no calculated update is enforced for now. The policy in force stays in force,
/// and is repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// The datastore's ready flag is false, or was when the current resync began.
    NotReady,
    /// No object names this node: an empty state would cut off workloads that run here under
    /// another node name.
    UnknownNode(UnknownNode),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnknownNode {
    name: Hostname,
    nearest: Vec<String>,
    names: usize,
}

impl UnknownNode {
    pub(super) fn new(name: &Hostname, graph: &Graph) -> Self {
        let nearest = spelling::nearest(name.as_str(), graph.hosts(), NEAREST);
        Self {
            name: name.clone(),
            nearest: nearest.into_iter().map(str::to_owned).collect(),
            names: graph.stats().hosts,
        }
    }

    pub(super) fn is_outdated(&self, graph: &Graph) -> bool {
        self.names != graph.stats().hosts
    }
}

impl Hold {
    pub(super) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReady => f.write_str(
                "the datastore reports that it is not ready (ClusterInformation default: spec.datastoreReady)",
            ),
            Self::UnknownNode(node) => {
                write!(f, "nothing in the datastore names this node, `{}`: neither a node nor an endpoint", node.name)?;
                match &node.nearest[..] {
                    [] => f.write_str(", and there are no others"),
                    [one] => write!(f, "; is `{one}` meant?"),
                    some => write!(f, "; is one of `{}` meant?", some.join("`, `")),
                }
            }
        }
    }
}
