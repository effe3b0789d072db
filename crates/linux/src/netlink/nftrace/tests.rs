//! Against the kernel.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use tortie_lab::kernel_test;
use tortie_lab::pods::{Lab, LabHost, LabOptions, Pod, Port};

use super::*;
use crate::stop::poll_for;

const PATIENCE: Duration = Duration::from_secs(20);

/// Two pods, x/client and x/server, on a node.
fn lab() -> Lab {
    let pod = |name, last: u8| {
        let addresses = [format!("192.168.1.{last}"), format!("fd00:10::{last:x}")].map(|text| text.parse().unwrap());
        Pod::new("x", name, addresses, [Port::tcp(80)])
    };
    Lab::new(&[pod("client", 10), pod("server", 11)], &LabOptions::default()).unwrap()
}

fn ends(family: Family) -> (IpAddr, IpAddr) {
    let [client, server] = match family {
        Family::V4 => ["192.168.1.10", "192.168.1.11"],
        Family::V6 => ["fd00:10::a", "fd00:10::b"],
    };
    (client.parse().unwrap(), server.parse().unwrap())
}

/// Returns filters for TCP to port 80 and the replies.
fn filters(family: Family) -> [Filter; 2] {
    let (client, server) = ends(family);
    let ports = |source, destination| Transport::Ports { source, destination };
    let filter = |source, destination, transport| Filter { source, destination, protocol: 6, transport };
    [filter(client, server, ports(None, Some(80))), filter(server, client, ports(Some(80), None))]
}

/// Reads until a message reports the end of a packet from this source.
fn until_end_from(nftrace: &mut Nftrace, source: IpAddr) -> Vec<TraceMessage> {
    let (begin, mut messages) = (Instant::now(), Vec::new());
    loop {
        let read = nftrace.read(|message| messages.push(message)).unwrap();
        assert_eq!((read.lost, read.unreadable), (0, 0), "{messages:?}");
        let is_from = |message: &TraceMessage| message.headers.is_some_and(|headers| headers.tuple.source == source);
        let is_wanted =
            |message: &TraceMessage| message.is_end() && message.chain.table == nftrace.table() && is_from(message);
        if messages.iter().any(is_wanted) {
            return messages;
        }
        assert!(begin.elapsed() < PATIENCE, "{messages:?}");
        poll_for(&mut [PollFd::new(nftrace, PollFlags::IN)], PATIENCE).unwrap();
    }
}

kernel_test! {
    fn packets_of_a_flow_are_traced_and_no_others() {
        let lab = lab();
        lab.node().shell(
            "iptables-nft -A FORWARD -p tcp --dport 80 -j ACCEPT; ip6tables-nft -A FORWARD -p tcp --dport 80 -j ACCEPT",
        ).unwrap();
        for family in Family::ALL {
            let (client, server) = ends(family);
            let filters = filters(family);
            let mut nftrace = lab.node().run(|| Nftrace::open(family, "tortie-test", &filters)).unwrap().unwrap();
            let connect = |from: &str, to: IpAddr, port| {
                let place = LabHost::pod("x", from);
                lab.namespace(&place).unwrap().run(|| TcpStream::connect(SocketAddr::new(to, port))).unwrap()
            };
            // No filter matches this port or this direction.
            assert!(connect("client", server, 81).is_err());
            assert!(connect("server", client, 80).is_ok());
            let _open = connect("client", server, 80).unwrap();
            let messages = until_end_from(&mut nftrace, server);
            let first = messages[0].headers.unwrap().tuple;
            assert_eq!((first.source, first.destination), (client, server), "{messages:?}");
            assert_eq!(messages[0].tcp_flags, Some(2), "a SYN");
            let accepted = messages.iter().find(|message| message.chain.name == "FORWARD").unwrap();
            let Event::Rule { handle, verdict: TraceVerdict::Accept } = accepted.event else { panic!("{accepted:?}") };
            let handles = lab.node().run(|| handles(family)).unwrap().unwrap();
            assert_eq!(handles[&accepted.chain], [handle]);
            let of_client = messages.iter().filter(|message| message.id == accepted.id);
            assert!(of_client.clone().any(|message| message.is_end() && message.out_interface.is_some()));
            drop(nftrace);
            assert!(!lab.node().shell("nft list tables").unwrap().contains("tortie"));
        }
    }

    fn a_table_of_the_same_name_is_refused() {
        let lab = lab();
        let filters = filters(Family::V4);
        let open = || lab.node().run(|| Nftrace::open(Family::V4, "tortie-test", &filters)).unwrap();
        let first = open().unwrap();
        let second = open().unwrap_err();
        assert!(matches!(second, TraceError::Netlink(NetlinkError::Refused { .. })), "{second}");
        drop(first);
        // A process that another test starts may hold the socket until it runs its program.
        let patience = Instant::now() + Duration::from_secs(10);
        while let Err(error) = open() {
            assert!(Instant::now() < patience, "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
