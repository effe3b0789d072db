//! Blocks of eBPF maps: policies and network sets of one namespace close endpoints of that
//! namespace only, in whatever order they come.

use std::collections::BTreeSet;
use std::fmt::Write;

use tortie::ebpf::layout::MAX_BLOCKS;
use tortie::ebpf::{EndpointName, Interface, Node, NodeSettings};
use tortie::model::desired::DesiredUpdate;

use crate::world::World;

const PODS: u16 = 12;

/// Pods of `dev`, each with a policy of many rules that no two pods have in common.
fn many_groups() -> String {
    let mut all = String::new();
    for pod in 0..PODS {
        writeln!(
            all,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: loud-{pod}, namespace: dev, labels: {{loud: '{pod}'}}}}\nspec: \
             {{nodeName: n1, serviceAccountName: default, containers: [{{name: c, image: x}}]}}\nstatus: {{phase: Running, \
             podIPs: [{{ip: 10.0.0.{}}}]}}\n---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: \
             loud-{pod}, namespace: dev}}\nspec:\n  podSelector: {{matchLabels: {{loud: '{pod}'}}}}\n  ingress:",
            100 + pod,
        )
        .expect("writing to a string does not fail");
        for rule in 0..40 + pod {
            let port = 1000 + 256 * rule + pod;
            writeln!(
                all,
                "  - {{from: [{{ipBlock: {{cidr: 198.51.{rule}.{pod}/32}}}}], ports: [{{protocol: TCP, port: {port}}}]}}"
            )
            .expect("writing to a string does not fail");
        }
    }
    all
}

/// The state that a node enforces by eBPF programs.
struct Programs(Node);

impl Programs {
    fn new(max_blocks: u32) -> Self {
        Self(Node::new(NodeSettings { max_blocks, ..NodeSettings::default() }))
    }

    fn apply<'a>(&mut self, updates: impl IntoIterator<Item = &'a DesiredUpdate>) {
        for update in updates.into_iter().chain([&DesiredUpdate::InSync]) {
            self.0.on_update(update).expect("sets come before their changes");
            if let DesiredUpdate::WorkloadEndpoint(_, state) = update
                && let Some(name) = state.endpoint.iface
            {
                let index =
                    name.as_str().bytes().fold(7, |hash: u32, byte| hash.wrapping_mul(31) + u32::from(byte)) >> 1;
                self.0.on_interface(Interface { name, index, addresses: Vec::new() });
            }
        }
        assert!(!self.0.flush().needs_reclaim());
        self.0.reclaim();
    }

    fn charged(&self) -> u32 {
        self.0.tables().charged_blocks().try_into().expect("a small cluster")
    }

    /// The workloads with a group that is closed.
    fn closed(&self) -> BTreeSet<String> {
        let closed = self.0.problems().into_iter().map(|problem| match problem.endpoint {
            EndpointName::Workload(id) => id.workload.to_string(),
            other => other.to_string(),
        });
        closed.collect()
    }
}

/// Network sets of `dev` with so many IPv6 networks far apart, and policies that have them: more
/// than the trees of addresses hold.
fn many_networks(count: u32) -> String {
    let mut all = String::new();
    for set in 0..4_u32 {
        writeln!(
            all,
            "---\napiVersion: projectcalico.org/v3\nkind: NetworkSet\nmetadata: {{name: loud-{set}, namespace: dev, labels: {{loud: \
             '{set}'}}}}\nspec:\n  nets:"
        )
        .expect("writing to a string does not fail");
        for net in 0..count {
            let bits = (set * count + net).wrapping_mul(0x9e37_79b1);
            writeln!(all, "  - 2001:db8:{:x}:{:x}:{net:x}::/96", bits >> 16, bits & 0xffff)
                .expect("writing to a string does not fail");
        }
        writeln!(
            all,
            "---\napiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{name: loud-{set}, namespace: dev}}\nspec: \
             {{selector: all(), ingress: [{{action: Allow, source: {{selector: loud == '{set}'}}}}]}}"
        )
        .expect("writing to a string does not fail");
    }
    all
}

