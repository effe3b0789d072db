//! Three nodes, each with an agent, and their pods: over VXLAN they reach each other as far as policy lets them.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program on the kernel")]

mod overlay {
    pub(super) mod cluster;
}

use overlay::cluster::{is_tunnelled, new, until, until_connected};
use rustix::process::Signal;
use tortie_testkit::overlay::Encapsulation;

tortie_testkit::kernel_test! {
    fn pods_of_different_nodes_reach_each_other_under_policy() {
        let cluster = &mut new(&[0, 0, 0], Encapsulation::Always);
        cluster.start_all().unwrap();
        until_connected(cluster, "at the start");
        assert!(is_tunnelled(cluster, 1), "{}", cluster.describe());

        // What was removed by hand comes back.
        for node in [0, 1] {
            cluster.node(node).shell("ip link del vxlan.calico").unwrap();
            cluster.node(node).shell("ip link set vxlan-v6.calico down").unwrap();
        }
        until_connected(cluster, "after its tunnels were deleted");
        cluster.node(0).shell("set -- $(bridge fdb show dev vxlan.calico | grep 10.65.0.2); bridge fdb del $1 dev vxlan.calico dst 10.65.0.2").unwrap();
        cluster.node(0).shell("ip link del vxlan.calico").unwrap();
        until_connected(cluster, "after a forwarding entry and the tunnel were deleted");

        // A killed agent leaves everything in force, and the next finds it so.
        cluster.stop(1, Signal::KILL).unwrap();
        until_connected(cluster, "while an agent is dead");
        let index = cluster.shell(1, "cat /sys/class/net/vxlan.calico/ifindex");
        cluster.start(1).unwrap();
        until_connected(cluster, "after an agent was killed");
        assert_eq!(cluster.shell(1, "cat /sys/class/net/vxlan.calico/ifindex"), index, "the tunnel was made afresh");

        // A node moves to another address.
        cluster.readdress(2, 33).unwrap();
        until_connected(cluster, "after a node was readdressed");

        // Nodes of one subnet need no tunnel.
        cluster.encapsulation = Encapsulation::CrossSubnet;
        cluster.tell().unwrap();
        until(cluster, "routes go around the tunnel", |cluster| !is_tunnelled(cluster, 1));
        until_connected(cluster, "without tunnels");
        cluster.encapsulation = Encapsulation::Always;
        cluster.tell().unwrap();
        until(cluster, "routes go through the tunnel", |cluster| is_tunnelled(cluster, 1));

        // A node goes.
        cluster.remove(2).unwrap();
        until(cluster, "nothing leads to a node that is gone", |cluster| {
            let state = cluster.shell(0, "ip route; ip -6 route; bridge fdb; ip neigh show nud permanent; ip -6 neigh show nud permanent");
            !["10.66.3.", "fd00:66:3:", "10.67.0.3", "fd00:67::3"].iter().any(|address| state.contains(address))
        });
        until_connected(cluster, "after a node was removed");

        cluster.encapsulation = Encapsulation::Never;
        cluster.tell().unwrap();
        until(cluster, "nothing is left of the tunnels", |cluster| {
            [0, 1].iter().all(|node| !cluster.shell(*node, "ip link; ip route; ip -6 route").contains("vxlan"))
        });
    }
}
