//! Faults of the overlay between nodes (V).

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    Backend, Fault,
    stage::{PATIENCE, Stage, StageError, StageResult, ensure},
    world::BASE,
};
use tortie_lab::{
    overlay::{Encapsulation, tunnel_addresses},
    pods::{NODE_ADDRESSES, OUTSIDE_ADDRESSES, node_addresses},
};

const NFT: &[Backend] = &[Backend::Nft];

pub(super) const FAULTS: &[Fault] = &[
    fault("V1-tunnel-deleted", "another process deletes the tunnel devices and sets them down", tunnel_deleted).ebpf(),
    fault("V2-parent-flaps", "the parent interface of the tunnels goes down and up", parent_flaps).ebpf(),
    fault(
        "V3-netlink-overflow",
        "more changes than the agent's socket holds; tunnels flap meanwhile",
        netlink_overflow,
    ),
    fault("V4-two-writers", "another process replaces and deletes routes, neighbours and FDB entries", two_writers)
        .ebpf(),
    fault("V4-two-agents", "a second agent on the same node, which is refused", two_agents),
    fault("V5-node-readdressed", "another node changes its addresses, and back", node_readdressed).ebpf(),
    fault("V5-readdressed-itself", "the node changes its addresses, and back", readdressed_itself),
    fault("V6-tunnel-address-reused", "two nodes claim one tunnel address; two nodes exchange theirs", address_reused),
    fault("V7-node-goes", "another node is removed and returns", node_goes).ebpf(),
    fault(
        "V8-cross-subnet",
        "all pools change from VXLAN to VXLAN between subnets, and back: lost packets",
        cross_subnet,
    ),
];

const fn fault(name: &'static str, about: &'static str, run: fn(&mut Stage) -> StageResult) -> Fault {
    Fault::new(name, about, run).only(NFT).nodes(3)
}

/// Waits for the base reachability. Packets between nodes may be lost until the agent has repaired
/// the overlay, however slow the machine is.
fn restored(stage: &mut Stage) -> StageResult {
    stage.confirm(&BASE)
}

fn tunnel_deleted(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for _ in 0..2 {
        stage.may_be_cut(PATIENCE);
        stage.shell("ip link del vxlan.calico; ip link del vxlan-v6.calico")?;
        restored(stage)?;
        stage.may_be_cut(PATIENCE);
        stage.shell("ip link set vxlan.calico down; ip link set vxlan-v6.calico down")?;
        restored(stage)?;
    }
    stage.may_be_cut(PATIENCE);
    stage.shell(
        "ip link set vxlan.calico mtu 1280; ip -4 addr flush dev vxlan.calico; ip addr add 10.9.9.9/32 dev vxlan.calico",
    )?;
    stage.until("the tunnel has its address", |stage| {
        let found = stage.shell("ip -o addr show dev vxlan.calico")?;
        Ok(found.contains("10.67.0.1/32") && !found.contains("10.9.9.9"))
    })?;
    restored(stage)
}

/// Configures the parent interface, as a network manager does when it comes up.
fn configure_parent(stage: &Stage) -> StageResult {
    let [v4, v6] = NODE_ADDRESSES;
    let [out4, out6] = OUTSIDE_ADDRESSES;
    let lines = [
        format!("addr replace {v4}/24 dev eth0"),
        format!("addr replace {v6}/64 dev eth0 nodad"),
        format!("route replace default via {out4}"),
        format!("route replace default via {out6}"),
    ];
    Ok(stage.lab.node().ip(lines)?)
}

fn parent_flaps(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for pause in [0, 30, 300, 1500] {
        stage.may_be_cut(PATIENCE);
        stage.shell("ip link set eth0 down")?;
        stage.watch(Duration::from_millis(pause))?;
        stage.shell("ip link set eth0 up")?;
        configure_parent(stage)?;
        restored(stage)?;
    }
    Ok(())
}

fn netlink_overflow(stage: &mut Stage) -> StageResult {
    // No periodic checks.
    for name in ["FELIX_ROUTEREFRESHINTERVAL", "FELIX_INTERFACEREFRESHINTERVAL"] {
        stage.environment.insert(name.to_owned(), "600".to_owned());
    }
    stage.begin()?;
    for is_deleted in [false, true] {
        stage.signal(Signal::STOP)?;
        stage.may_be_cut(PATIENCE);
        let batch = stage.folder().join("batch").display().to_string();
        stage.shell(&format!(
            "for verb in add del; do seq 1 30000 | while read n; do \
               echo \"route $verb 10.99.$((n / 250)).$((n % 250))/32 dev lo\"; done; done > {batch}; ip -batch {batch}"
        ))?;
        // The agent's socket is full, so that it misses these notifications.
        for device in ["vxlan.calico", "vxlan-v6.calico"] {
            stage.shell(&match is_deleted {
                true => format!("ip link del {device}"),
                false => format!("ip link set {device} down; ip link set {device} up"),
            })?;
        }
        stage.signal(Signal::CONT)?;
        restored(stage)?;
    }
    let noted = stage.log().matches("faster than they were read").count();
    ensure(noted >= 2, || format!("changes were lost {noted} times"))
}

