//! A plan names the claims to addresses and interfaces that a change makes and that do not count.
#![allow(clippy::unwrap_used, reason = "what cannot be fails the test")]

use tortie_calc::{AddressClaims, GraphConfig};
use tortie_classes::evaluate::Settings;
use tortie_model::{AddressSource, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey, WorkloadExtras};
use tortie_plan::{Finding, Options, plan};

fn pod(name: &str, interface: &str, source: AddressSource) -> Update {
    let extras = WorkloadExtras { address_source: source, ..WorkloadExtras::default() };
    let endpoint = WorkloadEndpoint {
        iface: Some(interface.into()),
        ipv4_nets: ["10.0.0.50/32".parse().unwrap()].into(),
        extras: (extras != WorkloadExtras::default()).then(|| Box::new(extras)),
        ..WorkloadEndpoint::default()
    };
    let key = WorkloadEndpointKey::new("n1", "k8s", name, "eth0");
    Update::WorkloadEndpoint(key, Some(Valid::new(endpoint).unwrap()))
}

fn found(claims: AddressClaims, change: Update) -> Vec<String> {
    let options =
        Options::new(GraphConfig { address_claims: claims, ..GraphConfig::new("any".into()) }, Settings::default());
    let plan = plan(vec![pod("prod/db", "cali1", AddressSource::Platform)], vec![change], &options).unwrap();
    let told = plan.findings.iter().filter_map(|finding| match finding {
        Finding::ClaimIgnored { endpoint, why } => Some(format!("{endpoint}: {why}")),
        _ => None,
    });
    told.collect()
}

#[test]
fn a_claim_that_does_not_count_is_told_with_its_reason() {
    let claim = || pod("dev/a", "cali2", AddressSource::Annotation("cni.projectcalico.org/podIP".into()));
    let told = found(AddressClaims::Bounded, claim());
    assert!(
        told.len() == 1 && told[0].ends_with("10.0.0.50 is the address of another endpoint, by its status"),
        "{told:?}"
    );
    assert!(found(AddressClaims::Any, claim()).is_empty());
}

#[test]
fn both_endpoints_of_a_contest_are_told() {
    let told = found(AddressClaims::Bounded, pod("dev/a", "cali2", AddressSource::Platform));
    let of = |name: &str| {
        told.iter().any(|text| {
            text.contains("address 10.0.0.50 is also claimed by") && text.ends_with(&format!("{name}; denied"))
        })
    };
    assert!(told.len() == 2 && of("prod/db") && of("dev/a"), "{told:?}");
}
