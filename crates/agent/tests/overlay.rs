//! Three nodes, each with an agent, and their pods: over VXLAN they reach each other as far as policy lets them.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program on the kernel")]

mod overlay {
    pub(super) mod cluster;
}

use overlay::cluster::{Cluster, Mode};
use rustix::process::Signal;

tortie_testkit::kernel_test! {
    fn pods_of_different_nodes_reach_each_other_under_policy() {
        let mut cluster = Cluster::new(Mode::Always);
        cluster.start_all();
        cluster.until_connected("at the start");
        cluster.assert_tunnelled(true);
        cluster.assert_denied("without being a friend");

        // What was removed by hand comes back.
        for node in [1, 2] {
            cluster.node(node, "ip link del vxlan.calico");
            cluster.node(node, "ip link set vxlan-v6.calico down");
        }
        cluster.until_connected("after its tunnels were deleted");
        cluster.node(1, "bridge fdb del $(bridge fdb show dev vxlan.calico | head -n1 | cut -d' ' -f1) dev vxlan.calico dst \
                         $(bridge fdb show dev vxlan.calico | head -n1 | sed 's/.*dst \\([^ ]*\\).*/\\1/')");
        cluster.node(1, "ip link del vxlan.calico");
        cluster.until_connected("after a forwarding entry and the tunnel were deleted");

        // A killed agent leaves everything in force, and the next finds it so.
        cluster.stop(2, Signal::KILL);
        cluster.until_connected("while an agent is dead");
        let index = cluster.node(2, "cat /sys/class/net/vxlan.calico/ifindex");
        cluster.start(2);
        cluster.until_connected("after an agent was killed");
        assert_eq!(cluster.node(2, "cat /sys/class/net/vxlan.calico/ifindex"), index, "the tunnel was made afresh");

        // A node moves to another address.
        cluster.readdress(3, 33);
        cluster.until_connected("after a node was readdressed");
        cluster.assert_denied("after a node was readdressed");

        // Nodes of one subnet need no tunnel.
        cluster.set_mode(Mode::CrossSubnet);
        cluster.until("routes go around the tunnel", |cluster| !cluster.is_tunnelled());
        cluster.until_connected("without tunnels");
        cluster.set_mode(Mode::Always);
        cluster.until("routes go through the tunnel", Cluster::is_tunnelled);

        // A node goes.
        cluster.remove(3);
        cluster.until("nothing leads to a node that is gone", |cluster| {
            !cluster.node(1, "ip route; ip -6 route; bridge fdb; ip neigh; ip -6 neigh").contains("10.65.3.")
        });
        cluster.until_connected("after a node was removed");

        cluster.set_mode(Mode::Never);
        cluster.until("nothing is left of the tunnels", |cluster| {
            [1, 2].iter().all(|node| !cluster.node(*node, "ip link; ip route; ip -6 route").contains("vxlan"))
        });
    }
}
