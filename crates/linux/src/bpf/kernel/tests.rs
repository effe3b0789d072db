use tortie_dataplane::LinkEvent;
use tortie_ebpf::hooks::Hook;
use tortie_ebpf::layout::LearnedRecord;
use tortie_ebpf::{AdoptError, Interface, Node, NodeSettings, Write};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_model::desired::{DesiredUpdate, WorkloadEndpointState};
use tortie_model::{WorkloadEndpoint, WorkloadEndpointId};

use tortie_bpf::NetfilterLink;
use tortie_model::Family;

use super::*;
use crate::bpf::generations::{Contents, Generations};
use crate::bpf::{PacketLog, PolicyPrograms, PolicyState, ProgramPolicy};

const TIMEOUT: Duration = Duration::from_secs(10);
const NOW: Duration = Duration::from_secs(1);

/// Returns the ways of attachment that this kernel supports; every kernel supports rules.
fn attachments() -> Vec<Attachment> {
    let has = |attachment| Attacher::new(Some(attachment), TIMEOUT).lacking().unwrap().is_none();
    let found: Vec<Attachment> = Attachment::ALL.into_iter().filter(|attachment| has(*attachment)).collect();
    assert_eq!(found.last(), Some(&Attachment::Rule));
    found
}

fn edge(attachment: Attachment) -> LinuxEdge {
    let hooks = HookSettings {
        workload_prefixes: vec!["cali".into()],
        policy: NodeSettings::default().evaluate,
        deny_invalid_conntrack: true,
    };
    LinuxEdge::new(hooks, Some(attachment), TIMEOUT).unwrap()
}

/// Returns a process that has received pods at these interfaces.
fn process(edge: LinuxEdge, pods: u32) -> ProgramPolicy<LinuxEdge> {
    let mut policy = ProgramPolicy::new(NodeSettings::default(), Family::ALL.into(), edge, None);
    for pod in 1..=pods {
        let name = format!("cali{pod}");
        policy.on_link(&LinkEvent::Up { name: name.parse().unwrap(), index: 100 + pod });
        let id = WorkloadEndpointId {
            orchestrator: "k8s".into(),
            workload: format!("default/{name}").into(),
            endpoint: "eth0".into(),
        };
        let endpoint = WorkloadEndpoint {
            iface: Some(name.parse().unwrap()),
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
    in_force_at(policy, NOW);
}

#[track_caller]
fn in_force_at(policy: &mut ProgramPolicy<LinuxEdge>, now: Duration) {
    assert_eq!(policy.apply(now), PolicyState { in_force: true, problems: Vec::new() });
}

/// Detaches a program of this generation, as another process.
fn detach(link: &LinuxLink, generation: u64) {
    match link {
        LinuxLink::Link(link) => link.detach().unwrap(),
        LinuxLink::Rule(_) => attach::detach(generation, TIMEOUT).unwrap(),
    }
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
        } else if let Ok(program) = Program::open(&path) {
            if !name.starts_with("program-") {
                let id = program.info().unwrap().id;
                numbers.push((name, id, id));
            }
        } else if let Ok(map) = ArrayMap::open(&path) {
            numbers.push((name, map.info().id, map.info().entries));
        } else if let Ok(map) = PerCpuArrayMap::open(&path) {
            numbers.push((name, map.info().id, map.info().entries));
        } else if let Ok(ring) = RingBuffer::open(&path) {
            numbers.push((name, ring.info().id, ring.info().entries));
        } else if let Ok(map) = HashMap::open(&path) {
            numbers.push((name, map.id(), map.entries()));
        }
    }
    numbers.sort();
    assert_eq!(numbers.len(), 2 * Hook::ALL.len() + MapKind::ALL.len() + 1, "{numbers:?}");
    numbers
}

/// Returns a value of a pinned map.
fn value(attachment: Attachment, kind: MapKind, index: u32) -> Vec<u8> {
    let directory = own_directory().unwrap();
    let folder = names_in(&directory).unwrap().remove(0);
    let mut edge = edge(attachment);
    let (map, _) = edge.pinned_map(&folder, &format!("map-{}", kind.name()), kind).unwrap();
    edge.read(&map, index).unwrap()
}

