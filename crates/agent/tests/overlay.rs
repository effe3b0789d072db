//! Three nodes, each with an agent, and their pods: over VXLAN they reach each other as policy
//! allows.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program on the kernel")]

mod overlay {
    pub(super) mod cluster;
}

use std::path::Path;

use overlay::cluster::{RoutePath, dumped, new, route_path, until, until_connected, web_for_node};
use rustix::process::Signal;
use tortie_lab::overlay::{Encapsulation, OverlayCluster};
use tortie_lab::pods::LabHost;

tortie_lab::kernel_test! {
    fn pods_of_different_nodes_reach_each_other_under_policy() {
        let cluster = &mut new(&[0, 0, 0], Encapsulation::Always);
        cluster.start_all().unwrap();
        until_connected(cluster, "at the start");
        assert!(route_path(cluster, 0, 1) == RoutePath::Tunnel, "{}", cluster.describe());

        // Tunnels that an operator deletes are restored.
        for node in [0, 1] {
            cluster.node(node).shell("ip link del vxlan.calico").unwrap();
            cluster.node(node).shell("ip link set vxlan-v6.calico down").unwrap();
        }
        until_connected(cluster, "after its tunnels were deleted");
        cluster.node(0).shell("set -- $(bridge fdb show dev vxlan.calico | grep 10.65.0.2); bridge fdb del $1 dev vxlan.calico dst 10.65.0.2").unwrap();
        cluster.node(0).shell("ip link del vxlan.calico").unwrap();
        until_connected(cluster, "after a forwarding entry and the tunnel were deleted");

        // A killed agent leaves everything in force, and the next one finds it unchanged.
        cluster.stop(1, Signal::KILL).unwrap();
        until_connected(cluster, "while an agent is dead");
        let index = cluster.shell(1, "cat /sys/class/net/vxlan.calico/ifindex");
        cluster.start(1).unwrap();
        until_connected(cluster, "after an agent was killed");
        assert_eq!(cluster.shell(1, "cat /sys/class/net/vxlan.calico/ifindex"), index, "the tunnel was made afresh");

        // The address of a node changes.
        cluster.readdress(2, 33).unwrap();
        until_connected(cluster, "after a node was readdressed");

        // Nodes of one subnet need no tunnel.
        cluster.encapsulation = Encapsulation::CrossSubnet;
        cluster.apply().unwrap();
        until(cluster, "routes go around the tunnel", |cluster| route_path(cluster, 0, 1) == RoutePath::Parent);
        until_connected(cluster, "without tunnels");
        cluster.encapsulation = Encapsulation::Always;
        cluster.apply().unwrap();
        until(cluster, "routes go through the tunnel", |cluster| route_path(cluster, 0, 1) == RoutePath::Tunnel);

        // A node is removed.
        cluster.remove(2).unwrap();
        until(cluster, "nothing leads to a node that is gone", |cluster| {
            let state = cluster.shell(0, "ip route; ip -6 route; bridge fdb; ip neigh show nud permanent; ip -6 neigh show nud permanent");
            !["10.66.3.", "fd00:66:3:", "10.67.0.3", "fd00:67::3"].iter().any(|address| state.contains(address))
        });
        until_connected(cluster, "after a node was removed");

        cluster.encapsulation = Encapsulation::Never;
        cluster.apply().unwrap();
        until(cluster, "nothing is left of the tunnels", |cluster| {
            [0, 1].iter().all(|node| !cluster.shell(*node, "ip link; ip route; ip -6 route").contains("vxlan"))
        });
    }

    fn a_dumped_cluster_with_vxlan_pools_connects_its_pods() {
        let dump = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/calico-vxlan");
        let cluster = &mut dumped(&dump);
        cluster.start_all().unwrap();
        until_connected(cluster, "with the dumped cluster");
        let routes = cluster.shell(0, "ip route; ip -6 route");
        // A pod on another node than that of its IPAM block is reached on its own node.
        for route in [
            "10.66.2.64/26 via 10.66.2.64 dev vxlan.calico",
            "10.66.2.90 via 10.66.3.64 dev vxlan.calico",
            "fd00:66:0:2::5a via fd00:66:0:3::40 dev vxlan-v6.calico",
            "blackhole 10.66.1.64/26",
        ] {
            assert!(routes.contains(route), "no {route} in\n{routes}");
        }
    }

    fn policy_names_nodes_whose_packets_come_through_tunnels() {
        let cluster = &mut new(&[0, 0, 0], Encapsulation::Always);
        let others = cluster.others.len();
        let admit = |cluster: &mut OverlayCluster, number: usize| {
            cluster.others.truncate(others);
            cluster.others.push(web_for_node(number));
            cluster.apply().unwrap();
        };
        cluster.start_all().unwrap();
        until_connected(cluster, "through tunnels");
        // The server of another node sees the address of the tunnel. In this laboratory no route
        // leads back to it, because no block contains it.
        for last in [1, 3] {
            cluster.node(1).shell(&format!("ip route add 10.67.0.{last} via 10.65.0.{last}")).unwrap();
            cluster.node(1).shell(&format!("ip route add fd00:67::{last} via fd00:65::{last}")).unwrap();
        }
        let reached = |cluster: &OverlayCluster, number: usize| {
            let connect = "timeout 1 bash -c '</dev/tcp/WEB/80' 2>/dev/null && echo reached || echo denied";
            // Nothing listens on the node: it refuses the connection at once.
            let refused = "timeout 1 bash -c '</dev/tcp/NODE/81' 2>&1 | grep -q 'Connection refused' && echo reached || echo denied";
            let web = cluster.lab.namespace(&LabHost::pod("shop", "web2")).unwrap();
            let in_web = |address: String| web.shell(&refused.replace("NODE", &address)).unwrap();
            let answers = [
                cluster.shell(number, &connect.replace("WEB", "10.66.2.2")),
                cluster.shell(number, &connect.replace("WEB", "fd00:66:2::2")),
                in_web(format!("10.65.0.{}", number + 1)),
                in_web(format!("fd00:65::{}", number + 1)),
            ];
            answers.map(|answer| answer.trim() == "reached")
        };
        for (admitted, other) in [(0, 2), (2, 0)] {
            admit(cluster, admitted);
            until(cluster, "one node alone and the server reach each other", |cluster| {
                let reached = [admitted, other].map(|number| reached(cluster, number));
                println!("node {admitted}, then {other}, to and from the server in both families: {reached:?}");
                reached == [[true; 4], [false; 4]]
            });
            until_connected(cluster, "with a policy for nodes");
        }
    }

    fn nodes_of_two_subnets_need_tunnels_between_them_alone() {
        let cluster = &mut new(&[0, 0, 1], Encapsulation::CrossSubnet);
        cluster.start_all().unwrap();
        until_connected(cluster, "with a router between subnets");
        // The router knows no pods, so that packets between the subnets need tunnels.
        for (from, to, is_tunnelled) in [(0, 1, false), (1, 0, false), (0, 2, true), (2, 0, true), (2, 1, true)] {
            assert_eq!(route_path(cluster, from, to), if is_tunnelled { RoutePath::Tunnel } else { RoutePath::Parent }, "{from} to {to}");
        }
        cluster.encapsulation = Encapsulation::Always;
        cluster.apply().unwrap();
        until(cluster, "routes within a subnet go through tunnels", |cluster| {
            route_path(cluster, 0, 1) == RoutePath::Tunnel && route_path(cluster, 1, 0) == RoutePath::Tunnel
        });
        until_connected(cluster, "through tunnels alone");
        cluster.encapsulation = Encapsulation::CrossSubnet;
        cluster.apply().unwrap();
        until(cluster, "routes within a subnet go around tunnels", |cluster| {
            route_path(cluster, 0, 1) == RoutePath::Parent && route_path(cluster, 1, 0) == RoutePath::Parent
        });
        until_connected(cluster, "around tunnels again");
        assert_eq!([route_path(cluster, 0, 2), route_path(cluster, 2, 1)], [RoutePath::Tunnel; 2]);
    }
}
