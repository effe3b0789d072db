//! Nodes whose datastore goes away and comes back, for each kind of datastore.
#![cfg(all(feature = "etcd", feature = "fanout", feature = "kubernetes"))]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests that run the program on the kernel")]

#[path = "../node/agent.rs"]
mod agent;
#[path = "../support/secrets.rs"]
mod secrets;
mod world;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use agent::Node;
use rustix::process::Signal;
use secrets::is_hidden;
use serde_json::{Value, json};
use tortie_lab::apiserver::ApiServer;
use tortie_lab::etcd::{Etcd, EtcdOptions, Proxy};
use world::{Cluster, FanOut, Site, Work, differences, equal};

const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

const CLUSTER: &str = "
apiVersion: projectcalico.org/v3
kind: WorkloadEndpoint
metadata: {name: n1-k8s-web-eth0, namespace: shop, labels: {app: web}}
spec: {orchestrator: k8s, node: n1, pod: web, endpoint: eth0, interfaceName: cali0web, ipNetworks: [10.65.0.2/32]}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  selector: app == 'web'
  ingress: [{action: Allow, protocol: TCP, source: {selector: friend == 'yes'}, destination: {ports: [80]}}]
---
apiVersion: projectcalico.org/v3
kind: NetworkSet
metadata: {name: friends, namespace: shop, labels: {friend: 'yes'}}
spec: {nets: [10.66.0.1/32]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: outside}
spec: {order: 2000, selector: all(), types: [Egress], egress: [{action: Allow, destination: {nets: [10.99.0.0/16]}}]}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods}
spec: {cidr: 10.65.0.0/16, natOutgoing: true}
";

const TIER: &str = "
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: platform}
spec: {order: 5}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: guard}
spec: {tier: platform, order: 1, selector: has(app), ingress: [{action: Deny, source: {nets: [10.77.0.0/16]}}, {action: Pass}]}
";

const REJECT: &str = "
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: default}
spec: {iptablesFilterDenyAction: Reject}
";

fn friends(nets: &str) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: NetworkSet\nmetadata: {{name: friends, namespace: shop, labels: {{friend: \
         'yes'}}}}\nspec: {{nets: [{nets}]}}\n"
    )
}

/// State of the kernel before the datastore went away, which must stay.
struct Before {
    state: String,
    work: Work,
}

impl Before {
    fn of(site: &Site) -> Self {
        Self { state: site.state(), work: site.work() }
    }

    /// Asserts that nothing has been written, not even unchanged state.
    fn still_holds(&self, site: &Site) {
        assert_eq!(site.state(), self.state, "{}", site.node.log());
        assert_eq!(site.work(), self.work, "{}", site.node.log());
    }
}

/// An agent that starts while its datastore is away changes nothing, and neither does it when it
/// then finds the earlier state.
fn start_without_a_datastore(site: &mut Site, leave: impl FnOnce(&Site), come_back: impl FnOnce(&Site)) {
    let before = site.state();
    site.node.stop(Signal::TERM);
    leave(site);
    site.node.spawn();
    site.node.until_readiness("503", |answer| answer.contains("the datastore cannot be read: "));
    let nothing = Work { restores: 0.0, set_lines: 0.0 };
    assert_eq!((site.state(), site.work()), (before.clone(), nothing));
    thread::sleep(Duration::from_millis(700));
    assert!(site.node.get(9099, "/readiness").starts_with("HTTP/1.1 503"));
    assert_eq!((site.state(), site.work()), (before.clone(), nothing));
    come_back(site);
    site.until_available();
    assert_eq!((site.state(), site.work()), (before, nothing), "{}", site.node.log());
}

