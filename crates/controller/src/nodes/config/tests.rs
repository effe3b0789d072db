use super::*;

fn read(node: &Value) -> (NodeConfig, Vec<String>) {
    NodeConfig::read(&json!({"spec": {"controllers": {"node": node}}}), &Overrides::default())
}

#[test]
fn defaults() {
    let (config, problems) = NodeConfig::read(&default_resource(), &Overrides::default());
    assert_eq!(problems, [] as [String; 0]);
    assert!(config.enabled && config.sync_labels && config.host_endpoints.create_default);
    assert!(!config.host_endpoints.auto_create && !config.host_endpoints.is_incomplete);
    assert_eq!(config.leak_grace, Duration::from_secs(900));
    // Without a `node` section the controller does nothing.
    assert!(!NodeConfig::read(&json!({"spec": {"controllers": {}}}), &Overrides::default()).0.enabled);
}

#[test]
fn graces() {
    for (node, grace) in
        [(json!({}), "15m0s"), (json!({"leakGracePeriod": "90s"}), "1m30s"), (json!({"leakGracePeriod": "0"}), "0s")]
    {
        let (config, problems) = read(&node);
        let status = config.status(&Overrides::default());
        assert_eq!(
            (&status["runningConfig"]["controllers"]["node"]["leakGracePeriod"], problems.len()),
            (&json!(grace), 0)
        );
    }
}

#[test]
fn the_command_line_decides() {
    let overrides = Overrides { sync_labels: Some(false), host_endpoints: Some(true), ..Overrides::default() };
    let resource = json!({"spec": {"controllers": {"node": {"syncLabels": "Enabled", "hostEndpoint": {
        "autoCreate": "Disabled", "createDefaultHostEndpoint": "Disabled", "templates": [{"generateName": "t"}]}}}}});
    let (config, _) = NodeConfig::read(&resource, &overrides);
    let endpoints = &config.host_endpoints;
    assert!(!config.sync_labels && endpoints.auto_create && endpoints.create_default && endpoints.templates.is_empty());
    let status = config.status(&overrides);
    assert_eq!(status["environmentVars"], json!({"SYNC_NODE_LABELS": "false", "AUTO_HOST_ENDPOINTS": "enabled"}));
    assert_eq!(status["runningConfig"]["controllers"]["node"]["hostEndpoint"]["autoCreate"], "Enabled");
}

#[test]
fn unknown_values_are_named() {
    let template = |field: &str, value: Value| {
        let mut template = json!({"generateName": "t", "interfaceCIDRs": ["10.0.0.0/8"], "nodeSelector": "all()"});
        template[field] = value;
        json!({"hostEndpoint": {"autoCreate": "Enabled", "templates": [template]}})
    };
    for (node, field) in [
        (json!({"syncLabels": "yes"}), "syncLabels"),
        (json!({"leakGracePeriod": "-1s"}), "leakGracePeriod"),
        (json!({"leakGracePeriod": 900}), "leakGracePeriod"),
        (json!({"hostEndpoint": {"autoCreate": true}}), "hostEndpoint.autoCreate"),
        (json!({"hostEndpoint": {"createDefaultHostEndpoint": "on"}}), "hostEndpoint.createDefaultHostEndpoint"),
        (json!({"hostEndpoint": {"templates": {}}}), "hostEndpoint.templates"),
        (template("generateName", json!("")), "hostEndpoint.templates[0].generateName"),
        (template("interfaceCIDRs", json!(["10/8"])), "hostEndpoint.templates[0].interfaceCIDRs"),
        (template("interfacePattern", json!("eth[")), "hostEndpoint.templates[0].interfacePattern"),
        (template("nodeSelector", json!("a ==")), "hostEndpoint.templates[0].nodeSelector"),
        (template("labels", json!({"a": 1})), "hostEndpoint.templates[0].labels"),
    ] {
        let (config, problems) = read(&node);
        let place = format!("KubeControllersConfiguration/default: spec.controllers.node.{field}: ");
        assert!(problems.len() == 1 && problems[0].starts_with(&place), "{problems:?}");
        assert_eq!(config.host_endpoints.is_incomplete, field.starts_with("hostEndpoint"), "{field}");
        assert!(config.host_endpoints.templates.is_empty());
    }
}
