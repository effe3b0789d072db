//! Lists: of one interface, with concurrent changes, and too long for the buffer.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_DUMP_INTR, NLM_F_MULTIPART};
use rustix::io::Errno;
use tortie_dataplane::{Route, RouteScope, RouteTableIndex};
use tortie_lab::kernel_test;
use tortie_model::Family;

use super::{in_namespace, route_to, via};
use crate::netlink::listing::Listing;
use crate::netlink::wire::{self, NLMSG_DONE, NLMSG_ERROR, NLMSG_OVERRUN};
use crate::netlink::{NetlinkError, Subscription, route};

const ITEM: u16 = 24;

fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut padded = payload.to_vec();
    padded.resize(payload.len().next_multiple_of(4), 0);
    wire::encode(kind, NLM_F_MULTIPART | flags, sequence, &padded)
}

/// Returns the outcome of a dump with sequence number 7 in these datagrams.
fn list(datagrams: &[Vec<Vec<u8>>]) -> Result<Option<Vec<u8>>, NetlinkError> {
    let mut listing = Listing::new(7, "things");
    for datagram in datagrams {
        let mut first = |_, payload: &[u8]| Ok::<_, NetlinkError>(payload.first().copied());
        if listing.take(&datagram.concat(), &mut first)? {
            return Ok(Some(listing.into_found()));
        }
    }
    Ok(None)
}

#[test]
fn a_list_ends_with_its_end() {
    let item = |number| message(ITEM, 0, 7, &[number]);
    let done = || message(NLMSG_DONE, 0, 7, &[0; 4]);
    assert_eq!(list(&[vec![item(1), item(2)], vec![item(3)], vec![done()]]).unwrap(), Some(vec![1, 2, 3]));
    assert_eq!(list(&[vec![item(1)]]).unwrap(), None);
    // The rest of an abandoned dump.
    let old = [message(ITEM, 0, 6, &[9]), message(NLMSG_DONE, 0, 6, &[0; 4]), message(NLMSG_OVERRUN, 0, 6, &[])];
    assert_eq!(list(&[old.to_vec(), vec![item(1), done()]]).unwrap(), Some(vec![1]));
}

#[test]
fn a_list_that_changed_meanwhile_is_none() {
    let plain = [message(ITEM, 0, 7, &[1]), message(ITEM, 0, 7, &[2]), message(NLMSG_DONE, 0, 7, &[0; 4])];
    let marked = [
        message(ITEM, NLM_F_DUMP_INTR, 7, &[1]),
        message(ITEM, NLM_F_DUMP_INTR, 7, &[2]),
        message(NLMSG_DONE, NLM_F_DUMP_INTR, 7, &[0; 4]),
    ];
    for at in 0..plain.len() {
        let mut messages = plain.clone();
        messages[at].clone_from(&marked[at]);
        let error = list(&[messages.to_vec()]).unwrap_err();
        assert!(matches!(error, NetlinkError::Interrupted { subject: "things" }), "{error}");
        assert!(error.is_worth_another_dump());
    }
    let refused =
        |errno: Errno| list(&[vec![message(NLMSG_DONE, 0, 7, &(-errno.raw_os_error()).to_ne_bytes())]]).unwrap_err();
    assert!(refused(Errno::INTR).is_worth_another_dump());
    assert!(!refused(Errno::PERM).is_worth_another_dump());
}

#[test]
fn a_list_that_does_not_fit_is_made_again() {
    let overrun = list(&[vec![message(ITEM, 0, 7, &[1]), message(NLMSG_OVERRUN, 0, 7, &[])]]).unwrap_err();
    assert!(matches!(overrun, NetlinkError::Overflow) && overrun.is_worth_another_dump());
    let error = NetlinkError::from_io("things", Errno::NOBUFS.into());
    assert!(matches!(error, NetlinkError::Overflow));
    let acknowledged = list(&[vec![message(NLMSG_ERROR, 0, 7, &[0; 20])]]).unwrap_err();
    assert!(matches!(acknowledged, NetlinkError::Malformed { .. }), "{acknowledged}");
}

