//! Egress policy by domain name: DNS answers open addresses for the endpoint that asked.

mod answers;
mod crowd;
mod lifetimes;
mod messages;
mod tenants;
mod trust;
mod world;

use std::net::Ipv4Addr;

use rustix::process::Signal;
use tortie_lab::pods::{LabHost, interface_name};

use self::world::{By, NAMED, OTHER, POLICY, World, pod};

/// Denies the address before its name counts.
const NEVER: &str = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: never, namespace: shop}
spec:
  order: 1
  selector: all()
  types: [Egress]
  egress:
  - {action: Deny, protocol: TCP, destination: {nets: [10.99.0.80/32]}}
";

fn names_open_addresses(by: By) {
    let world = World::new(by);
    let [web, client] = &world.pods;
    world.assert_connects(web, NAMED, false);
    world.look_up(web, "api.example.com");
    world.assert_connects(web, NAMED, true);
    shows_and_traces(&world);
    // Neither another address, nor another pod.
    world.assert_connects(web, OTHER, false);
    world.assert_connects(client, NAMED, false);
    // The name matches no rule.
    let answer = world.look_up(web, "www.example.org.other.net");
    assert!(answer.ends_with(&OTHER.octets()), "{answer:?}");
    world.assert_connects(web, OTHER, false);
    world.look_up(client, "a.b.example.com");
    world.assert_connects(client, NAMED, true);
}