/// Once for each way of attaching programs.
fn in_namespaces(body: impl Fn(Attachment) + Send + Sync) {
    for attachment in attachments() {
        let namespace = Namespace::new().unwrap();
        namespace
            .run(|| {
                body(attachment);
                assert_eq!(remove_all(TIMEOUT).unwrap(), 1);
                assert_eq!(attach::generations(TIMEOUT).unwrap(), [0; 0]);
            })
            .unwrap();
    }
}

/// Contents of a process that ends after this many writes; the other values are lost.
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

    fn take_learned(&mut self) -> Vec<LearnedWrite> {
        Vec::new()
    }

    fn all(&self) -> Vec<Write> {
        self.node.all().collect()
    }

    fn all_learned(&self) -> Vec<(LearnedKey, LearnedRecord)> {
        self.node.all_learned().collect()
    }

    fn note_refused(&mut self, key: LearnedKey) {
        self.node.note_refused(key);
    }

    fn reclaim(&mut self) {
        self.node.reclaim();
    }

    fn adopt(
        &mut self,
        decisions: u32,
        learned: &[(Vec<u8>, Vec<u8>)],
        read: &mut dyn FnMut(MapKind, u32) -> io::Result<Vec<u8>>,
    ) -> Result<(), AdoptError<io::Error>> {
        self.node.adopt_learned(learned)?;
        self.node.adopt(decisions, read)
    }
}

