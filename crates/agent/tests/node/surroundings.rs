//! What others around the agent see of it, and it of them.

use std::fs;

use rustix::process::Signal;
use tortie_testkit::lab::{Place, interface_name};

use super::agent::Node;
use crate::CLUSTER;

tortie_testkit::kernel_test! {
    fn an_endpoint_has_a_status_file_while_it_is_up() {
        let mut node = Node::new("nft", CLUSTER);
        let web = interface_name(&Place::pod("shop", "web")).unwrap();
        let files = node.folder().join("endpoint-status");
        fs::create_dir(&files).unwrap();
        fs::write(files.join("k8s shop%2Fgone eth0"), "{}").unwrap();
        node.shell(&format!("ip link add {web} type veth peer name peer; ip link set {web} up; ip link set peer up"));
        node.start();
        let file = files.join("k8s shop%2Fweb eth0");
        let content = format!(r#"{{"ifaceName":"{web}","ipv4Nets":["10.65.0.2/32"],"ipv6Nets":["fd00:65::2/128"]}}"#);
        node.until("the endpoint has a file, and what is gone has none", |_| {
            fs::read_to_string(&file).is_ok_and(|text| text == content) && fs::read_dir(&files).unwrap().count() == 1
        });
        node.shell(&format!("ip link set {web} down"));
        node.until("an endpoint that is down has none", |_| !file.exists());
        node.shell(&format!("ip link set {web} up"));
        node.until("it has one again", |_| file.exists());
        node.stop(Signal::TERM);
        assert!(file.exists(), "what was in force stays in force");
    }
}