fn two_writers(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.may_be_cut(PATIENCE + PATIENCE);
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        // Some commands fail, as the agent changes the same objects.
        stage.shell(
            "ip route del 10.66.0.64/26 || true
             ip route replace 10.66.0.128/26 via 10.67.0.2 dev vxlan.calico onlink || true
             ip -6 route del fd00:66::40/122 || true; ip -6 route replace blackhole fd00:66::80/122 || true
             for mac in $(bridge fdb show dev vxlan.calico | grep dst | cut -d' ' -f1); do
               bridge fdb replace $mac dev vxlan.calico dst 10.65.0.77 || true; done
             ip neigh replace 10.67.0.2 lladdr 02:00:00:00:00:77 dev vxlan.calico nud permanent || true
             ip neigh del 10.67.0.3 dev vxlan.calico || true
             ip -6 neigh flush dev vxlan-v6.calico nud permanent || true",
        )?;
        stage.watch(Duration::from_millis(100))?;
    }
    restored(stage)
}

fn two_agents(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let before = stage.overlay()?;
    let mut second = stage.one_more_agent(0, "second")?;
    for _ in 0..2 {
        stage.change(|world| world.set_friend("stranger", true), &[("stranger", "web", true)])?;
        stage.change(|world| world.set_friend("stranger", false), &[("stranger", "web", false)])?;
    }
    let until = Instant::now() + PATIENCE;
    let refusal = loop {
        match second.check() {
            Err(ended) => break ended.to_string(),
            Ok(()) if Instant::now() > until => return Err(StageError::Unexpected("the second agent runs".into())),
            Ok(()) => stage.watch(Duration::from_millis(100))?,
        }
    };
    let is_named = refusal.contains("programs this network namespace; stop it first");
    ensure(is_named, || format!("the second agent ended for another reason: {refusal}"))?;
    let after = stage.overlay()?;
    ensure(before == after, || format!("the second agent changed the state of the first: {before:?} {after:?}"))?;
    restored(stage)
}

/// Gives a node other addresses, in the kernel and in the datastore.
fn readdress(stage: &mut Stage, number: usize, last: usize) -> StageResult {
    let name = tortie_lab::pods::node_name(number);
    let old = stage.world.nodes[&name].addresses;
    let new = node_addresses(0, last - 1);
    stage.may_be_cut(PATIENCE);
    let [out4, out6] = OUTSIDE_ADDRESSES;
    stage.node(number)?.ip([
        format!("addr del {}/24 dev eth0", old[0]),
        format!("addr del {}/64 dev eth0", old[1]),
        format!("addr add {}/24 dev eth0", new[0]),
        format!("addr add {}/64 dev eth0 nodad", new[1]),
        format!("route replace default via {out4}"),
        format!("route replace default via {out6}"),
    ])?;
    stage.write(|world| world.nodes.get_mut(&name).into_iter().for_each(|node| node.addresses = new), &[])?;
    restored(stage)
}

fn node_readdressed(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for last in [33, 2] {
        readdress(stage, 1, last)?;
    }
    Ok(())
}

fn readdressed_itself(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for last in [31, 1] {
        readdress(stage, 0, last)?;
    }
    Ok(())
}

fn set_tunnels(stage: &mut Stage, tunnels: [usize; 2]) -> StageResult {
    stage.may_be_cut(PATIENCE);
    let set = |world: &mut crate::world::World| {
        for (node, tunnel) in ["node2", "node3"].into_iter().zip(tunnels) {
            if let Some(node) = world.nodes.get_mut(node) {
                node.tunnels = tunnel_addresses(tunnel);
            }
        }
    };
    stage.write(set, &[])
}

fn address_reused(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    // Both nodes have the address of one for a while.
    set_tunnels(stage, [1, 1])?;
    stage.watch(Duration::from_secs(1))?;
    set_tunnels(stage, [2, 1])?;
    restored(stage)?;
    set_tunnels(stage, [2, 2])?;
    stage.watch(Duration::from_secs(1))?;
    set_tunnels(stage, [1, 2])?;
    restored(stage)?;
    // In one edit.
    set_tunnels(stage, [2, 1])?;
    restored(stage)
}

fn node_goes(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for _ in 0..2 {
        let node = stage.world.nodes.get("node2").cloned();
        stage.may_be_cut(PATIENCE);
        stage.write(|world| world.nodes.retain(|name, _| name != "node2"), &[])?;
        stage.until("no route leads to the node", |stage| {
            Ok(!stage.overlay()?.iter().any(|line| line.contains("10.67.0.2") || line.contains("fd00:67::2")))
        })?;
        stage.may_be_cut(PATIENCE);
        stage.write(|world| world.nodes.extend(node.map(|node| ("node2".to_owned(), node))), &[])?;
        restored(stage)?;
    }
    Ok(())
}

fn cross_subnet(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for encapsulation in [Encapsulation::CrossSubnet, Encapsulation::Always].repeat(5) {
        stage.may_be_cut(PATIENCE);
        stage.write(|world| world.encapsulation = encapsulation, &[])?;
        let is_direct = encapsulation == Encapsulation::CrossSubnet;
        stage.until("routes of all nodes match the pools", |stage| {
            for number in 0..stage.lab.nodes() {
                let routes = stage.node(number)?.shell("ip route; ip -6 route")?;
                let is_to_block = |line: &&str| line.starts_with("10.66.") || line.starts_with("fd00:66:");
                let to_others = routes.lines().filter(is_to_block).filter(|line| line.contains(" via "));
                let are_direct: Vec<bool> = to_others.map(|line| line.contains("dev eth0")).collect();
                if are_direct.is_empty() || are_direct.contains(&!is_direct) {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        restored(stage)?;
        // So that the next change is a separate one.
        stage.watch(Duration::from_secs(1))?;
    }
    Ok(())
}
