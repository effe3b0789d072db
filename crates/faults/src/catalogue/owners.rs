//! Interfaces that change their endpoint (E2), and host endpoints that match by address or match
//! all interfaces (E3).

use std::time::Duration;

use super::endpoints::{LATE, expect_late, interface, late};
use crate::{
    Fault,
    stage::{Stage, StageResult, ensure},
    world::{Pair, WEB_CLOSED, WEB_OPEN, World},
};

pub(super) const FAULTS: &[Fault] = &[
    Fault::new(
        "E2-shadowed",
        "an endpoint with a smaller name claims another's interface: both are denied until it is deleted",
        shadowed,
    ),
    Fault::new(
        "E2-shadow",
        "an endpoint with a greater name claims another's interface: both are denied until one is deleted",
        shadow,
    ),
    Fault::new(
        "E2-interface-changes",
        "an endpoint's interface name changes, before and after the interface is renamed",
        interface_changes,
    ),
    Fault::new("E3-by-address", "a host endpoint by address; its address moves between interfaces", by_address),
    Fault::new("E3-all-interfaces", "a host endpoint for all interfaces is created and deleted", all_interfaces),
];

/// Returns an endpoint with this pod name, this interface and the addresses of `like`, which no
/// policy selects.
fn endpoint(stage: &Stage, name: &str, interface: &str, like: &str) -> String {
    let networks: Vec<String> = stage.world.pods[like]
        .addresses
        .iter()
        .map(|address| format!("'{address}/{}'", if address.is_ipv4() { 32 } else { 128 }))
        .collect();
    format!(
        "apiVersion: projectcalico.org/v3\nkind: WorkloadEndpoint\n\
         metadata: {{name: node1-k8s-{name}-eth0, namespace: shop, labels: {{app: {name}}}}}\n\
         spec: {{orchestrator: k8s, node: node1, pod: {name}, endpoint: eth0, interfaceName: {interface}, \
         profiles: [kns.shop], ipNetworks: [{}]}}\n",
        networks.join(", ")
    )
}

/// Pairs with `web` that [`BASE`](crate::world::BASE) allows, while another endpoint claims its
/// interface.
const CONTESTED: [Pair; 2] = [("friend", "web", false), ("web", "db", false)];
/// The same pairs after the claim.
const RELEASED: [Pair; 2] = [("friend", "web", true), ("web", "db", true)];

fn shadowed(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let text = endpoint(stage, "aaa", &interface("web")?, "web");
    for _ in 0..2 {
        let text = text.clone();
        stage.change(|world| drop(world.files.insert("aaa.yaml".to_owned(), text)), &CONTESTED)?;
        stage.watch(Duration::from_secs(1))?;
        stage.change(|world| world.files.clear(), &RELEASED)?;
    }
    stage.watch(Duration::from_secs(1))
}

fn shadow(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    // With this label, the policy of `stranger` allows its address, as it allows that of `web`.
    let text = endpoint(stage, "zzz", &interface("web")?, "web").replace("app: zzz", "app: open");
    stage.change(|world| drop(world.files.insert("zzz.yaml".to_owned(), text)), &CONTESTED)?;
    let web = stage.world.pods["web"].clone();
    // The policy of `db` allows `web` and not `zzz`, and no policy selects `zzz`. With iptables, an
    // IP set that gains or loses the address and the chains of the interface are written one after
    // the other.
    let in_two_steps = |stage: &mut Stage, edit: &dyn Fn(&mut World), effect: &[Pair]| {
        stage.announce(&RELEASED[1..]);
        stage.change(edit, effect)?;
        stage.watch(Duration::from_secs(1))?;
        stage.confirm(&CONTESTED[1..])
    };
    let alone: [Pair; 3] = [WEB_OPEN[0], WEB_OPEN[1], RELEASED[0]];
    in_two_steps(stage, &|world| drop(world.pods.remove("web")), &alone)?;
    let both: [Pair; 3] = [WEB_CLOSED[0], WEB_CLOSED[1], CONTESTED[0]];
    in_two_steps(stage, &|world| drop(world.pods.insert("web".to_owned(), web.clone())), &both)?;
    stage.change(|world| world.files.clear(), &RELEASED)?;
    stage.watch(Duration::from_secs(1))
}

