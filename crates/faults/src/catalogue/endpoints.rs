//! Interfaces, addresses, routes and settings of the node (E1 to E8), and the first start.

use std::time::Duration;

use super::programs::{admit, both, fail_times, fault_both};
use crate::{
    Backend, Fault,
    prober::Kind,
    stage::{Stage, StageError, StageResult, ensure, place},
    world::{BASE, Pair},
};
use tortie_lab::pods::interface_name;

pub(super) const FAULTS: &[Fault] = &[
    Fault::new(
        "E1-interface-first",
        "a pod's interface appears before its policy is known: denied until then",
        interface_first,
    )
    .ebpf(),
    Fault::new("E1-endpoint-first", "a pod is known before its interface appears", endpoint_first),
    Fault::new("E1-flaps", "an interface goes down and up many times", flaps).ebpf().nftables(),
    Fault::new("E1-recreated", "an interface is deleted and recreated with the same name", recreated).ebpf(),
    Fault::new("E3-host-endpoint", "a host endpoint is created and deleted", host_endpoint).ebpf().nftables(),
    Fault::new(
        "E4-read-only-sysctls",
        "sysctls cannot be written: nothing is allowed wrongly, and all works once they can",
        read_only_sysctls,
    ),
    Fault::new("E5-address-moves", "an address moves to a protected pod: its connections end", |stage| {
        address_moves(stage, false)
    })
    .ebpf(),
    Fault::new(
        "conntrack-fails",
        "an address moves while conntrack entries cannot be deleted: its connections end",
        |stage| address_moves(stage, true),
    )
    // The programs `iptables` and `ipset` would fail as well.
    .only(&[])
    .nftables()
    .ebpf(),
    Fault::new("E5-foreign-route", "a foreign route to a pod's interface is removed, others stay", foreign_route)
        .ebpf(),
    Fault::new("E5-route-deleted", "another process deletes the route to a pod: it is restored", route_deleted).ebpf(),
    Fault::new("E8-selector", "the selector of a policy selects another pod, and back", selector).ebpf().nftables(),
    Fault::new("forwarding-off", "another process disables forwarding: it is restored", forwarding_off).ebpf(),
    Fault::new("routes-first-restore", "iptables-restore fails at the first start: no route leads to a pod", |stage| {
        closed_first_start(stage, "restore")
    }),
    Fault::new("routes-first-save", "iptables-save fails at the first start: no route leads to a pod", |stage| {
        closed_first_start(stage, "save")
    })
    .only(&[Backend::Nft]),
    Fault::new(
        "routes-first-descriptors",
        "16 file descriptors at the first start: no route leads to a pod",
        few_descriptors,
    )
    .ebpf(),
    Fault::new("stand-ins-chain", "a chain is refused for a while: other pods are not affected", refused_chain),
    Fault::new(
        "stand-ins-set",
        "a set cannot be created: only traffic that its policy alone allows is cut",
        refused_set,
    ),
];

pub(super) const LATE: [Pair; 2] = [("friend", "late", true), ("stranger", "late", false)];

/// Returns a world with one more pod, which only friends may reach.
pub(super) fn late(stage: &mut Stage) -> (crate::world::World, Vec<tortie_lab::pods::Pod>) {
    let mut world = stage.world.clone();
    world.add_pod("late", 40);
    let policy = world.web_policy_text().replace("name: web", "name: late").replace("app: web", "app: late");
    world.files.insert("late.yaml".to_owned(), policy);
    let pods = world.lab_pods();
    (world, pods)
}

pub(super) fn expect_late(stage: &mut Stage) -> StageResult {
    for (from, to, _) in LATE {
        stage.probe(from, to)?;
    }
    stage.expect_denied("stranger", "late");
    Ok(())
}

fn interface_first(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let (world, pods) = late(stage);
    let original = std::mem::replace(&mut stage.world, world.clone());
    stage.lab.set_pods(&pods)?;
    expect_late(stage)?;
    stage.world = original;
    stage.watch(Duration::from_secs(1))?;
    stage.write(|current| *current = world, &[])?;
    stage.confirm(&LATE)
}

