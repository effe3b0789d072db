use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;
use regex::Regex;
use tortie_dataplane::LinkEvent;
use tortie_model::{InterfaceName, InvalidName};

use super::Monitor;
use crate::netlink::{LinkState, Notice, OddLink};

/// Monitor with the addresses that it reads, and a clock.
#[derive(Default)]
struct Rig {
    monitor: Monitor,
    now: Duration,
    addresses: BTreeMap<u32, BTreeSet<IpAddr>>,
}

impl Rig {
    fn notice(&mut self, notice: Notice) {
        self.monitor.on_notice(notice, self.now);
        self.read();
    }

    fn link(&mut self, index: u32, name: &str, is_running: bool) -> &mut Self {
        let Ok(name) = name.parse() else { return self.odd_link(index, name) };
        self.notice(Notice::Link(LinkState { index, name, is_up: is_running, is_running, mtu: 1500 }));
        self
    }

    fn odd_link(&mut self, index: u32, name: &str) -> &mut Self {
        self.notice(Notice::OddLink(OddLink { index, name: name.to_owned() }));
        self
    }

    fn gone(&mut self, index: u32) -> &mut Self {
        self.notice(Notice::LinkGone { index });
        self
    }

    fn address(&mut self, interface: u32, address: &str, is_present: bool) -> &mut Self {
        let address: IpAddr = address.parse().unwrap();
        let addresses = self.addresses.entry(interface).or_default();
        if is_present {
            addresses.insert(address)
        } else {
            addresses.remove(&address)
        };
        self.notice(Notice::Address { interface, address, is_present });
        self
    }

    fn wait(&mut self, milliseconds: u64) -> &mut Self {
        self.now += Duration::from_millis(milliseconds);
        self.monitor.advance(self.now);
        self.read();
        self
    }

    fn resync(&mut self, links: &[(u32, &str, bool)]) -> &mut Self {
        let state = |&(index, name, is_running): &(u32, &str, bool)| match name.parse() {
            Ok(name) => Ok(LinkState { index, name, is_up: is_running, is_running, mtu: 1500 }),
            Err(InvalidName { name, .. }) => Err(OddLink { index, name }),
        };
        self.monitor.resync(links.iter().map(state).collect(), self.addresses.clone());
        self
    }

    fn read(&mut self) {
        for index in self.monitor.take_stale() {
            self.monitor.on_addresses(index, self.addresses.get(&index).cloned().unwrap_or_default());
        }
    }

    #[track_caller]
    fn reports(&mut self, expected: &[&str]) -> &mut Self {
        let events: Vec<String> = self.monitor.take_events().iter().map(text).collect();
        assert_eq!(events, expected);
        self
    }
}

fn text(event: &LinkEvent) -> String {
    match event {
        LinkEvent::Up { name, index } => format!("{name} up {index}"),
        LinkEvent::Down { name, index } => format!("{name} down {index}"),
        LinkEvent::Gone { name } => format!("{name} gone"),
        LinkEvent::Addresses { name, addresses } => {
            let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            format!("{name} has {}", addresses.join(" ")).trim_end().to_owned()
        }
    }
}

#[test]
fn a_link_that_comes_up_is_reported_at_once_and_only_once() {
    let mut rig = Rig::default();
    rig.link(5, "cali1", true).reports(&["cali1 up 5", "cali1 has"]);
    rig.link(5, "cali1", true).reports(&[]);
    assert_eq!(rig.monitor.next_deadline(), None);
}

#[test]
fn a_new_link_that_is_down_at_first_is_up_without_delay() {
    let mut rig = Rig::default();
    rig.link(5, "cali1", false).reports(&["cali1 down 5", "cali1 has"]);
    rig.link(5, "cali1", false).link(5, "cali1", true).reports(&["cali1 up 5"]);
    assert_eq!(rig.monitor.next_deadline(), None);
}

#[test]
fn a_down_event_is_held_back_and_later_events_wait_behind_it() {
    let mut rig = Rig::default();
    rig.link(5, "cali1", true).reports(&["cali1 up 5", "cali1 has"]);
    rig.link(5, "cali1", false).wait(50).link(5, "cali1", true).reports(&[]);
    assert_eq!(rig.monitor.next_deadline(), Some(Duration::from_millis(100)));
    rig.wait(49).reports(&[]);
    rig.wait(1).reports(&["cali1 down 5", "cali1 up 5"]);
}

#[test]
fn other_links_do_not_wait() {
    let mut rig = Rig::default();
    rig.link(5, "cali1", true).link(5, "cali1", false).reports(&["cali1 up 5", "cali1 has"]);
    rig.link(6, "cali2", true).reports(&["cali2 up 6", "cali2 has"]);
}

