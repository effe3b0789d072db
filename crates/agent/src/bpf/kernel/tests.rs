use tortie_dataplane::LinkEvent;
use tortie_ebpf::hooks::Hook;
use tortie_ebpf::{Interface, Node, NodeSettings, Write};
use tortie_model::desired::{DesiredUpdate, WorkloadEndpointState};
use tortie_model::{IfaceName, WorkloadEndpoint, WorkloadEndpointId};
use tortie_testkit::kernel_test;
use tortie_testkit::netns::Namespace;

use super::*;
use crate::bpf::generations::{Contents, Generations};
use crate::bpf::{PacketLog, PolicyPrograms, PolicyState, ProgramPolicy};

const TIMEOUT: Duration = Duration::from_secs(10);
const NOW: Duration = Duration::from_secs(1);

fn edge() -> LinuxEdge {
    let hooks = HookSettings {
        workload_prefixes: vec!["cali".into()],
        policy: NodeSettings::default().evaluate,
        deny_invalid_conntrack: true,
    };
    LinuxEdge::new(hooks, TIMEOUT).unwrap()
}

/// A process that was told of pods at these interfaces.
fn process(edge: LinuxEdge, pods: u32) -> ProgramPolicy<LinuxEdge> {
    let mut policy = ProgramPolicy::new(NodeSettings::default(), Family::ALL.into(), edge, None);
    for pod in 1..=pods {
        let name = format!("cali{pod}");
        policy.on_link(&LinkEvent::Up { name: name.as_str().into(), index: 100 + pod });
        let id = WorkloadEndpointId {
            orchestrator: "k8s".into(),
            workload: format!("default/{name}").into(),
            endpoint: "eth0".into(),
        };
        let endpoint = WorkloadEndpoint {
            iface: Some(IfaceName::from(name.as_str())),
            ipv4_nets: [format!("10.65.0.{pod}/32").parse().unwrap()].into(),
            ..WorkloadEndpoint::default()
        };
        let state = WorkloadEndpointState { endpoint: endpoint.into(), ..WorkloadEndpointState::default() };
        policy.on_update(&DesiredUpdate::WorkloadEndpoint(id, state));
    }
    policy.on_update(&DesiredUpdate::InSync);
    policy.on_links_in_sync();
    policy
}

#[track_caller]
fn in_force(policy: &mut ProgramPolicy<LinuxEdge>) {
    assert_eq!(policy.apply(NOW), PolicyState { in_force: true, problems: Vec::new() });
}

/// The numbers of links and their programs, and of maps, by name.
fn numbers() -> Vec<(String, u32, u32)> {
    let directory = own_directory().unwrap();
    let folders = names_in(&directory).unwrap();
    let [folder] = &folders[..] else { panic!("{folders:?}") };
    let folder = directory.join(folder);
    let mut numbers = Vec::new();
    for name in names_in(&folder).unwrap() {
        let path = folder.join(&name);
        if let Ok(link) = NetfilterLink::open(&path) {
            let info = link.info().unwrap();
            numbers.push((name, info.id, info.program));
        } else if let Ok(map) = ArrayMap::open(&path) {
            numbers.push((name, map.info().id, map.info().entries));
        } else if let Ok(map) = PerCpuArrayMap::open(&path) {
            numbers.push((name, map.info().id, map.info().entries));
        } else if let Ok(ring) = RingBuffer::open(&path) {
            numbers.push((name, ring.info().id, ring.info().entries));
        }
    }
    numbers.sort();
    assert_eq!(numbers.len(), 2 * Hook::ALL.len() + MapKind::ALL.len() + 1, "{numbers:?}");
    numbers
}

/// A value of a map that is pinned.
fn value(kind: MapKind, index: u32) -> Vec<u8> {
    let directory = own_directory().unwrap();
    let folder = names_in(&directory).unwrap().remove(0);
    let mut edge = edge();
    let (map, _) = edge.kept_map(&folder, &format!("map-{}", kind.name()), kind).unwrap();
    edge.read(&map, index).unwrap()
}

fn in_namespace(body: impl FnOnce() + Send) {
    let namespace = Namespace::new().unwrap();
    namespace
        .run(|| {
            body();
            remove_all(TIMEOUT).unwrap();
        })
        .unwrap();
}

