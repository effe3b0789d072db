//! The documentation lists the kinds that the agent reads and that each datastore accepts.

use serde_json::json;
use tortie_datastore::kubernetes::KubernetesStore;
use tortie_datastore::store::MemoryStore;
use tortie_datastore::store::apply::apply;
use tortie_model::with_causes;
use tortie_resources::stored::{ResourceKey, ResourceKind};

/// Reports whether the cluster itself keeps the objects of a kind.
fn is_kept_by_the_cluster(kind: ResourceKind) -> bool {
    let namespace = if kind.is_namespaced() { "shop" } else { "" };
    let key = ResourceKey::new(kind, namespace, "default").unwrap();
    let written = apply(&MemoryStore::default(), &key, &json!({"spec": {}}));
    written.is_err_and(|error| with_causes(&error).contains("kept by the cluster itself"))
}

fn row(kind: ResourceKind) -> String {
    let mark = |is_so| if is_so { "yes" } else { "–" };
    let of_kubernetes = kind.is_of_kubernetes();
    let by_agent = of_kubernetes || kind.understood().is_some();
    let in_etcd = !of_kubernetes && kind.is_for_people() && !is_kept_by_the_cluster(kind);
    let in_kubernetes = KubernetesStore::written_kinds().any(|written| written == kind);
    let short: Vec<String> = kind.short_names().iter().map(|name| format!("`{name}`")).collect();
    let (agent, etcd, kubernetes) = (mark(by_agent), mark(in_etcd), mark(in_kubernetes));
    format!("| {} | {agent} | {etcd} | {kubernetes} | {} |\n", kind.as_str(), short.join(" "))
}

#[test]
fn documentation_lists_the_kinds_that_are_read_and_written() {
    let kinds = ResourceKind::all().chain(ResourceKind::of_kubernetes());
    let table: String = kinds.map(row).collect();
    let documented = include_str!("../../../../docs/book/src/reference/kinds.md");
    assert!(documented.contains(&table), "kinds.md lacks this table:\n{table}");
}