kernel_test! {
    fn a_restart_adopts_maps_and_programs_and_writes_the_changes() {
        in_namespaces(|attachment| {
            let mut first = process(edge(attachment), 3);
            in_force(&mut first);
            assert!(first.stats().map_writes > 0 && first.stats().built == 1);
            drop(first);
            let before = numbers();
            let mut same = process(edge(attachment), 3);
            in_force(&mut same);
            assert_eq!((same.stats().map_writes, same.stats().built), (0, 0));
            assert_eq!(numbers(), before);
            drop(same);

            // A pod that was added while no process ran.
            let mut changed = process(edge(attachment), 4);
            in_force(&mut changed);
            let writes = changed.stats().map_writes;
            assert!(writes > 0 && writes < 20, "{writes}");
            assert_eq!(numbers(), before);
            let current = value(attachment, MapKind::Current, 0);
            drop(changed);

            // A process ends at any point of a change; the next one completes it.
            for writes in 0..12 {
                let mut node = Node::new(NodeSettings::default());
                for pod in 1..=3 {
                    node.on_interface(Interface { name: format!("cali{pod}").parse().unwrap(), index: 200 + pod, addresses: Vec::new() });
                }
                node.on_update(&DesiredUpdate::InSync).unwrap();
                let mut ending = Generations::new(edge(attachment), Family::ALL.into());
                ending.reconcile(&mut Ending { node, writes }).unwrap();
                drop(ending);
                let mut next = process(edge(attachment), 4);
                in_force(&mut next);
                assert_eq!((next.stats().built, numbers()), (0, before.clone()));
            }
            assert_eq!(value(attachment, MapKind::Current, 0).len(), current.len());
        });
    }

    fn a_restart_goes_on_with_the_log_and_one_that_wants_none_ends_it() {
        in_namespaces(|attachment| {
            let log = PacketLog::default();
            in_force(&mut process(edge(attachment), 3).with_log(log.clone(), true));
            assert!(log.readable().unwrap().is_some());
            let before = numbers();
            let log = PacketLog::default();
            let mut same = process(edge(attachment), 3).with_log(log.clone(), true);
            in_force(&mut same);
            assert_eq!((same.stats().map_writes, same.stats().built), (0, 0));
            assert!(log.readable().unwrap().is_some());
            drop(same);
            let mut without = process(edge(attachment), 3);
            in_force(&mut without);
            let stats = without.stats();
            assert_eq!((stats.map_writes, stats.built), (2, 0), "roots, and which of them count");
            assert_eq!(numbers(), before);
        });
    }

    fn another_layout_or_other_programs_replace_attached_programs() {
        in_namespaces(|attachment| {
            in_force(&mut process(edge(attachment), 2));
            let before = numbers();
            in_force(&mut process(edge(attachment).with_layout_version(layout::VERSION + 1), 2));
            let after = numbers();
            assert!(before.iter().zip(&after).all(|(before, after)| before.0 == after.0 && before.1 != after.1));
            let mut others = edge(attachment);
            others.settings.deny_invalid_conntrack = false;
            others.layout_version += 1;
            let mut others = process(others, 2);
            in_force(&mut others);
            assert_eq!(others.stats().built, 1);
            drop(others);
            // Another process detaches one of them.
            let folder = own_directory().unwrap().join(names_in(&own_directory().unwrap()).unwrap().remove(0));
            let detached = edge(attachment).attacher.open(&folder.join("forward-4")).unwrap();
            detach(&detached, names_in(&own_directory().unwrap()).unwrap()[0].parse().unwrap());
            let mut edge = edge(attachment);
            edge.settings.deny_invalid_conntrack = false;
            edge.layout_version += 1;
            let mut next = process(edge, 2);
            in_force(&mut next);
            assert_eq!(next.stats().built, 1);
        });
    }

    fn rules_that_others_change_are_put_right_within_a_second() {
        let namespace = Namespace::new().unwrap();
        namespace
            .run(|| {
                let mut policy = process(edge(Attachment::Rule), 2);
                in_force(&mut policy);
                let rules = || namespace.shell("nft -n list ruleset").unwrap();
                let ours = rules();
                assert_eq!(ours.matches("comment \"eBPF program").count(), 2 * Hook::ALL.len(), "{ours}");
                let mut now = NOW;
                for (command, wrongs) in [
                    ("nft flush ruleset", 2 * Hook::ALL.len()),
                    ("nft flush chain ip tortie-bpf-1 forward", 1),
                    ("nft insert rule ip6 tortie-bpf-1 input accept", 1),
                    ("nft delete table ip tortie-bpf-1", Hook::ALL.len()),
                    ("nft add table ip other; nft add rule ip tortie-bpf-1 output accept", 1),
                ] {
                    namespace.shell(command).unwrap();
                    let before = policy.stats().repairs;
                    assert!(policy.next(now).unwrap() <= Duration::from_secs(1));
                    now += Duration::from_secs(1);
                    assert_eq!(policy.apply(now), PolicyState { in_force: true, problems: Vec::new() }, "{command}");
                    assert_eq!(policy.stats().repairs - before, wrongs as u64, "{command}");
                    let put_right = rules();
                    assert_eq!(put_right.matches("comment \"eBPF program").count(), 2 * Hook::ALL.len(), "{command}: {put_right}");
                    assert!(!put_right.contains("\t\taccept\n") && put_right.contains("inet tortie"), "{command}: {put_right}");
                    now += Duration::from_secs(1);
                    in_force_at(&mut policy, now);
                    assert_eq!(policy.stats().repairs - before, wrongs as u64, "{command}");
                }
                drop(policy);
                remove_all(TIMEOUT).unwrap();
                assert!(!rules().contains("tortie"), "{}", rules());
            })
            .unwrap();
    }

    fn an_agent_that_attaches_in_the_other_way_takes_over() {
        let all = attachments();
        let namespace = Namespace::new().unwrap();
        namespace
            .run(|| {
                for attachment in all.iter().chain(&all) {
                    let mut policy = process(edge(*attachment), 2);
                    in_force(&mut policy);
                    let by_rules = attach::generations(TIMEOUT).unwrap().len();
                    assert_eq!(by_rules, usize::from(*attachment == Attachment::Rule), "{attachment:?}");
                    numbers();
                }
                remove_all(TIMEOUT).unwrap();
            })
            .unwrap();
    }
}

#[test]
fn a_directory_that_others_may_have_written_is_not_used() {
    let mount = tempfile::tempdir().unwrap();
    let own = mount.path().join(OWN_DIRECTORY);
    make_own_directory(mount.path()).unwrap();
    assert_eq!(fs::metadata(&own).unwrap().mode() & 0o7777, 0o700);
    fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
    make_own_directory(mount.path()).unwrap();
    assert_eq!(fs::metadata(&own).unwrap().mode() & 0o7777, 0o700, "closed to readers as well");
    for mode in [0o777, 0o720, 0o1702] {
        fs::set_permissions(&own, fs::Permissions::from_mode(mode)).unwrap();
        let error = make_own_directory(mount.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{mode:o}");
        assert!(check_own_directory(&own).is_err());
    }
    fs::remove_dir(&own).unwrap();
    check_own_directory(&own).unwrap();
    std::os::unix::fs::symlink("/tmp", &own).unwrap();
    assert!(make_own_directory(mount.path()).is_err(), "a link leads elsewhere");
}
