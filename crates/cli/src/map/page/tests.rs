use tortie_analysis::map::{Options, dot};
use tortie_analysis::plan::classes::evaluate::Settings;
use tortie_calc::GraphConfig;
use tortie_model::{NetworkSet, Update, Valid, WorkloadEndpoint, WorkloadEndpointKey};

use super::*;

/// Hostile names, which no datastore should accept, stay text.
#[test]
fn hostile_names_stay_text() {
    let evil = "</title></script><script>alert(1)</script>\"];\n evil [label=\"'&";
    let endpoint = WorkloadEndpoint {
        iface: Some("cali1".parse().unwrap()),
        ipv4_nets: ["10.0.1.2/32".parse().unwrap()].into(),
        labels: tortie_model::Labels::from_pairs([(evil, evil)]).unwrap(),
        ..WorkloadEndpoint::default()
    };
    let set = NetworkSet { nets: ["192.0.2.0/24".parse().unwrap()].into(), ..NetworkSet::default() };
    let key = WorkloadEndpointKey::new("n", "k8s", &format!("{evil}/{evil}"), "eth0");
    let updates = [
        Update::WorkloadEndpoint(key, Some(Valid::stored(endpoint).unwrap())),
        Update::NetworkSet(evil.into(), Some(Valid::new(set).unwrap())),
    ];
    let map =
        tortie_analysis::map::map(&updates, &Options::new(GraphConfig::new("n".into()), Settings::default())).unwrap();
    assert_eq!(map.nodes.len(), 1);
    let describe = |_: &_, _| evil.to_owned();
    let picture = svg(&map, &layout(&map), &describe);
    assert!(picture.contains("&lt;script&gt;alert") && !picture.contains("<script"), "{picture}");
    let page = page(std::slice::from_ref(&map), &describe);
    assert_eq!((page.matches("<script").count(), page.matches("</script").count()), (2, 2), "{page}");
    // Each string is closed, so that names cannot add statements.
    for line in dot(&map, &describe).lines() {
        assert!(!line.trim_start().starts_with("evil"), "{line}");
        assert_eq!(line.replace("\\\"", "").matches('"').count() % 2, 0, "{line}");
    }
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    for part in [HEAD, SCRIPT] {
        assert!(!part.contains("://") && !part.contains("url(") && !part.contains("src="), "{part}");
        assert!(!part.contains("innerHTML") && !part.contains("fetch("), "{part}");
    }
}