/// Returns lines for `ip -batch`, one for each of this many networks.
fn lines(verb: &str, count: u32, device: &str) -> String {
    let mut text = String::new();
    for number in 0..count {
        let _ = writeln!(
            text,
            "route {verb} 10.{}.{}.{}/32 dev {device}",
            100 + (number >> 16),
            number >> 8 & 255,
            number & 255
        );
    }
    text
}

kernel_test! {
    fn routes_of_one_interface_cost_nothing_for_others() {
        in_namespace(|namespace, netlink, [w0, w1]| {
            namespace.output(Command::new("ip").args(["-batch", "-"]), &lines("add", 2000, "w1")).unwrap();
            namespace.ip(["route add fd00:1::/64 dev w1", "route add fd00:2::/64 dev w0"]).unwrap();
            for (family, destination, scope) in
                [(Family::V4, "10.65.0.2/32", RouteScope::LINK), (Family::V6, "fd00:65::2/128", RouteScope::UNIVERSE)]
            {
                let wanted = route_to(destination, via(w0, scope));
                super::change(netlink, tortie_dataplane::RouteChange::Replace(wanted.clone())).unwrap();
                let found = netlink.routes_of(family, RouteTableIndex::MAIN, w0).unwrap();
                assert!(found.contains(&wanted) && found.len() < 10, "{found:?}");
                let mut of_all = netlink.routes(family, RouteTableIndex::MAIN).unwrap();
                of_all.retain(|route| route.target.interface == Some(w0));
                assert_eq!(found, of_all);
                // The kernel omits the others.
                let request = route::dump_request(family, RouteTableIndex::MAIN, Some(w0));
                let parse = |kind, payload: &[u8]| route::parse(family, RouteTableIndex::MAIN, kind, payload);
                let sent: Vec<Route> = netlink.socket.dump(request, "routes", parse).unwrap();
                assert_eq!(sent.len(), found.len());
                assert_eq!(netlink.routes_of(family, RouteTableIndex::MAIN, 9999).unwrap(), []);
            }
            assert!(netlink.routes_of(Family::V4, RouteTableIndex::MAIN, w1).unwrap().len() >= 2000);
        });
    }

    fn lists_are_complete_during_foreign_changes() {
        in_namespace(|namespace, netlink, [_, w1]| {
            namespace.output(Command::new("ip").args(["-batch", "-"]), &lines("add", 3000, "w1")).unwrap();
            let flaps = lines("replace", 2000, "w0").replace("route replace 10.100", "route replace 10.200");
            let flaps = flaps.clone() + &flaps.replace("replace", "del");
            std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    for _ in 0..3 {
                        namespace.output(Command::new("ip").args(["-batch", "-"]), &flaps).unwrap();
                    }
                });
                let mut lists = 0;
                while !other.is_finished() || lists == 0 {
                    match netlink.routes(Family::V4, RouteTableIndex::MAIN) {
                        Ok(routes) => {
                            let stable = routes.iter().filter(|route| route.target.interface == Some(w1)).count();
                            assert!(stable >= 3000, "{stable} of 3000 routes were listed");
                            lists += 1;
                        }
                        // The list changes too fast, which is reported as an error.
                        Err(NetlinkError::Interrupted { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                other.join().unwrap();
            });
        });
    }

    fn a_slow_subscriber_is_informed_of_lost_changes() {
        in_namespace(|namespace, _, _| {
            let mut subscription = Subscription::open().unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            let batch = lines("add", 10_000, "w1") + &lines("del", 10_000, "w1");
            let overflow = loop {
                namespace.output(Command::new("ip").args(["-batch", "-"]), &batch).unwrap();
                // Changes that fit into the buffer come first.
                let received = std::iter::repeat_with(|| subscription.receive(Duration::from_millis(50)));
                let mut unread = received.take(20_000).take_while(|notices| !matches!(notices, Ok(notices) if notices.is_empty()));
                match unread.find_map(Result::err) {
                    Some(error) => break error,
                    None => assert!(Instant::now() < deadline, "nothing is lost"),
                }
            };
            assert!(matches!(overflow, NetlinkError::Overflow), "{overflow}");
        });
    }
}
