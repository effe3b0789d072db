//! Parameters of a suggestion.

use std::collections::BTreeSet;
use std::sync::Arc;

use tortie_calc::GraphConfig;
use tortie_evaluate::Settings;
use tortie_model::Hostname;
use tortie_selector::Selector;

use crate::addresses::External;
use crate::base::Base;
use crate::document::Form;

/// Pods that share a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Level {
    /// Those of a workload.
    #[default]
    Workload,
    /// Those of a namespace. Peers are whole namespaces as well.
    Namespace,
}

/// Parameters of a suggestion.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Namespaces that get policies; if empty, all but those of the platform: `kube-*`,
    /// `calico-*`, `tigera-*` and `openshift-*`.
    pub namespaces: BTreeSet<Arc<str>>,
    /// Selector of the pods that get policies, by their own labels; all by default.
    pub selector: Option<Selector>,
    /// Pods that share a policy.
    pub level: Level,
    /// Treatment of addresses outside of the cluster.
    pub external: External,
    /// Whether nothing is allowed that was not seen. Otherwise DNS over TCP is allowed beside DNS
    /// over UDP.
    pub exact: bool,
    /// Least number of days on which an edge was seen; 1 by default.
    pub min_days: u32,
    /// Whether each namespace also gets a policy that isolates all pods, future ones included. Only
    /// where the selectors of all its owners are exact.
    pub default_deny: bool,
    /// Whether directions get rules that other policies isolate already.
    pub all: bool,
    /// An earlier output.
    pub base: Base,
    /// Form of the policies.
    pub form: Form,
    /// Parameters of the calculation. The name of the node has no effect.
    pub graph: GraphConfig,
    /// Parameters of the evaluation.
    pub settings: Settings,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespaces: BTreeSet::new(),
            selector: None,
            level: Level::Workload,
            external: External::Prefix,
            exact: false,
            min_days: 1,
            default_deny: false,
            all: false,
            base: Base::default(),
            form: Form::Kubernetes,
            graph: GraphConfig::new(Hostname::new("")),
            settings: Settings::default(),
        }
    }
}
