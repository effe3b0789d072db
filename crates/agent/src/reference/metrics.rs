//! List of all metrics.

use tortie_node::metrics::{Metrics, wireguard};
use tortie_telemetry::process;

/// A metric family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Family {
    /// Its name.
    pub(super) name: String,
    /// `counter`, `gauge`, `histogram` or `summary`.
    pub(super) kind: String,
    /// Its help text.
    pub(super) help: String,
}

/// Returns all metrics of each program of this build that answers `/metrics`.
#[must_use]
pub(super) fn programs() -> Vec<(&'static str, Vec<Family>)> {
    // The example includes metrics that otherwise exist only while a feature is in use.
    let agent = Metrics::example().expose() + &wireguard::text("", &[]);
    let mut programs = vec![("tortie run", families(&agent))];
    #[cfg(feature = "fanout")]
    programs.push(("tortie fanout", families(&crate::fanout::metrics::example())));
    #[cfg(all(feature = "etcd", feature = "kubernetes"))]
    programs.push(("tortie controller", families(&tortie_controller::run::example_metrics())));
    // Common metrics are listed once.
    let common = families(&process::expose());
    programs.iter_mut().for_each(|(_, families)| families.retain(|family| !common.contains(family)));
    programs.push(("All of them", common));
    programs
}

/// Returns the families of an exposition.
fn families(text: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            families.push(Family { name: name.to_owned(), kind: String::new(), help: help.to_owned() });
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
            && let Some(family) = families.last_mut().filter(|family| family.name == name)
        {
            kind.clone_into(&mut family.kind);
        }
    }
    families
}
