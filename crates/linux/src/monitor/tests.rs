use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use tortie_dataplane::LinkEvent;
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;

use super::{MonitorConfig, MonitorEvent, MonitorThread, spawn};

/// A namespace that is watched.
struct Watched {
    namespace: Namespace,
    events: Receiver<MonitorEvent>,
    _thread: MonitorThread,
}

impl Watched {
    fn new(config: MonitorConfig) -> Self {
        let namespace = Namespace::new().unwrap();
        let (sender, events) = mpsc::sync_channel(100);
        let thread = namespace.run(|| spawn(config, sender)).unwrap().unwrap();
        Self { namespace, events, _thread: thread }
    }

    fn ip(&self, lines: &[&str]) -> &Self {
        self.namespace.ip(lines).unwrap();
        self
    }

    fn index(&self, name: &str) -> u32 {
        self.namespace
            .shell(&format!("cat /sys/class/net/{name}/ifindex || ip -o link show {name}"))
            .map_or(0, |text| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0))
    }

    /// Waits for an event for which `is_it` is true, and returns the events up to it.
    #[track_caller]
    fn wait_for(&self, is_it: impl Fn(&LinkEvent) -> bool) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        loop {
            match self.events.recv_timeout(Duration::from_secs(10)) {
                Ok(MonitorEvent::Link(event)) => {
                    events.push(event);
                    if events.last().is_some_and(&is_it) {
                        return events;
                    }
                }
                other => panic!("{other:?} after {events:?}"),
            }
        }
    }

    #[track_caller]
    fn wait_for_sync(&self) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        loop {
            match self.events.recv_timeout(Duration::from_secs(10)) {
                Ok(MonitorEvent::Link(event)) => events.push(event),
                Ok(MonitorEvent::InSync) => return events,
                other => panic!("{other:?} after {events:?}"),
            }
        }
    }
}

fn is_up(wanted: &str) -> impl Fn(&LinkEvent) -> bool {
    move |event| matches!(event, LinkEvent::Up { name, .. } if name.as_str() == wanted)
}

fn is_down(wanted: &str) -> impl Fn(&LinkEvent) -> bool {
    move |event| matches!(event, LinkEvent::Down { name, .. } if name.as_str() == wanted)
}

fn is_gone(wanted: &str) -> impl Fn(&LinkEvent) -> bool {
    move |event| matches!(event, LinkEvent::Gone { name } if name.as_str() == wanted)
}

fn has(wanted: &str, address: &str) -> impl Fn(&LinkEvent) -> bool {
    let address: IpAddr = address.parse().unwrap();
    move |event| matches!(event, LinkEvent::Addresses { name, addresses } if name.as_str() == wanted && addresses.contains(&address))
}