#[test]
fn networks_of_one_namespace_leave_addresses_to_others() {
    let (clean, loud) = (World::calculate("n1", ""), World::calculate("n1", &many_networks(3_000)));
    let is_prod = |workload: &String| workload.starts_with("prod/");
    let mut at_once = Programs::new(NodeSettings::default().max_blocks);
    at_once.apply(loud.desired());
    let mut later = Programs::new(NodeSettings::default().max_blocks);
    later.apply(clean.desired());
    assert_eq!(later.closed(), BTreeSet::new());
    later.apply(loud.desired());
    let closed = at_once.closed();
    assert!(!closed.is_empty() && !closed.iter().any(is_prod), "{closed:?}");
    assert_eq!(later.closed(), closed);
    assert!(at_once.0.tables().block_count() < MAX_BLOCKS as usize / 2);
    // `prod` changes, and names networks that the others do not name.
    let more = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: more, namespace: prod}\nspec: \
                {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 198.51.100.0/24}}]}]}\n";
    let changed = World::calculate("n1", &format!("{}---\n{more}", many_networks(3_000)));
    at_once.apply(changed.desired());
    assert_eq!(at_once.closed(), closed);
    // Fewer networks are in force.
    let fewer = World::calculate("n1", &many_networks(100));
    later.apply(fewer.desired());
    assert_eq!(later.closed(), BTreeSet::new());
}

fn is_pod_of(update: &DesiredUpdate, namespace: &str) -> bool {
    matches!(update, DesiredUpdate::WorkloadEndpoint(id, _) if id.workload.starts_with(namespace))
}

#[test]
fn groups_of_one_namespace_take_no_blocks_from_others() {
    let (clean, loud) = (World::calculate("n1", ""), World::calculate("n1", &many_groups()));
    let mut all = Programs::new(u32::MAX);
    all.apply(clean.desired());
    let max_blocks = 2 * all.charged();
    all.apply(loud.desired());
    assert!(all.charged() > 2 * max_blocks && all.closed().is_empty());

    // At once; after the pods of `prod`; before them.
    let mut at_once = Programs::new(max_blocks);
    at_once.apply(loud.desired());
    let mut later = Programs::new(max_blocks);
    later.apply(clean.desired());
    assert_eq!(later.closed(), BTreeSet::new());
    later.apply(loud.desired());
    let mut earlier = Programs::new(max_blocks);
    earlier.apply(loud.desired().iter().filter(|update| !is_pod_of(update, "prod/")));
    assert!(!earlier.closed().is_empty());
    earlier.apply(loud.desired());
    let closed = at_once.closed();
    assert!(!closed.is_empty() && closed.iter().all(|workload| workload.starts_with("dev/")), "{closed:?}");
    assert_eq!((later.closed(), earlier.closed()), (closed.clone(), closed));

    // A change of `prod` while the budget is taken up closes nothing of it.
    let more = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: more, namespace: prod}\nspec: \
                {podSelector: {}, ingress: [{ports: [{protocol: TCP, port: 81}]}]}\n";
    let changed = World::calculate("n1", &format!("{}---\n{more}", many_groups()));
    at_once.apply(changed.desired());
    let closed = at_once.closed();
    assert!(!closed.is_empty() && closed.iter().all(|workload| workload.starts_with("dev/")), "{closed:?}");

    // Deleted groups give their blocks back.
    let gone: Vec<DesiredUpdate> = loud
        .desired()
        .iter()
        .filter(|update| is_pod_of(update, "dev/loud-"))
        .filter_map(|update| match update {
            DesiredUpdate::WorkloadEndpoint(id, _) => Some(DesiredUpdate::WorkloadEndpointRemove(id.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(gone.len(), usize::from(PODS));
    later.apply(&gone);
    assert_eq!(later.closed(), BTreeSet::new());
}
