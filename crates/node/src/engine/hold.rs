//! Reasons to leave everything as it is.

use std::fmt;

use tortie_calc::Graph;
use tortie_model::Hostname;
use tortie_resources::spelling;

/// How many names are told of those that may be meant.
const NEAREST: usize = 3;

/// Why nothing that the calculation has to say is enforced for now. What is in force stays in force, and is repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// The datastore's ready flag is false, or was when everything began to be told again.
    NotReady,
    /// Nothing says that there is such a node. To enforce that would cut off whatever runs here under another name.
    UnknownNode(UnknownNode),
}

/// A node that nothing in the datastore names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnknownNode {
    name: Hostname,
    /// The names most like it.
    nearest: Vec<String>,
    /// How many names there are.
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

    /// Whether it can be told from the number of names that others may be nearer now.
    pub(super) fn is_outdated(&self, graph: &Graph) -> bool {
        self.names != graph.stats().hosts
    }
}

impl Hold {
    /// Whether two are for the same reason.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReady => {
                f.write_str("the datastore says that it is not ready (ClusterInformation default: spec.datastoreReady)")
            }
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