/// The pod has resolved a name of the rule, whose address is open for it alone.
fn shows_and_traces(world: &World) {
    let ask = |args: &[&str]| {
        let output = world.node.ask(args);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, shown) = ask(&["show", "domains", "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(code, Some(0), "{shown}");
    let endpoints: Vec<_> =
        shown["endpoints"].as_array().unwrap().iter().map(|one| (&one["name"], &one["names"])).collect();
    let web = endpoints.iter().find(|(name, _)| **name == "shop/web").unwrap().1;
    assert_eq!(
        (&web[0]["name"], &web[0]["policies"][0]),
        (&"api.example.com".into(), &"NetworkPolicy/shop/names".into())
    );
    assert_eq!(web[0]["addresses"][0]["address"], NAMED.to_string());
    assert!(web[0]["addresses"][0]["remaining_seconds"].as_u64().unwrap() > 60, "{web}");
    let client = endpoints.iter().find(|(name, _)| **name == "shop/client").unwrap().1;
    assert_eq!(*client, serde_json::json!([]));
    let (_, table) = ask(&["show", "domains", "shop/web"]);
    assert!(table.contains("api.example.com   10.99.0.80"), "{table}");

    let datastore = format!("file:{}", world.node.manifests().display());
    let trace = |from: &str, to: Ipv4Addr, port: &str| {
        ask(&["trace", "--datastore", &datastore, "--from", from, "--to", &to.to_string(), "--port", port])
    };
    let (code, traced) = trace("shop/web", NAMED, "80");
    assert!(code == Some(0) && traced.contains("NetworkPolicy/shop/names, egress rule 2"), "{code:?} {traced}");
    for (from, to, port) in [("shop/client", NAMED, "80"), ("shop/web", OTHER, "80"), ("shop/web", NAMED, "81")] {
        let (code, traced) = trace(from, to, port);
        assert_eq!(code, Some(3), "{from} {to} {port}: {traced}");
    }
}

tortie_lab::kernel_test! {
    fn names_open_addresses_for_the_pod_that_asked() {
        names_open_addresses(By::NFT);
    }

    fn names_open_addresses_for_the_pod_that_asked_with_ebpf() {
        names_open_addresses(By::EBPF);
    }

    fn names_open_addresses_for_the_pod_that_asked_with_ebpf_beside_nftables() {
        names_open_addresses(By::EBPF_BESIDE_NFTABLES);
    }

    fn addresses_in_programs_survive_a_restart_and_end_with_their_pod_or_pattern() {
        let mut world = World::new(By::EBPF);
        world.look_up(&world.pods[0], "api.example.com");
        world.assert_connects(&world.pods[0], NAMED, true);
        world.node.stop(Signal::TERM);
        world.assert_connects(&world.pods[0], NAMED, true);
        // Only the maps still have the address now.
        std::fs::remove_file(world.node.folder().join("dns-cache")).unwrap();
        world.node.start();
        world.assert_connects(&world.pods[0], NAMED, true);
        world.assert_connects(&world.pods[1], NAMED, false);
        // The address has another class, and then the former one again.
        world.node.write("never.yaml", NEVER);
        world.until_connects(&world.pods[0], NAMED, false);
        std::fs::remove_file(world.node.manifests().join("never.yaml")).unwrap();
        world.until_connects(&world.pods[0], NAMED, true);

        let interface = interface_name(&LabHost::pod("shop", "web")).unwrap();
        world.node.shell(&format!("ip link del {interface}"));
        world.pods[0] = pod(&world.node, "web", 2);
        world.look_up(&world.pods[0], "www.other.net");
        world.assert_connects(&world.pods[0], NAMED, false);
        world.look_up(&world.pods[0], "api.example.com");
        world.assert_connects(&world.pods[0], NAMED, true);
        world.node.write("policy.yaml", &POLICY.replace("*.example.com", "*.example.net"));
        world.until_connects(&world.pods[0], NAMED, false);
    }

    fn learned_addresses_survive_a_restart_and_end_with_the_policy() {
        let mut world = World::new(By::NFT);
        world.look_up(&world.pods[0], "api.example.com");
        world.assert_connects(&world.pods[0], NAMED, true);
        world.node.stop(Signal::TERM);
        world.assert_connects(&world.pods[0], NAMED, true);
        // Only the file still has the address now.
        let flushed = world.node.shell("ipset list -n | grep '^cali40d:' | xargs -n1 -t ipset flush 2>&1");
        assert!(flushed.contains("cali40d:"), "{flushed}");
        world.assert_connects(&world.pods[0], NAMED, false);
        world.node.start();
        world.assert_connects(&world.pods[0], NAMED, true);
        world.assert_connects(&world.pods[1], NAMED, false);
        world.node.write("policy.yaml", &POLICY.replace("*.example.com", "*.example.net"));
        world.until_connects(&world.pods[0], NAMED, false);
    }

    fn a_pod_that_replaces_another_on_its_interface_has_no_address_of_it() {
        let mut world = World::new(By::NFT);
        world.look_up(&world.pods[0], "api.example.com");
        world.assert_connects(&world.pods[0], NAMED, true);
        let interface = interface_name(&LabHost::pod("shop", "web")).unwrap();
        world.node.shell(&format!("ip link del {interface}"));
        world.pods[0] = pod(&world.node, "web", 2);
        // The node is ready for the new interface when an answer arrives.
        world.look_up(&world.pods[0], "www.other.net");
        world.assert_connects(&world.pods[0], NAMED, false);
        world.look_up(&world.pods[0], "api.example.com");
        world.assert_connects(&world.pods[0], NAMED, true);
    }

    fn answers_open_their_addresses_with_iptables() {
        answers::open_their_addresses(By::LEGACY);
    }

    fn answers_open_their_addresses_with_nftables() {
        answers::open_their_addresses(By::FAST);
    }

    fn answers_open_their_addresses_with_ebpf() {
        answers::open_their_addresses(By::EBPF);
    }

    fn answers_of_trusted_servers_alone_count_with_ebpf() {
        trust::answers_of_trusted_servers_alone_count(By::EBPF);
    }

    fn answers_of_trusted_servers_alone_count_with_iptables() {
        trust::answers_of_trusted_servers_alone_count(By::NFT);
    }

    fn answers_of_trusted_servers_alone_count_with_nftables() {
        trust::answers_of_trusted_servers_alone_count(By::NFTABLES);
    }

    fn lifetimes_end_and_a_reader_that_stops_delays_answers() {
        lifetimes::end_as_they_should(By::NFT);
    }

    fn a_tenant_that_fills_the_map_of_programs_keeps_no_name_of_another_closed() {
        tenants::a_tenant_that_fills_the_map_keeps_no_name_of_another_closed();
    }

    fn lifetimes_end_and_a_reader_that_stops_delays_answers_with_ebpf() {
        lifetimes::end_as_they_should(By::EBPF);
    }

    fn lifetimes_end_and_a_reader_that_stops_delays_answers_with_nftables() {
        lifetimes::end_as_they_should(By::FAST);
    }

    fn seventy_pods_learn_one_address_and_a_flood_delays_no_other_pod_with_iptables() {
        crowd::seventy_pods_learn_one_address(By::NFT);
    }

    fn seventy_pods_learn_one_address_and_a_flood_delays_no_other_pod_with_nftables() {
        crowd::seventy_pods_learn_one_address(By::FAST);
    }
}
