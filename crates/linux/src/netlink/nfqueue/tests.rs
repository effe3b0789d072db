//! Against the kernel.

use std::net::UdpSocket;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;

use super::*;
use crate::stop::poll_for;

const PATIENCE: Duration = Duration::from_secs(20);

/// A namespace whose answers from port 9 are queued, with a server there and a client.
struct Loopback {
    namespace: Namespace,
    server: UdpSocket,
    client: UdpSocket,
}

fn loopback(address: &str) -> Loopback {
    let namespace = Namespace::new().unwrap();
    for program in ["iptables", "ip6tables"] {
        let rule = "-w -t mangle -A POSTROUTING -p udp --sport 9 -m conntrack --ctstate ESTABLISHED --ctdir REPLY \
                    -j NFQUEUE --queue-num 101 --queue-bypass";
        namespace.shell(&format!("{program} {rule}")).unwrap();
    }
    let bind = |port: u16| {
        let socket = namespace.run(|| UdpSocket::bind((address, port)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        socket
    };
    let (server, client) = (bind(9), bind(0));
    client.connect(server.local_addr().unwrap()).unwrap();
    Loopback { server, client, namespace }
}

impl Loopback {
    fn open(&self, length: u32) -> Nfqueue {
        self.namespace.run(|| Nfqueue::open(101, length)).unwrap().unwrap()
    }

    /// Sends this text to the server, which sends it back.
    fn ask(&self, text: &str) {
        let mut received = [0; 100];
        self.client.send(text.as_bytes()).unwrap();
        let (length, from) = self.server.recv_from(&mut received).unwrap();
        self.server.send_to(&received[..length], from).unwrap();
    }

    /// Returns the next answer that arrives, if one does.
    fn answer(&self) -> Option<String> {
        let mut received = [0; 100];
        let length = self.client.recv(&mut received).ok()?;
        Some(String::from_utf8(received[..length].to_vec()).unwrap())
    }
}

/// Reads until this many packets have come; returns the id and payload of each.
fn collect(queue: &mut Nfqueue, count: usize) -> Vec<(u32, String)> {
    let (begin, mut packets) = (Instant::now(), Vec::new());
    while packets.len() < count {
        assert!(begin.elapsed() < PATIENCE, "{count}: {packets:?}");
        poll_for(&mut [PollFd::new(queue, PollFlags::IN)], PATIENCE).unwrap();
        let each = |queued: Queued<'_>| {
            assert_eq!(queued.hook, QueueHook::Postrouting);
            assert_ne!(queued.is_reply, Some(false));
            let packet = TransportPacket::parse(queued.packet).expect("a whole packet");
            let Transport::Udp(payload) = packet.transport else { panic!("{packet:?}") };
            assert_eq!(packet.source.port(), 9);
            packets.push((queued.id, String::from_utf8(payload.to_vec()).unwrap()));
        };
        let read = queue.read(each).unwrap();
        assert_eq!((read.lost, read.unreadable), (0, 0));
    }
    packets
}

fn held_until_accepted(address: &str) {
    let loopback = loopback(address);
    loopback.ask("no listener");
    assert_eq!(loopback.answer().as_deref(), Some("no listener"), "bypass");
    let mut queue = loopback.open(1_024);
    for text in ["first", "second", "third"] {
        loopback.ask(text);
    }
    let held = collect(&mut queue, 3);
    assert_eq!(held.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), ["first", "second", "third"]);
    assert_eq!(loopback.answer(), None, "held");
    queue.accept(&[held[1].0]).unwrap();
    assert_eq!(loopback.answer().as_deref(), Some("second"));
    // One of these is accepted already.
    queue.accept(&[held[1].0, held[0].0, held[2].0, 9_999]).unwrap();
    assert_eq!(loopback.answer().as_deref(), Some("first"));
    assert_eq!(loopback.answer().as_deref(), Some("third"));
    assert_eq!(queue.read(|queued| panic!("{queued:?}")).unwrap().messages, 0);
    queue.close().unwrap();
    loopback.ask("closed");
    assert_eq!(loopback.answer().as_deref(), Some("closed"));
}