kernel_test! {
    fn existing_links_are_reported_before_the_sync() {
        let watched = Watched::new(MonitorConfig::default());
        let events = watched.wait_for_sync();
        assert!(events.iter().any(is_up("lo")), "{events:?}");
        assert!(events.iter().any(has("lo", "127.0.0.1")), "{events:?}");
    }

    fn the_life_of_an_interface_is_reported_in_order() {
        let watched = Watched::new(MonitorConfig::default());
        watched.wait_for_sync();
        watched.ip(&["link add w0 type veth peer name w1"]).wait_for(is_down("w0"));
        watched.ip(&["link set w0 up", "link set w1 up"]).wait_for(is_up("w0"));
        watched.ip(&["link set w1 down"]).wait_for(is_down("w0"));
        watched.ip(&["link set w1 up"]).wait_for(is_up("w0"));
        watched.ip(&["link set w0 down", "link set w0 name x0", "link set x0 up"]);
        let events = watched.wait_for(is_up("x0"));
        assert!(events.iter().any(is_gone("w0")), "{events:?}");
        watched.ip(&["link del x0"]).wait_for(is_gone("x0"));
    }

    fn an_interface_that_is_recreated_has_another_index() {
        let watched = Watched::new(MonitorConfig::default());
        watched.wait_for_sync();
        let make = ["link add w0 type veth peer name w1", "link set w0 up", "link set w1 up"];
        let index_of = |events: &[LinkEvent]| match events.last() {
            Some(LinkEvent::Up { index, .. }) => *index,
            other => panic!("{other:?}"),
        };
        let first = index_of(&watched.ip(&make).wait_for(is_up("w0")));
        let mut again = vec!["link del w0"];
        again.extend(make);
        watched.ip(&again);
        let second =
            index_of(&watched.wait_for(|event| matches!(event, LinkEvent::Up { name, index } if name.as_str() == "w0" && *index != first)));
        assert_eq!(second, watched.index("w0"));
    }

    fn addresses_come_and_go_but_do_not_flap() {
        let watched = Watched::new(MonitorConfig::default());
        watched.wait_for_sync();
        watched.ip(&["link add w0 type veth peer name w1", "link set w0 up", "link set w1 up"]).wait_for(is_up("w0"));
        watched.ip(&["addr add 10.0.0.1/24 dev w0"]).wait_for(has("w0", "10.0.0.1"));
        watched.ip(&["addr del 10.0.0.1/24 dev w0", "addr add 10.0.0.1/24 dev w0", "addr add 10.0.0.2/24 dev w0"]);
        let events = watched.wait_for(has("w0", "10.0.0.2"));
        let lost = |event: &LinkEvent| matches!(event, LinkEvent::Addresses { name, .. } if name.as_str() == "w0") && !has("w0", "10.0.0.1")(event);
        assert!(!events.iter().any(lost), "{events:?}");
        watched.ip(&["addr add fd00::1/64 dev w0 nodad"]).wait_for(has("w0", "fd00::1"));
        watched.ip(&["addr del 10.0.0.1/24 dev w0"]).wait_for(lost);
    }

    fn addresses_are_known_before_the_interface_is_up() {
        let watched = Watched::new(MonitorConfig::default());
        watched.wait_for_sync();
        watched.ip(&["link add w0 type veth peer name w1", "addr add 10.0.0.1/24 dev w0"]);
        let events = watched.wait_for(has("w0", "10.0.0.1"));
        assert!(!events.iter().any(is_up("w0")), "{events:?}");
    }

    fn addresses_that_go_with_the_state_of_the_interface() {
        let watched = Watched::new(MonitorConfig::default());
        watched.wait_for_sync();
        watched.ip(&["link add w0 type veth peer name w1", "link set w0 up", "link set w1 up"]).wait_for(is_up("w0"));
        watched.ip(&["addr add 10.0.0.1/24 dev w0"]).wait_for(has("w0", "10.0.0.1"));
        watched.ip(&["addr add fd00::1/64 dev w0 nodad"]).wait_for(has("w0", "fd00::1"));
        // IPv4 addresses stay local while the interface is down, IPv6 addresses do not.
        watched
            .ip(&["link set w0 down"])
            .wait_for(|event| has("w0", "10.0.0.1")(event) && !has("w0", "fd00::1")(event));
    }

    fn addresses_that_the_kernel_drops_without_messages() {
        let watched = Watched::new(MonitorConfig::default());
        watched.wait_for_sync();
        watched.namespace.shell("echo 1 > /proc/sys/net/ipv6/route/skip_notify_on_dev_down").unwrap();
        watched.ip(&["link add w0 type veth peer name w1", "link set w0 up", "link set w1 up"]).wait_for(is_up("w0"));
        watched.ip(&["addr add fd00::1/64 dev w0 nodad"]).wait_for(has("w0", "fd00::1"));
        let lost = |event: &LinkEvent| matches!(event, LinkEvent::Addresses { name, .. } if name.as_str() == "w0") && !has("w0", "fd00::1")(event);
        watched.ip(&["link set w0 down"]).wait_for(lost);
        watched.ip(&["link set w0 up", "addr add fd00::1/64 dev w0 nodad"]).wait_for(has("w0", "fd00::1"));
    }

    fn a_renamed_interface_keeps_its_addresses() {
        let watched = Watched::new(MonitorConfig::default());
        watched.wait_for_sync();
        watched.ip(&["link add w0 type veth peer name w1", "addr add 10.0.0.1/24 dev w0"]).wait_for(has("w0", "10.0.0.1"));
        watched.ip(&["link set w0 name x0"]).wait_for(has("x0", "10.0.0.1"));
    }

    fn listing_again_and_again_changes_nothing() {
        let resync_interval = Some(Duration::from_millis(20));
        let watched = Watched::new(MonitorConfig { resync_interval, ..MonitorConfig::default() });
        watched.wait_for_sync();
        watched.ip(&["link add w0 type veth peer name w1"]).wait_for(is_down("w1"));
        watched.ip(&["link del w0"]);
        let events = watched.wait_for(is_gone("w1"));
        assert!(events.iter().filter(|event| is_gone("w1")(event)).count() == 1 && !events.iter().any(is_up("w1")), "{events:?}");
    }
}