fn interface_changes(stage: &mut Stage) -> StageResult {
    const CUT: [Pair; 2] = [("friend", "late", false), ("stranger", "late", false)];
    stage.begin()?;
    let (world, pods) = late(stage);
    let original = std::mem::replace(&mut stage.world, world.clone());
    stage.lab.set_pods(&pods)?;
    expect_late(stage)?;
    let (old, new) = (interface("late")?, "cali0moved");
    let [at_old, at_new] = [old.as_str(), new].map(|name| endpoint(stage, "late", name, "late"));
    stage.world = original;
    let policy = world.files["late.yaml"].clone();
    let at = |stage: &mut Stage, text: &str, effect: &[Pair]| {
        let files = [("late.yaml", policy.as_str()), ("endpoint.yaml", text)];
        let edit = |world: &mut World| {
            world.files = files.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        };
        stage.change(edit, effect)
    };
    let rename = |stage: &Stage, from: &str, to: &str| {
        stage.lab.node().ip([
            format!("link set {from} down"),
            format!("link set {from} name {to}"),
            format!("link set {to} up"),
            format!("addr replace fe80::ecee:eeff:feee:eeee/64 dev {to} nodad"),
        ])
    };
    at(stage, &at_old, &LATE)?;
    // First the endpoint, then the interface.
    at(stage, &at_new, &CUT)?;
    stage.announce(&LATE);
    rename(stage, &old, new)?;
    stage.confirm(&LATE)?;
    // First the interface, then the endpoint.
    stage.announce(&CUT);
    rename(stage, new, &old)?;
    stage.confirm(&CUT)?;
    at(stage, &at_old, &LATE)?;
    // The endpoint moves away and back while its interface stays.
    at(stage, &at_new, &CUT)?;
    at(stage, &at_old, &LATE)?;
    let tables = stage.tables(stage.backend)?;
    ensure(!tables.iter().any(|line| line.contains(new)), || format!("a rule still names {new}"))
}

const CLOSED: [Pair; 1] = [("outside", "node", false)];
const OPEN: [Pair; 1] = [("outside", "node", true)];

/// Returns host endpoints of this text, with a policy that allows only TCP.
fn host(endpoints: &str) -> String {
    format!(
        "{endpoints}---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {{name: host}}\n\
         spec: {{selector: host == 'yes', types: [Ingress, Egress], ingress: [{{action: Allow, protocol: TCP}}], \
         egress: [{{action: Allow}}]}}\n"
    )
}

fn host_endpoint(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: projectcalico.org/v3\nkind: HostEndpoint\nmetadata: {{name: {name}, labels: {{host: 'yes'}}}}\n\
         spec: {{node: node1, {spec}}}\n"
    )
}

fn by_address(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.probe("outside", "node")?;
    stage.confirm(&OPEN)?;
    stage.lab.node().ip(["link add eth9 type veth peer name eth10", "link set eth9 up", "link set eth10 up"])?;
    let addresses = ["10.65.0.9/32", "fd00:65::9/128"];
    let addr = |stage: &Stage, does: &str, device: &str| {
        let nodad = |address: &str| if does == "add" && address.contains(':') { " nodad" } else { "" };
        stage.lab.node().ip(addresses.map(|address| format!("addr {does} {address} dev {device}{}", nodad(address))))
    };
    let text = host(&host_endpoint("nine", "expectedIPs: [10.65.0.9, 'fd00:65::9']"));
    // No interface has the addresses yet.
    stage.write(|world| drop(world.files.insert("host.yaml".to_owned(), text)), &[])?;
    stage.change(|world| world.set_friend("stranger", true), &[("stranger", "web", true)])?;
    for _ in 0..2 {
        stage.announce(&CLOSED);
        addr(stage, "add", "eth0")?;
        stage.confirm(&CLOSED)?;
        // Both interfaces have the addresses, then only the other.
        addr(stage, "add", "eth9")?;
        await_chain(stage, "cali-fh-eth9", true)?;
        stage.watch(Duration::from_millis(500))?;
        stage.announce(&OPEN);
        addr(stage, "del", "eth0")?;
        stage.confirm(&OPEN)?;
        addr(stage, "del", "eth9")?;
        await_chain(stage, "cali-fh-eth9", false)?;
    }
    stage.announce(&CLOSED);
    addr(stage, "add", "eth0")?;
    stage.confirm(&CLOSED)?;
    stage.change(|world| world.files.clear(), &OPEN)?;
    addr(stage, "del", "eth0")?;
    Ok(stage.lab.node().ip(["link del eth9"])?)
}

fn all_interfaces(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.probe("outside", "node")?;
    stage.confirm(&OPEN)?;
    let all = host(&host_endpoint("all", "interfaceName: '*'"));
    // An endpoint by name takes precedence; this one allows everything.
    let named = host_endpoint("eth0", "interfaceName: eth0").replace("host: 'yes'", "named: 'yes'")
        + "---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: named}\n\
           spec: {selector: named == 'yes', types: [Ingress, Egress], ingress: [{action: Allow}], egress: [{action: Allow}]}\n";
    for _ in 0..2 {
        let (all, named) = (all.clone(), named.clone());
        stage.change(|world| drop(world.files.insert("all.yaml".to_owned(), all)), &CLOSED)?;
        stage.change(|world| drop(world.files.insert("named.yaml".to_owned(), named)), &OPEN)?;
        stage.change(|world| drop(world.files.remove("named.yaml")), &CLOSED)?;
        stage.change(|world| world.files.clear(), &OPEN)?;
        await_chain(stage, "cali-fh-", false)?;
    }
    Ok(())
}

/// Waits until the tables contain a chain, or no longer contain it.
fn await_chain(stage: &mut Stage, chain: &str, there: bool) -> StageResult {
    stage.until(&format!("{chain} is {}", if there { "there" } else { "gone" }), |stage| {
        Ok(stage.tables(stage.backend)?.iter().any(|line| line.contains(&format!(":{chain}"))) == there)
    })
}