#[test]
fn an_address_that_comes_back_soon_was_never_away() {
    let mut rig = Rig::default();
    rig.link(2, "eth0", true).address(2, "10.0.0.1", true).reports(&["eth0 up 2", "eth0 has", "eth0 has 10.0.0.1"]);
    rig.address(2, "10.0.0.1", false).wait(60).address(2, "10.0.0.1", true).reports(&[]);
    rig.wait(1000).reports(&[]);
}

#[test]
fn an_address_that_stays_away_is_gone_after_a_while() {
    let mut rig = Rig::default();
    rig.address(2, "10.0.0.1", true).link(2, "eth0", true).reports(&["eth0 up 2", "eth0 has 10.0.0.1"]);
    rig.address(2, "10.0.0.1", false).wait(99).reports(&[]);
    rig.wait(1).reports(&["eth0 has"]);
}

#[test]
fn another_address_waits_behind_one_that_goes() {
    let mut rig = Rig::default();
    rig.link(2, "eth0", true).address(2, "10.0.0.1", true).reports(&["eth0 up 2", "eth0 has", "eth0 has 10.0.0.1"]);
    rig.address(2, "10.0.0.1", false).address(2, "10.0.0.2", true).reports(&[]);
    rig.wait(100).reports(&["eth0 has", "eth0 has 10.0.0.2"]);
}

#[test]
fn addresses_of_a_link_that_is_down_are_known() {
    let mut rig = Rig::default();
    rig.address(2, "10.0.0.1", true).link(2, "eth0", false).wait(100).reports(&["eth0 down 2", "eth0 has 10.0.0.1"]);
}

#[test]
fn addresses_that_vanish_without_a_word_are_noticed_with_the_link() {
    let mut rig = Rig::default();
    rig.address(2, "10.0.0.1", true).link(2, "eth0", true).reports(&["eth0 up 2", "eth0 has 10.0.0.1"]);
    rig.addresses.clear();
    rig.link(2, "eth0", false).wait(100).reports(&["eth0 down 2", "eth0 has"]);
}

#[test]
fn addresses_are_read_for_new_links_and_those_that_go_down() {
    let mut monitor = Monitor::new(Vec::new());
    let mut stale_after = |name: &str, is_up| {
        let link = LinkState { index: 5, name: name.parse().unwrap(), is_up, is_running: is_up, mtu: 1500 };
        monitor.take(Notice::Link(link));
        let stale = monitor.take_stale();
        stale.iter().for_each(|index| monitor.on_addresses(*index, BTreeSet::new()));
        !stale.is_empty()
    };
    assert!(stale_after("veth1", false));
    assert!(!stale_after("veth1", true));
    assert!(!stale_after("veth2", true));
    assert!(stale_after("veth2", false));
    assert!(!stale_after("veth2", false));
}

#[test]
fn a_rename_does_not_hide_that_a_link_went_down() {
    let mut rig = Rig::default();
    rig.address(2, "fd00::1", true).link(2, "eth0", true).reports(&["eth0 up 2", "eth0 has fd00::1"]);
    rig.addresses.clear();
    let down = |name: &str| {
        Notice::Link(LinkState { index: 2, name: name.parse().unwrap(), is_up: false, is_running: false, mtu: 1500 })
    };
    rig.monitor.take(down("eth0"));
    rig.monitor.take(down("eth1"));
    rig.read();
    rig.reports(&["eth0 down 2", "eth0 gone", "eth1 down 2", "eth1 has fd00::1", "eth1 has"]);
}

#[test]
fn a_rename_is_one_that_goes_and_one_that_comes() {
    let mut rig = Rig::default();
    rig.address(5, "10.0.0.1", true).link(5, "veth1", true).reports(&["veth1 up 5", "veth1 has 10.0.0.1"]);
    rig.link(5, "cali1", true).reports(&["veth1 gone", "cali1 up 5", "cali1 has 10.0.0.1"]);
}

#[test]
fn a_link_with_an_odd_name_counts_as_gone() {
    let mut rig = Rig::default();
    rig.address(5, "10.0.0.1", true).link(5, "eth0", true).reports(&["eth0 up 5", "eth0 has 10.0.0.1"]);
    rig.odd_link(5, "é").reports(&[]).wait(100).reports(&["eth0 gone"]);
    rig.odd_link(5, "eth+").address(5, "10.0.0.2", true).wait(100).reports(&[]);
    rig.link(5, "eth0", true).reports(&["eth0 up 5", "eth0 has 10.0.0.1 10.0.0.2"]);
    rig.odd_link(5, "é").gone(5).wait(100).reports(&["eth0 gone"]);
}