fn endpoint_first(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let (world, pods) = late(stage);
    stage.write(|current| *current = world, &[])?;
    let chain = interface_name(&place("late")).map(|name| format!("cali-tw-{name} ")).unwrap_or_default();
    stage.until("the pod has a chain", |stage| {
        Ok(stage.tables(stage.backend)?.iter().any(|line| line.contains(&chain)))
    })?;
    stage.lab.set_pods(&pods)?;
    expect_late(stage)?;
    stage.confirm(&LATE)
}

pub(super) fn interface(pod: &str) -> Result<String, StageError> {
    interface_name(&place(pod)).ok_or_else(|| StageError::Unexpected(format!("{pod} has no interface")))
}

fn flaps(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let name = interface("web")?;
    // The kernel deletes the routes of an interface that goes down, and the gateway's IPv6 address.
    for pod in ["web", "friend", "stranger"] {
        stage.may_be_cut_between(pod, "web", Duration::from_secs(40));
    }
    stage.may_be_cut_between("web", "db", Duration::from_secs(40));
    for pause in [0, 3, 10, 25, 60, 100] {
        stage.lab.node().ip([format!("link set {name} down")])?;
        std::thread::sleep(Duration::from_millis(pause));
        stage.lab.node().ip([
            format!("link set {name} up"),
            format!("addr replace fe80::ecee:eeff:feee:eeee/64 dev {name} nodad"),
        ])?;
        stage.watch(Duration::from_millis(pause))?;
    }
    stage.confirm(&BASE)
}

fn recreated(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for pair in [("friend", "web"), ("web", "db")] {
        stage.may_be_cut_between(pair.0, pair.1, Duration::from_secs(40));
    }
    for pause in [0, 20, 300] {
        stage.lab.unplug(&place("web"))?;
        std::thread::sleep(Duration::from_millis(pause));
        stage.lab.plug(&place("web"))?;
        stage.confirm(&BASE)?;
    }
    Ok(())
}

fn host_endpoint(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.probe("outside", "node")?;
    stage.confirm(&[("outside", "node", true)])?;
    let text = "apiVersion: projectcalico.org/v3\nkind: HostEndpoint\nmetadata: {name: eth0, labels: {host: 'yes'}}\n\
                spec: {node: node1, interfaceName: eth0}\n---\n\
                apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: host}\n\
                spec: {selector: host == 'yes', types: [Ingress], ingress: [{action: Allow, protocol: TCP}]}\n";
    for _ in 0..2 {
        stage.change(
            |world| drop(world.files.insert("host.yaml".to_owned(), text.to_owned())),
            &[("outside", "node", false)],
        )?;
        stage.change(|world| world.files.clear(), &[("outside", "node", true)])?;
    }
    Ok(())
}

fn read_only_sysctls(stage: &mut Stage) -> StageResult {
    // In a private mount namespace.
    stage.prelude = format!(
        "PATH=$PATH exec unshare --mount sh -c 'mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; \
         PATH={} exec \"$0\" \"$@\"' \"$0\" \"$@\"",
        stage.helpers.path().display()
    );
    stage.spawn()?;
    stage.until("policy is in the kernel", |stage| {
        Ok(stage.tables(stage.backend)?.iter().any(|line| line.contains("cali-pi-")))
    })?;
    stage.watch(Duration::from_secs(3))?;
    let log = stage.log().lines().count();
    ensure(log < 400, || format!("{log} lines are logged in a few seconds"))?;
    let agent = stage.agent_pid()?;
    stage.shell(&format!("nsenter -t {agent} -m mount -o remount,bind,rw /proc/sys"))?;
    stage.confirm(&BASE)
}

