use super::*;

fn replayed(recording: &str, environment: &[(&str, &str)]) -> Result<Vec<Json>, Failure> {
    let mut out = Vec::new();
    let environment = environment.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    replay(recording.as_bytes(), &mut out, "n1", environment)?;
    Ok(String::from_utf8(out).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect())
}

const ENDPOINT: &str = r#"{"key": "/calico/v1/host/n1/workload/k8s/ns%2fpod/endpoint/eth0", "value": {"state": "active", "name": "cali1", "profile_ids": [], "ipv4_nets": ["10.0.0.1/32"], "ipv6_nets": [], "labels": {"a": "b"}}}"#;

#[test]
fn a_recording_is_answered_message_by_message() {
    let messages = replayed(&format!("{ENDPOINT}\n{{\"status\": \"in-sync\"}}\n\n{{\"flush\": true}}\n"), &[]).unwrap();
    let endpoint = messages.iter().find(|m| m.get("workload_endpoint_update").is_some()).unwrap();
    assert_eq!(endpoint["workload_endpoint_update"]["endpoint"]["ipv4_nets"], json!(["10.0.0.1/32"]));
    assert!(messages.last().unwrap().get("in_sync").is_some());
}

#[test]
fn pending_updates_are_flushed_at_the_end_and_bad_values_are_deletions() {
    let bad = ENDPOINT.replace("10.0.0.1/32", "nonsense");
    let recording = format!("{ENDPOINT}\n{{\"status\": \"in-sync\"}}\n{{\"flush\": true}}\n{bad}\n");
    let messages = replayed(&recording, &[]).unwrap();
    assert!(messages.last().unwrap().get("workload_endpoint_remove").is_some());
}

#[test]
fn the_environment_shows_in_the_configuration() {
    let messages = replayed("{\"status\": \"in-sync\"}\n", &[("bpfenabled", "false")]).unwrap();
    let config = messages.iter().find_map(|m| m.get("config_update")).unwrap();
    assert_eq!(config["config"]["BPFEnabled"], "false");
    assert_eq!(config["source_to_raw_config"]["5"]["config"]["BPFEnabled"], "false");
}

#[test]
fn an_update_counts_as_much_as_a_stored_object() {
    let Line::Update(update) = recording::read_line(ENDPOINT, &mut Interner::new()).unwrap() else { panic!() };
    let answers = |endpoint: &str| replayed(&format!("{endpoint}\n{{\"status\": \"in-sync\"}}\n"), &[]).unwrap();
    assert_eq!(answers(&recording::write_update(&update).unwrap()), answers(ENDPOINT));
}

#[test]
fn a_line_of_another_form_ends_it_with_its_place() {
    let error = replayed("{\"flush\": true}\n{\"what\": 1}\n", &[]).unwrap_err();
    assert!(error.to_string().starts_with("line 2 of the recording: column "), "{error}");
    assert!(error.to_string().contains(", what: unknown field `what`"), "{error}");
}