#[test]
fn a_resync_finds_odd_names() {
    let mut rig = Rig::default();
    rig.resync(&[(2, "eth0", true), (3, "!x", true)]).reports(&["eth0 up 2", "eth0 has"]);
    rig.resync(&[(2, "a b", true), (3, "eth1", true)]).reports(&["eth0 gone", "eth1 up 3", "eth1 has"]);
    rig.resync(&[(2, "eth0", true)]).reports(&["eth1 gone", "eth0 up 2", "eth0 has"]);
}

#[test]
fn a_successor_of_the_same_name_is_reported_when_the_old_one_is_gone() {
    let mut rig = Rig::default();
    rig.link(5, "cali1", true).reports(&["cali1 up 5", "cali1 has"]);
    // The notification of the new link comes first.
    rig.link(6, "cali1", true).address(6, "10.0.0.1", true).reports(&[]);
    rig.gone(5).reports(&[]);
    rig.wait(100).reports(&["cali1 up 6", "cali1 has 10.0.0.1"]);
}

#[test]
fn a_successor_that_does_not_last_leaves_the_old_one_as_it_is() {
    let mut rig = Rig::default();
    rig.link(5, "cali1", true).reports(&["cali1 up 5", "cali1 has"]);
    rig.link(6, "cali1", true).gone(6).wait(100).reports(&[]);
}

#[test]
fn a_link_that_is_gone_is_reported_after_a_while() {
    let mut rig = Rig::default();
    rig.link(5, "cali1", true).reports(&["cali1 up 5", "cali1 has"]);
    rig.gone(5).reports(&[]);
    rig.wait(100).reports(&["cali1 gone"]);
    rig.gone(5).wait(100).reports(&[]);
}

#[test]
fn addresses_of_excluded_interfaces_are_not_reported() {
    let mut rig = Rig { monitor: Monitor::new(vec![Regex::new("^kube-ipvs0$").unwrap()]), ..Rig::default() };
    rig.address(3, "10.0.0.1", true).link(3, "kube-ipvs0", true).reports(&["kube-ipvs0 up 3"]);
    rig.address(3, "10.0.0.2", true).reports(&[]);
    rig.link(3, "other0", true).reports(&["kube-ipvs0 gone", "other0 up 3", "other0 has 10.0.0.1 10.0.0.2"]);
}

#[test]
fn a_resync_finds_missed_changes() {
    let mut rig = Rig::default();
    rig.resync(&[(1, "lo", true), (5, "cali1", false)]);
    rig.reports(&["lo up 1", "lo has", "cali1 down 5", "cali1 has"]);
    rig.addresses.insert(1, ["127.0.0.1".parse().unwrap()].into());
    rig.resync(&[(1, "lo", true), (6, "cali1", true), (7, "cali2", true)]);
    rig.reports(&["cali1 gone", "lo has 127.0.0.1", "cali1 up 6", "cali1 has", "cali2 up 7", "cali2 has"]);
    rig.resync(&[(1, "lo", true), (6, "cali1", true), (7, "cali2", true)]).reports(&[]);
}

#[test]
fn a_resync_finds_names_that_were_swapped() {
    let mut rig = Rig::default();
    rig.resync(&[(1, "a", true), (2, "b", true)]).reports(&["a up 1", "a has", "b up 2", "b has"]);
    rig.resync(&[(1, "b", true), (2, "a", true)]);
    rig.reports(&["a gone", "b up 1", "a up 2", "a has"]);
}

#[test]
fn a_resync_does_not_overtake_held_changes() {
    let mut rig = Rig::default();
    rig.link(2, "eth0", true).address(2, "10.0.0.1", true).reports(&["eth0 up 2", "eth0 has", "eth0 has 10.0.0.1"]);
    rig.address(2, "10.0.0.1", false).resync(&[(2, "eth0", true)]).reports(&[]);
    rig.wait(100).reports(&["eth0 has"]);
}

#[test]
fn after_lost_changes_a_resync_counts_alone() {
    let mut rig = Rig::default();
    rig.link(2, "eth0", true).reports(&["eth0 up 2", "eth0 has"]);
    rig.link(2, "eth0", false);
    rig.monitor.discard_held();
    rig.resync(&[(2, "eth0", true)]).wait(1000).reports(&[]);
}

/// Names of links; no rule can refer to the last one.
const NAMES: [&str; 5] = ["if0", "if1", "if2", "if3", "é0"];