/// The address of `open`, which is reachable for all, moves to `heir`, which is reachable for
/// `friend` only.
fn address_moves(stage: &mut Stage, conntrack_fails: bool) -> StageResult {
    stage.begin()?;
    add_heir(stage)?;
    let addresses = stage.world.pods["open"].addresses.clone();
    let tracer = conntrack_fails.then(|| stage.inject("socket", "error=EMFILE")).transpose()?;
    inherit(stage)?;
    if tracer.is_some() {
        // Other code opens sockets as well, so that a failed call alone proves nothing.
        for address in addresses {
            let problem = format!("conntrack entries of {address} cannot be deleted");
            stage.until(&format!("the agent reports \"{problem}\""), |stage| Ok(stage.log().contains(&problem)))?;
        }
        stage.watch(Duration::from_secs(2))?;
    }
    drop(tracer);
    stage.confirm(&[("stranger", "open", false), ("outside", "open", false), ("friend", "open", true)])?;
    stage.watch(Duration::from_secs(1))
}

/// Adds `heir`, and opens a connection to `open`.
fn add_heir(stage: &mut Stage) -> StageResult {
    stage.write(
        |world| {
            world.add_pod("heir", 41);
            let policy = world.web_policy_text().replace("name: web", "name: heir").replace("app: web", "app: heir");
            world.files.insert("heir.yaml".to_owned(), policy);
        },
        &[],
    )?;
    let pods = stage.world.lab_pods();
    stage.lab.set_pods(&pods)?;
    for (from, to) in [("friend", "heir"), ("stranger", "heir")] {
        stage.probe(from, to)?;
    }
    stage.expect_denied("stranger", "heir");
    stage.probe_by("stranger", "open", Kind::OneConnection)?;
    stage.probe("friend", "open")?;
    let all =
        [("friend", "heir", true), ("stranger", "heir", false), ("stranger", "open", true), ("friend", "open", true)];
    stage.confirm(&all)
}

/// Moves the addresses of `open` to `heir`.
fn inherit(stage: &mut Stage) -> StageResult {
    stage.clear_expectations(&["heir"]);
    stage.may_be_cut_between("friend", "open", Duration::from_secs(60));
    stage.announce(&[("stranger", "open", false), ("outside", "open", false)]);
    let addresses = stage.world.pods["open"].addresses.clone();
    for address in &addresses {
        let nodad = if address.is_ipv6() { " nodad" } else { "" };
        stage.pod_ip("open", &format!("addr del {address} dev eth0"))?;
        stage.pod_ip("heir", &format!("addr add {address} dev eth0{nodad}"))?;
    }
    stage.write(
        |world| {
            world.pods.remove("open");
            if let Some(heir) = world.pods.get_mut("heir") {
                heir.addresses = addresses;
            }
        },
        &[],
    )
}

fn foreign_route(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let name = interface("web")?;
    stage
        .lab
        .node()
        .ip([format!("route add 10.99.0.1/32 dev {name}"), "route add 10.99.0.2/32 via 10.65.0.254".to_owned()])?;
    stage.until("the route to the pod's interface is gone", |stage| {
        Ok(!stage.routes()?.iter().any(|route| route.contains("10.99.0.1")))
    })?;
    let routes = stage.shell("ip route show")?;
    ensure(routes.contains("10.99.0.2"), || "a route that leads elsewhere is gone".to_owned())?;
    stage.lab.node().ip(["route del 10.99.0.2/32"])?;
    admit(stage, true)
}

fn route_deleted(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.may_be_cut_between("friend", "web", Duration::from_secs(10));
    // Packets from an interface without a route back count as spoofed.
    stage.may_be_cut_between("web", "db", Duration::from_secs(10));
    for address in stage.world.pods["web"].addresses.clone() {
        stage.lab.node().ip([format!("route del {address}")])?;
    }
    stage.confirm_within(Duration::from_secs(10), &BASE)
}

fn selector(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for _ in 0..2 {
        stage.change(
            |world| world.web_selector = "app: open".to_owned(),
            &[
                ("stranger", "web", true),
                ("outside", "web", true),
                ("stranger", "open", false),
                ("outside", "open", false),
            ],
        )?;
        stage.change(|world| world.web_selector = "app: web".to_owned(), &BASE)?;
    }
    Ok(())
}