tortie_lab::kernel_test! {
    fn beside_and_behind_a_fan_out_kernels_are_equal() {
        let cluster = Cluster::start(CLUSTER);
        let (url, member) = (cluster.etcd.url(), cluster.etcd.address(0));
        let mut fan_out = FanOut::start(&url, ANYWHERE);
        let server = fan_out.address;
        let direct = Site::started(url.clone(), &[member]);
        let mut behind = [
            Site::started(format!("fanout://{server}"), &[server]),
            Site::started(format!("typha://{server}"), &[server]),
        ];
        let all = |behind: &[Site; 2], condition: &str, is_expected: &dyn Fn(&str) -> bool| {
            equal(condition, &[&direct, &behind[0], &behind[1]], is_expected)
        };
        let first = all(&behind, "the first state is in force", &|state| {
            ["10.66.0.1", "cali0web", "MASQUERADE", "10.65.0.2 dev cali0web"].iter().all(|part| state.contains(part))
        });
        cluster.apply(&friends("10.66.0.2/32, 10.66.7.0/24"));
        all(&behind, "a set has other members", &|state| state.contains("10.66.7.0/24") && !state.contains("10.66.0.1"));
        cluster.apply(TIER);
        all(&behind, "there is a tier", &|state| state.contains("10.77.0.0/16"));
        cluster.apply(REJECT);
        all(&behind, "denied packets are rejected", &|state| state.contains("-j REJECT") && state.contains("10.77.0.0/16"));
        cluster.apply(&CLUSTER.replace("10.65.0.2/32", "10.65.0.3/32").replace("ports: [80]", "ports: [81]"));
        all(&behind, "the workload has another address", &|state| {
            state.contains("10.65.0.3 dev cali0web") && !state.contains("10.65.0.2") && state.contains("81")
        });
        cluster.delete(TIER);
        cluster.delete(REJECT);
        cluster.apply(CLUSTER);
        let last = all(&behind, "all is as before", &|state| *state == first);

        // The death of a server changes nothing on nodes. The next server in its place has another
        // history.
        let before: Vec<Before> = behind.iter().map(Before::of).collect();
        fan_out.kill();
        behind.iter_mut().for_each(Site::until_unavailable);
        cluster.apply(&friends("10.66.0.1/32, 10.66.0.9/32"));
        direct.node.until("the friend is allowed", |state| state.contains("10.66.0.9"));
        before.iter().zip(&behind).for_each(|(before, site)| before.still_holds(site));
        let _second = FanOut::start(&url, server);
        let after = all(&behind, "the friend is allowed everywhere", &|state| state.contains("10.66.0.9"));
        let (gone, new) = differences(&last, &after);
        assert!(gone.is_empty() && new.len() == 1, "{gone:?} {new:?}");
        for (before, site) in before.iter().zip(&mut behind) {
            site.until_available();
            let work = site.work();
            assert_eq!(work.restores, before.work.restores, "{}", site.node.log());
            assert!(work.set_lines - before.work.set_lines <= 4.0, "{work:?}\n{}", site.node.log());
        }
        for site in &mut behind {
            start_without_a_datastore(site, Site::cut, Site::heal);
        }
    }

    fn an_etcd_that_is_away_changes_nothing() {
        let mut cluster = Cluster::start(CLUSTER);
        let (url, member) = (cluster.etcd.url(), cluster.etcd.address(0));
        let mut fan_out = FanOut::start(&url, ANYWHERE);
        let server = fan_out.address;
        let mut sites = [
            Site::started(url.clone(), &[member]),
            Site::started(format!("fanout://{server}"), &[server]),
            Site::started(format!("typha://{server}"), &[server]),
        ];
        equal("all is in force", &[&sites[0], &sites[1], &sites[2]], |state| {
            state.contains("10.66.0.1") && state.contains("10.65.0.2 dev cali0web")
        });
        sites.iter().for_each(Site::send);
        let before: Vec<Before> = sites.iter().map(Before::of).collect();

        // It dies.
        cluster.etcd.kill(0);
        // Typha's protocol has no message for it.
        sites[..2].iter_mut().for_each(Site::until_unavailable);
        // A server that starts now has no objects, which does not mean that there are none.
        fan_out.kill();
        let _second = FanOut::start(&url, server);
        sites.iter_mut().for_each(Site::until_unavailable);
        thread::sleep(Duration::from_millis(500));
        before.iter().zip(&sites).for_each(|(before, site)| before.still_holds(site));
        cluster.etcd.restart(0).unwrap();
        sites.iter_mut().for_each(Site::until_available);
        before.iter().zip(&sites).for_each(|(before, site)| before.still_holds(site));

        // The datastore is unreachable while others change it, and then delete its history.
        let witness = Site::started(format!("fanout://{server}"), &[server]);
        sites.iter().for_each(Site::cut);
        sites.iter_mut().for_each(Site::until_unavailable);
        let counted: Vec<_> = sites.iter().map(Site::counters).collect();
        cluster.apply(&CLUSTER.replace("ports: [80]", "ports: [8123]"));
        cluster.apply(TIER);
        cluster.delete(TIER);
        cluster.apply(&friends("10.66.0.8/32"));
        cluster.etcd.compact().unwrap();
        // The server may be behind: it must not serve the tier, which has been deleted.
        witness.node.until("the server has the last change", |state| state.contains("10.66.0.8"));
        before.iter().zip(&sites).for_each(|(before, site)| before.still_holds(site));
        sites.iter().for_each(Site::heal);
        let after = equal("the changes are in force", &[&sites[0], &sites[1], &sites[2]], |state| {
            state.contains("10.66.0.8") && !state.contains("10.66.0.1") && state.contains("8123")
        });
        let (gone, new) = differences(&before[0].state, &after);
        // A rule of each family, and a member of a set.
        assert!(gone.len() == 3 && new.len() == 3, "{gone:#?} {new:#?}");
        for ((before, counted), site) in before.iter().zip(&counted).zip(&mut sites) {
            site.until_available();
            let work = site.work();
            // The policy's chain in one table of each family, and two members of a set.
            let report = || format!("{:?} {work:?}\n{}", before.work, site.node.log());
            assert!(work.restores - before.work.restores <= 2.0, "{}", report());
            assert!(work.set_lines - before.work.set_lines <= 6.0, "{}", report());
            let now = site.counters();
            assert!(counted.keys().any(|rule| rule.contains("-A cali-fw-cali0web")), "{counted:#?}");
            for (rule, packets) in counted {
                // Unchanged rules have not been written again.
                assert!(now.get(rule).is_some_and(|now| now >= packets), "{rule}: {packets}, {:?}", now.get(rule));
            }
        }
        start_without_a_datastore(&mut sites[0], Site::cut, Site::heal);
    }

    fn an_api_server_that_is_away_changes_nothing() {
        let server = ApiServer::start().unwrap();
        server.install_calico("crd.projectcalico.org", "v1");
        for object in objects() {
            server.apply(object);
        }
        let mut site =
            Site::started(format!("kubernetes:{}", server.kubeconfig().display()), &[server.address()]);
        site.node.until("all is in force", |state| state.contains("10.66.0.1") && state.contains("cali-pi-"));
        let before = Before::of(&site);

        server.partition();
        site.until_unavailable();
        server.delete("v1", "Pod", "shop", "friend");
        server.apply(friend("other", "10.66.0.8"));
        server.apply(friend("passing", "10.66.0.9"));
        server.delete("v1", "Pod", "shop", "passing");
        server.compact();
        thread::sleep(Duration::from_millis(500));
        before.still_holds(&site);
        server.heal();
        site.node.until("the changes are in force", |state| state.contains("10.66.0.8") && !state.contains("10.66.0.1"));
        site.until_available();
        let after = site.state();
        let (gone, new) = differences(&before.state, &after);
        assert!(gone.len() == 1 && new.len() == 1, "{gone:#?} {new:#?}");
        let work = site.work();
        assert_eq!(work.restores, before.work.restores);
        assert!(work.set_lines - before.work.set_lines <= 6.0, "{work:?}");

        // An agent that starts while the server is away discovers Calico's kinds later.
        let before = Before::of(&site);
        start_without_a_datastore(&mut site, |_| server.partition(), |_| server.heal());
        assert_eq!(site.state(), before.state);
    }

    /// Connections stay open without answers, so that only heartbeats show the failure. It is
    /// detected after 20 s for etcd (`EtcdPace`), after three beats of 10 s for a fan-out, and
    /// after 30 s for a Typha.
    fn peers_that_freeze_change_nothing() {
        let cluster = Cluster::start(CLUSTER);
        let (url, member) = (cluster.etcd.url(), cluster.etcd.address(0));
        let fan_out = FanOut::start(&url, ANYWHERE);
        let server = fan_out.address;
        let mut sites = [
            Site::started(url, &[member]),
            Site::started(format!("fanout://{server}"), &[server]),
            Site::started(format!("typha://{server}"), &[server]),
        ];
        let all = |sites: &[Site; 3], condition: &str, friend: &str| {
            equal(condition, &[&sites[0], &sites[1], &sites[2]], |state| {
                state.contains(friend) && state.contains("10.65.0.2 dev cali0web")
            })
        };
        all(&sites, "all is in force", "10.66.0.1");
        let before: Vec<Before> = sites.iter().map(Before::of).collect();
        cluster.etcd.freeze(0);
        fan_out.signal(Signal::STOP);
        let frozen = Instant::now();
        sites.iter_mut().for_each(|site| site.until_unavailable_within(Duration::from_secs(60)));
        assert!(frozen.elapsed() > Duration::from_secs(5), "the source was given up before its time limit");
        before.iter().zip(&sites).for_each(|(before, site)| before.still_holds(site));
        cluster.etcd.thaw(0);
        sites[0].until_available();
        cluster.apply(&friends("10.66.0.8/32"));
        sites[0].node.until("the friend is allowed", |state| state.contains("10.66.0.8"));
        before[1..].iter().zip(&sites[1..]).for_each(|(before, site)| before.still_holds(site));
        fan_out.signal(Signal::CONT);
        all(&sites, "the friend is allowed everywhere", "10.66.0.8");
        for (before, site) in before.iter().zip(&mut sites) {
            site.until_available();
            assert_eq!(site.work().restores, before.work.restores, "{}", site.node.log());
        }
    }

    fn clients_of_a_server_that_ends_go_to_another_one() {
        let cluster = Cluster::start(CLUSTER);
        let url = cluster.etcd.url();
        let mut servers = [FanOut::start(&url, ANYWHERE), FanOut::start(&url, ANYWHERE)];
        let addresses = servers.each_ref().map(|server| server.address);
        let both = addresses.map(|address| address.to_string()).join(",");
        let sites = ["fanout", "typha"].map(|scheme| Site::started(format!("{scheme}://{both}"), &addresses));
        let before = sites.each_ref().map(Before::of);
        for (n, friend) in ["10.66.0.8", "10.66.0.9"].into_iter().enumerate() {
            servers[n].signal(Signal::TERM);
            assert!(servers[n].wait().success(), "{}", servers[n].log());
            if n == 0 {
                before.iter().zip(&sites).for_each(|(before, site)| before.still_holds(site));
                servers[0] = FanOut::start(&url, addresses[0]);
            }
            cluster.apply(&friends(&format!("10.66.0.1/32, {friend}/32")));
            equal("the friend is allowed", &[&sites[0], &sites[1]], |state| state.contains(friend));
        }
        for (before, site) in before.iter().zip(&sites) {
            let after = site.state();
            let (gone, new) = differences(&before.state, &after);
            assert!(gone.is_empty() && new.len() == 1, "{gone:?} {new:?}");
            assert_eq!(site.work().restores, before.work.restores, "{}", site.node.log());
        }
    }

    fn secrets_are_not_shown() {
        let mut etcd = Etcd::start(EtcdOptions::default()).unwrap();
        let node = r#"{"apiVersion":"projectcalico.org/v3","kind":"Node","metadata":{"name":"n1"},"spec":{}}"#;
        etcd.put("/calico/resources/v3/projectcalico.org/nodes/n1", node).unwrap();
        etcd.enable_users("felix", "pa55word").unwrap();
        let mut node = Node::reading("nft", etcd.url());
        let link = node.carry(etcd.address(0));
        let mut shown = String::new();
        node.set("FELIX_LOGSEVERITYSCREEN", "Trace");
        node.set("ETCD_USERNAME", "felix");
        node.set("ETCD_PASSWORD", "wr0ngword");
        node.spawn();
        node.until_readiness("503", |answer| answer.contains("authentication failed"));
        shown += &node.get(9099, "/readiness");
        node.stop(Signal::TERM);
        node.set("ETCD_PASSWORD", "pa55word");
        node.start();
        // A second attempt with the issued token fails.
        link.cut();
        node.until_ready("cannot be read");
        shown += &node.get(9099, "/readiness");
        link.heal();
        node.until_readiness("200", |answer| !answer.contains("cannot be read"));
        node.stop(Signal::TERM);
        is_hidden(&["pa55word", "wr0ngword"], &(shown + &node.log()));

        let server = ApiServer::start().unwrap();
        server.install_calico("crd.projectcalico.org", "v1");
        server.apply(serde_json::json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
        server.rotate_token("f1rst-t0ken").unwrap();
        let mut node = Node::reading("nft", format!("kubernetes:{}", server.kubeconfig().display()));
        let link: Proxy = node.carry(server.address());
        node.set("FELIX_LOGSEVERITYSCREEN", "Trace");
        node.start();
        server.expire_token();
        link.hang_up();
        node.until_ready("cannot be read");
        let mut shown = node.get(9099, "/readiness");
        server.rotate_token("sec0nd-t0ken").unwrap();
        node.until_readiness("200", |answer| !answer.contains("cannot be read"));
        node.stop(Signal::TERM);
        // Kubeconfigs that do not parse, and contain the token.
        let file = server.files().join("broken");
        let text = std::fs::read_to_string(server.kubeconfig()).unwrap();
        let tokens = [
            text.replace("tokenFile:", "token: thi1rd-t0ken\n    tokenFile: ["),
            text.replace("users:", "users: thi1rd-t0ken\nusers:"),
            text.replace("server: http://", "server: http://thi1rd-t0ken@"),
            text.replace("server: http://", "server: http://thi1rd-t0ken:x y@"),
        ];
        for text in tokens {
            std::fs::write(&file, text).unwrap();
            let mut node = Node::reading("nft", format!("kubernetes:{}", file.display()));
            node.set("FELIX_LOGSEVERITYSCREEN", "Trace");
            node.spawn();
            node.until_readiness("503", |answer| answer.contains("cannot be read"));
            shown += &node.get(9099, "/readiness");
            node.stop(Signal::TERM);
            shown += &node.log();
        }
        is_hidden(&["f1rst-t0ken", "sec0nd-t0ken", "thi1rd-t0ken"], &(shown + &node.log()));
    }
}

fn friend(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": {"friend": "yes"}},
        "spec": {"nodeName": "elsewhere", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "podIPs": [{"ip": address}]}})
}

fn objects() -> Vec<Value> {
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.65.0.2"}]}}),
        friend("friend", "10.66.0.1"),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "from-friends", "namespace": "shop"},
            "spec": {"podSelector": {"matchLabels": {"app": "web"}},
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"friend": "yes"}}}]}]}}),
    ]
}

/// Queries about a whole cluster have the same answers from the datastore and from the servers in
/// front of it.
#[test]
fn answers_name_the_deciding_version_from_every_source() {
    let cluster = Cluster::start(CLUSTER);
    let fanout = FanOut::start(&cluster.etcd.url(), ANYWHERE);
    let datastores =
        [cluster.etcd.url(), format!("fanout://{}", fanout.address), format!("typha://{}", fanout.address)];
    let answers = datastores.map(|datastore| {
        let output = Command::new(env!("CARGO_BIN_EXE_tortie"))
            .args(["trace", "--from", "192.0.2.1", "--to", "shop/web", "--port", "80", "--datastore", &datastore])
            .args(["-o", "json"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(3), "{datastore}: {output:?}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        answer["position"].as_str().unwrap().to_owned()
    });
    let version = answers[0].strip_prefix("resourceVersion ").unwrap();
    assert!(version.parse::<u64>().unwrap() > 0);
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
}