/// Step in the life of a link of the kernel, chosen by number.
#[derive(Clone, Debug)]
enum Step {
    Create { name: usize, is_running: bool },
    Delete(usize),
    Rename { link: usize, name: usize },
    Set { link: usize, is_running: bool },
    Address { link: usize, address: u8, is_present: bool },
    Wait(u64),
    Resync,
    Lost,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..NAMES.len(), any::<bool>()).prop_map(|(name, is_running)| Step::Create { name, is_running }),
        2 => any::<usize>().prop_map(Step::Delete),
        2 => (any::<usize>(), 0..NAMES.len()).prop_map(|(link, name)| Step::Rename { link, name }),
        4 => (any::<usize>(), any::<bool>()).prop_map(|(link, is_running)| Step::Set { link, is_running }),
        4 => (any::<usize>(), 0..3_u8, any::<bool>())
            .prop_map(|(link, address, is_present)| Step::Address { link, address, is_present }),
        4 => (1..150_u64).prop_map(Step::Wait),
        1 => Just(Step::Resync),
        1 => Just(Step::Lost),
    ]
}

/// State according to the events: index, state and addresses by name.
type View = BTreeMap<InterfaceName, (u32, bool, BTreeSet<IpAddr>)>;

/// Applies an event. Every event must change something, and addresses must belong to an existing
/// interface.
fn follow(view: &mut View, event: LinkEvent) {
    let before = view.clone();
    match event {
        LinkEvent::Up { name, index } => {
            let entry = view.entry(name).or_default();
            (entry.0, entry.1) = (index, true);
        }
        LinkEvent::Down { name, index } => {
            let entry = view.entry(name).or_default();
            (entry.0, entry.1) = (index, false);
        }
        LinkEvent::Gone { name } => assert!(view.remove(&name).is_some()),
        LinkEvent::Addresses { name, addresses } => {
            let entry = view.get_mut(&name).unwrap();
            // The first report of a name may have no addresses.
            if addresses.is_empty() && entry.2.is_empty() {
                return;
            }
            entry.2 = addresses;
        }
    }
    assert_ne!(*view, before, "says nothing new");
}

fn pick(links: &BTreeMap<u32, (String, bool)>, number: usize) -> Option<u32> {
    links.keys().nth(number.checked_rem(links.len())?).copied()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// After any sequence of steps, the reports add up to the actual state.
    #[test]
    fn reports_add_up_to_the_actual_state(steps in proptest::collection::vec(step(), 0..60)) {
        let mut rig = Rig::default();
        let mut links: BTreeMap<u32, (String, bool)> = BTreeMap::new();
        let mut next_index = 1;
        let mut view = View::new();
        for step in steps {
            let is_free = |name: &str| links.values().all(|(taken, _)| taken != name);
            match step {
                Step::Create { name, is_running } if is_free(NAMES[name]) => {
                    links.insert(next_index, (NAMES[name].to_owned(), is_running));
                    rig.link(next_index, NAMES[name], is_running);
                    next_index += 1;
                }
                Step::Delete(link) => if let Some(index) = pick(&links, link) {
                    links.remove(&index);
                    rig.addresses.remove(&index);
                    rig.gone(index);
                },
                Step::Rename { link, name } if is_free(NAMES[name]) => {
                    if let Some(index) = pick(&links, link) {
                        let link = links.get_mut(&index).unwrap();
                        link.0 = NAMES[name].to_owned();
                        let is_running = link.1;
                        rig.link(index, NAMES[name], is_running);
                    }
                }
                Step::Set { link, is_running } => if let Some(index) = pick(&links, link) {
                    let (name, was_running) = links[&index].clone();
                    links.get_mut(&index).unwrap().1 = is_running;
                    // The kernel may drop addresses silently, but only when the link goes down.
                    if was_running && !is_running {
                        rig.addresses.remove(&index);
                    }
                    rig.link(index, &name, is_running);
                },
                Step::Address { link, address, is_present } => if let Some(index) = pick(&links, link) {
                    rig.address(index, &format!("10.0.0.{address}"), is_present);
                },
                Step::Wait(milliseconds) => { rig.wait(milliseconds); }
                Step::Resync | Step::Lost => {
                    if matches!(step, Step::Lost) {
                        rig.monitor.discard_held();
                    }
                    let list: Vec<_> = links.iter().map(|(i, (name, up))| (*i, name.as_str(), *up)).collect();
                    rig.resync(&list);
                }
                Step::Create { .. } | Step::Rename { .. } => {}
            }
            rig.monitor.take_events().into_iter().for_each(|event| follow(&mut view, event));
        }
        rig.wait(1000);
        rig.monitor.take_events().into_iter().for_each(|event| follow(&mut view, event));
        let expected: View = links
            .into_iter()
            .filter_map(|(index, (name, up))| {
                Some((name.parse().ok()?, (index, up, rig.addresses.get(&index).cloned().unwrap_or_default())))
            })
            .collect();
        prop_assert_eq!(view, expected);
        prop_assert_eq!(rig.monitor.next_deadline(), None);
    }
}