fn forwarding_off(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        stage.may_be_cut(Duration::from_secs(20));
        stage.lab.node().sysctl(&[(setting.to_owned(), "0")])?;
        stage.watch(Duration::from_millis(300))?;
        stage.confirm_within(Duration::from_secs(20), &BASE)?;
    }
    Ok(())
}

fn closed_first_start(stage: &mut Stage, action: &str) -> StageResult {
    fault_both(stage, action, &fail_times(1_000_000))?;
    stage.spawn()?;
    stage.until("the programs have failed", |stage| {
        Ok(!stage.helpers.notes(&both(action, stage.backend)[0]).is_empty())
    })?;
    stage.watch(Duration::from_secs(4))?;
    let routes = stage.routes()?;
    ensure(routes.is_empty(), || format!("routes to pods without policy: {routes:?}"))?;
    stage.helpers.repair_all()?;
    stage.until_ready()?;
    stage.confirm(&BASE)
}

fn few_descriptors(stage: &mut Stage) -> StageResult {
    stage.prelude = "ulimit -n 16".to_owned();
    stage.spawn()?;
    std::thread::sleep(Duration::from_secs(4));
    if stage.ended()?.is_none() {
        stage.kill()?;
    }
    stage.prelude.clear();
    stage.start()?;
    stage.confirm(&BASE)
}

/// Returns the chain of the policy of `web`.
fn web_chain(stage: &Stage) -> Result<String, StageError> {
    let tables = stage.tables(stage.backend)?;
    let chain = format!("-A cali-tw-{} ", interface("web")?);
    let leading = tables.iter().filter(|line| line.contains(&chain)).find_map(|line| {
        line.split(' ').find(|word| word.starts_with("cali-pi-") || word.starts_with("cali-gi-")).map(str::to_owned)
    });
    leading.ok_or_else(|| StageError::Unexpected("web has no policy chain".to_owned()))
}

fn refused_chain(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let chain = web_chain(stage)?;
    fault_both(
        stage,
        "restore",
        &format!(
            "input=\"$notes/input.$$\"; cat >\"$input\"\n\
             if grep -q -- '{chain} .*match-set' \"$input\"; then touch \"$notes/refused\"; rm \"$input\"; \
             echo 'line 3 failed: injected fault' >&2; exit 1; fi\n\
             exec <\"$input\"; rm \"$input\""
        ),
    )?;
    // Only the traffic of this chain is denied while it is refused.
    stage.may_be_cut_between("friend", "web", Duration::from_secs(60));
    super::programs::write_admit(stage, true)?;
    stage.until("the chain is refused", |stage| Ok(stage.refused()))?;
    stage.watch(Duration::from_secs(3))?;
    stage.helpers.repair_all()?;
    stage.confirm(&[("friend", "web", true), ("stranger", "web", true)])?;
    admit(stage, false)
}

fn refused_set(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    stage.helpers.fault(
        "ipset",
        "if [ \"$1\" = restore ]; then input=\"$notes/input.$$\"; cat >\"$input\"\n\
         if grep -q '^create' \"$input\"; then touch \"$notes/refused\"; rm \"$input\"; echo 'injected fault' >&2; exit 1; fi\n\
         exec <\"$input\"; rm \"$input\"; fi",
    )?;
    let extra = stage.world.web_policy_text().replace("name: web", "name: web-extra").replace(
        "matchLabels: {friend: 'yes'}",
        "matchExpressions: [{key: app, operator: NotIn, values: [web, db, open, friend]}]",
    );
    stage.write(|world| drop(world.files.insert("extra.yaml".to_owned(), extra)), &[("stranger", "web", true)])?;
    stage.until("the set is refused", |stage| Ok(stage.refused()))?;
    stage.watch(Duration::from_secs(3))?;
    stage.helpers.repair_all()?;
    stage.confirm(&[("stranger", "web", true)])?;
    stage.change(|world| world.files.clear(), &[("stranger", "web", false)])
}