kernel_test! {
    fn packets_of_ipv4_are_held_until_they_are_accepted() {
        held_until_accepted("127.0.0.1");
    }

    fn packets_of_ipv6_are_held_until_they_are_accepted() {
        held_until_accepted("::1");
    }

    fn packets_that_come_before_the_kernel_answers_are_accepted() {
        let loopback = loopback("127.0.0.1");
        let mut queue = loopback.open(1_024);
        for text in ["first", "second"] {
            loopback.ask(text);
        }
        // Both wait in the socket, as packets that come while the queue is requested.
        let length = attribute(NFQA_CFG_QUEUE_MAXLEN, &512_u32.to_be_bytes());
        let early = configure(&mut queue.socket, 101, &length).unwrap();
        assert_eq!((early.len(), loopback.answer()), (2, None));
        queue.accept(&early).unwrap();
        assert_eq!(loopback.answer().as_deref(), Some("first"));
        assert_eq!(loopback.answer().as_deref(), Some("second"));
    }

    fn packets_beyond_the_length_of_the_queue_pass() {
        let loopback = loopback("127.0.0.1");
        let mut queue = loopback.open(2);
        for text in ["held", "held too", "passes"] {
            loopback.ask(text);
        }
        assert_eq!(loopback.answer().as_deref(), Some("passes"));
        assert_eq!(loopback.answer(), None);
        let held: Vec<u32> = collect(&mut queue, 2).into_iter().map(|(id, _)| id).collect();
        queue.accept(&held).unwrap();
        assert_eq!(loopback.answer().as_deref(), Some("held"));
        assert_eq!(loopback.answer().as_deref(), Some("held too"));
    }

    fn packets_that_a_full_socket_cannot_take_pass_and_reading_goes_on() {
        const MANY: usize = 200;
        let loopback = loopback("127.0.0.1");
        let mut queue = loopback.open(1_024);
        sockopt::set_socket_recv_buffer_size(&queue, 1).unwrap();
        for _ in 0..MANY {
            loopback.ask("flood");
        }
        let passed = std::iter::from_fn(|| loopback.answer()).count();
        let mut held = Vec::new();
        let read = queue.read(|queued| held.push(queued.id)).unwrap();
        assert!(read.lost > 0 && passed > 0 && !held.is_empty(), "{passed} passed, {read:?}");
        queue.accept(&held).unwrap();
        let released = std::iter::from_fn(|| loopback.answer()).count();
        assert_eq!(passed + released, MANY, "no packet is lost");
        loopback.ask("after");
        assert_eq!(collect(&mut queue, 1)[0].1, "after");
    }

    fn a_queue_has_one_reader_in_a_namespace() {
        let [here, elsewhere] = [Namespace::new().unwrap(), Namespace::new().unwrap()];
        let open = |namespace: &Namespace| namespace.run(|| Nfqueue::open(101, 16)).unwrap();
        let first = open(&here).unwrap();
        let error = open(&here).unwrap_err();
        assert_eq!(error.to_string(), "NFQUEUE 101: another process in this network namespace reads it");
        assert!(matches!(error, NetlinkError::QueueTaken { queue: 101 }));
        open(&elsewhere).expect("a queue of another namespace is another one");
        first.close().unwrap();
        open(&here).expect("given back");

        let unprivileged = here.run(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::NET_ADMIN);
            set_capabilities(None, sets).unwrap();
            Nfqueue::open(101, 16)
        });
        let error = unprivileged.unwrap().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::PERM), "{error}");
    }

    fn interfaces_have_the_names_of_the_namespace() {
        let namespace = Namespace::new().unwrap();
        namespace.shell("ip link add cali1 type veth peer name cali9").unwrap();
        let queue = namespace.run(|| Nfqueue::open(101, 16)).unwrap().unwrap();
        let index: u32 = namespace.shell("ip -o link show cali1 | cut -d: -f1").unwrap().trim().parse().unwrap();
        let mut names = InterfaceNames::default();
        assert_eq!(names.get(&queue, index), Some("cali1".parse().unwrap()));
        assert_eq!(names.get(&queue, 999_999), None);
        namespace.shell("ip link set cali1 name cali2").unwrap();
        names.forget();
        assert_eq!(names.get(&queue, index), Some("cali2".parse().unwrap()));
    }
}