/// Values that are lost when the process ends before so many are written.
#[derive(Debug)]
struct Ending {
    node: Node,
    writes: usize,
}

impl Contents for Ending {
    fn entries(&self, map: MapKind) -> u32 {
        self.node.sizes().get(map)
    }

    fn flush(&mut self) -> Vec<Write> {
        self.node.flush().writes().take(self.writes).collect()
    }

    fn all(&self) -> Vec<Write> {
        self.node.all().collect()
    }

    fn reclaim(&mut self) {
        self.node.reclaim();
    }

    fn adopt(
        &mut self,
        decisions: u32,
        read: &mut dyn FnMut(MapKind, u32) -> io::Result<Vec<u8>>,
    ) -> Result<(), String> {
        self.node.adopt(decisions, read).map_err(|error| error.to_string())
    }
}

kernel_test! {
    fn a_restart_goes_on_with_maps_and_programs_and_writes_what_changed() {
        in_namespace(|| {
            let mut first = process(edge(), 3);
            in_force(&mut first);
            assert!(first.stats().map_writes > 0 && first.stats().built == 1);
            drop(first);
            let before = numbers();
            let mut same = process(edge(), 3);
            in_force(&mut same);
            assert_eq!((same.stats().map_writes, same.stats().built), (0, 0));
            assert_eq!(numbers(), before);
            drop(same);

            // A pod that came while nobody was there.
            let mut changed = process(edge(), 4);
            in_force(&mut changed);
            let writes = changed.stats().map_writes;
            assert!(writes > 0 && writes < 20, "{writes}");
            assert_eq!(numbers(), before);
            let current = value(MapKind::Current, 0);
            drop(changed);

            // One that ends at any point of a change; the next one makes it.
            for writes in 0..12 {
                let mut node = Node::new(NodeSettings::default());
                for pod in 1..=3 {
                    node.on_interface(Interface { name: format!("cali{pod}").as_str().into(), index: 200 + pod, addresses: Vec::new() });
                }
                node.on_update(&DesiredUpdate::InSync).unwrap();
                let mut ending = Generations::new(edge(), Family::ALL.into());
                ending.bring(&mut Ending { node, writes }).unwrap();
                drop(ending);
                let mut next = process(edge(), 4);
                in_force(&mut next);
                assert_eq!((next.stats().built, numbers()), (0, before.clone()));
            }
            assert_eq!(value(MapKind::Current, 0).len(), current.len());
        });
    }

    fn a_restart_goes_on_with_the_log_and_one_that_wants_none_ends_it() {
        in_namespace(|| {
            let log = PacketLog::default();
            in_force(&mut process(edge(), 3).with_log(log.clone(), true));
            assert!(log.readable().unwrap().is_some());
            let before = numbers();
            let log = PacketLog::default();
            let mut same = process(edge(), 3).with_log(log.clone(), true);
            in_force(&mut same);
            assert_eq!((same.stats().map_writes, same.stats().built), (0, 0));
            assert!(log.readable().unwrap().is_some());
            drop(same);
            let mut without = process(edge(), 3);
            in_force(&mut without);
            let stats = without.stats();
            assert_eq!((stats.map_writes, stats.built), (2, 0), "roots, and which of them count");
            assert_eq!(numbers(), before);
        });
    }

    fn another_layout_and_other_programs_replace_what_is_attached() {
        in_namespace(|| {
            in_force(&mut process(edge(), 2));
            let before = numbers();
            in_force(&mut process(edge().with_layout_version(layout::VERSION + 1), 2));
            let after = numbers();
            assert!(before.iter().zip(&after).all(|(before, after)| before.0 == after.0 && before.1 != after.1));
            let mut others = edge();
            others.settings.deny_invalid_conntrack = false;
            others.layout_version += 1;
            let mut others = process(others, 2);
            in_force(&mut others);
            assert_eq!(others.stats().built, 1);
            drop(others);
            // Somebody detaches one of them.
            let folder = own_directory().unwrap().join(names_in(&own_directory().unwrap()).unwrap().remove(0));
            NetfilterLink::open(&folder.join("forward-4")).unwrap().detach().unwrap();
            let mut edge = edge();
            edge.settings.deny_invalid_conntrack = false;
            edge.layout_version += 1;
            let mut next = process(edge, 2);
            in_force(&mut next);
            assert_eq!(next.stats().built, 1);
        });
    }
}
