//! Words without quotes that are booleans in YAML 1.1.

use tortie_model::{Interner, Update};

use super::{Format, Options, Outcome, contributions, manifest, problems, read_written};

fn calico(kind: &str, labels: &str, spec: &str) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {{name: a, labels: {{{labels}}}}}\nspec: {spec}\n"
    )
}

#[test]
fn boolean_fields_take_the_words_of_kubectl_and_calicoctl() {
    for (word, expected) in [
        ("y", true),
        ("Yes", true),
        ("ON", true),
        ("true", true),
        ("n", false),
        ("NO", false),
        ("Off", false),
        ("FALSE", false),
    ] {
        let pool = calico("IPPool", "", &format!("{{cidr: 10.0.0.0/16, natOutgoing: {word}}}"));
        let updates = contributions(&pool);
        let [Update::IpPool(_, Some(pool))] = &updates[..] else { panic!("{updates:?}") };
        assert_eq!(pool.masquerade, expected, "{word}");
        let config =
            calico("FelixConfiguration", "", &format!("{{ipv6Support: {word}}}")).replace("name: a", "name: default");
        let expected = Update::GlobalConfig("Ipv6Support".into(), Some(expected.to_string().into()));
        assert_eq!(contributions(&config), [expected]);
        let (_, written) = read_written(&config, Format::Yaml, &Options::default(), &mut Interner::new());
        assert!(written[0]["spec"]["ipv6Support"].is_boolean(), "{written:?}");
    }
    // Other spellings and quotes make a text of it.
    for word in ["yES", "'yes'", "\"n\"", "!!str n", "nope"] {
        let pool = calico("IPPool", "", &format!("{{cidr: 10.0.0.0/16, natOutgoing: {word}}}"));
        assert!(problems(&pool).contains("spec.natOutgoing: must be true or false, is text"), "{}", problems(&pool));
        assert_eq!(problems(&calico("Tier", &format!("a: {word}"), "{order: 1}")), "", "{word}");
    }
}

#[test]
fn text_needs_quotes_where_other_programs_read_a_boolean() {
    for (text, expected) in [
        (
            calico("Tier", "a: n", "{order: 1}"),
            "3:33: error: Tier/a: metadata.labels.a: must be text (put it in quotes); kubectl and calicoctl read `n` \
             without quotes as false\n",
        ),
        (
            calico("Tier", "on: a", "{order: 1}"),
            "3:30: error: Tier/a: metadata.labels.on: the name must be in quotes; kubectl and calicoctl read `on` \
             without quotes as true\n",
        ),
        (
            calico("GlobalNetworkPolicy", "", "{selector: all(), ingress: [{action: no}]}"),
            "4:44: error: GlobalNetworkPolicy/a: spec.ingress[0].action: must be text (put it in quotes); kubectl and \
             calicoctl read `no` without quotes as false\n",
        ),
        // The field has no effect.
        (
            calico("BGPPeer", "", "{peerIP: 10.0.0.1, asNumber: 64512, sourceAddress: off}"),
            "4:58: error: BGPPeer/a: spec.sourceAddress: must be text (put it in quotes); kubectl and calicoctl read `off` \
             without quotes as false\n",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: b, labels: {c: yes}}, spec: {}}".into(),
            "1:75: error: Pod/b/a: metadata.labels.c: must be text (put it in quotes); kubectl and calicoctl read `yes` \
             without quotes as true\n",
        ),
        (
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a, namespace: b}, spec: \
             {podSelector: {matchExpressions: [{key: c, operator: In, values: [x, y]}]}}}"
                .into(),
            "1:167: error: NetworkPolicy/b/a: spec.podSelector.matchExpressions[0].values[1]: must be text (put it in \
             quotes); kubectl and calicoctl read `y` without quotes as true\n",
        ),
    ] {
        assert_eq!(problems(&text), expected);
    }
    // kubectl writes fields of other kinds.
    let pod =
        "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: b}, spec: {containers: [{name: c, tty: yes}]}}";
    assert_eq!(problems(pod), "");
}

#[test]
fn kinds_that_are_only_stored_are_searched_for_such_words() {
    let read = |text: &str| {
        let (manifest, _) = read_written(text, Format::Yaml, &Options::default(), &mut Interner::new());
        let resource = manifest.resources.into_iter().next().unwrap();
        let errors = resource.problems.iter().filter(|problem| problem.severity == crate::Severity::Error);
        (resource.outcome.clone(), errors.map(|problem| problem.field.clone()).collect::<Vec<_>>())
    };
    let invalid = Outcome::Invalid { substitute: None };
    let text = calico("KubeControllersConfiguration", "a: n", "{healthChecks: on}");
    assert_eq!(read(&text), (invalid.clone(), vec!["metadata.labels.a".to_owned(), "spec.healthChecks".to_owned()]));
    let text = calico("KubeControllersConfiguration", "enabled: yes", "{}");
    assert_eq!(read(&text), (invalid, vec!["metadata.labels.enabled".to_owned()]));
    let text = calico("IPAMConfiguration", "", "{strictAffinity: yes, autoAllocateBlocks: on}");
    assert_eq!(read(&text), (Outcome::Unknown, Vec::new()));
    let text = calico("IPAMHandle", "", "{deleted: no}")
        .replace("name: a", "name: a, ownerReferences: [{controller: yes, blockOwnerDeletion: on, name: b}]");
    assert_eq!(read(&text), (Outcome::Unknown, Vec::new()));
    // The items of a list of a kind need no `apiVersion`.
    let text = "apiVersion: projectcalico.org/v3\nkind: KubeControllersConfigurationList\nitems:\n\
                - {metadata: {name: a}, spec: {healthChecks: on}}\n";
    assert_eq!(read(text), (Outcome::Invalid { substitute: None }, vec!["spec.healthChecks".to_owned()]));
    // The reader of a directory has no use for these kinds.
    let found = problems(&calico("KubeControllersConfiguration", "a: n", "{}"));
    assert!(found.contains("warning: KubeControllersConfiguration/a: metadata.labels.a: ") && !found.contains("error"));
}

#[test]
fn an_unknown_field_of_a_configuration_may_be_a_boolean() {
    let config = |spec: &str| calico("FelixConfiguration", "", spec).replace("name: a", "name: default");
    let read = |text: &str| match manifest(text).resources.remove(0).outcome {
        Outcome::Valid(updates) => updates,
        other => panic!("{other:?}"),
    };
    let text = config("{bpfFromTomorrow: yes}");
    assert_eq!(read(&text), [Update::GlobalConfig("BpfFromTomorrow".into(), Some("true".into()))]);
    let only_unknown = problems(&text);
    assert!(only_unknown.contains("spec.bpfFromTomorrow: is not a known parameter"), "{only_unknown}");
    assert_eq!(only_unknown.lines().count(), 1, "{only_unknown}");
    for known in ["{natPortRange: on}", "{logPrefix: on}", "{nodeSelector: on}"] {
        let refused = problems(&config(known));
        assert!(refused.contains("must be text (put it in quotes)"), "{refused}");
    }
}

#[test]
fn a_patch_needs_quotes_as_well() {
    let patch = |text: &str| crate::from_yaml(text).map_err(|error| error.to_string());
    assert_eq!(patch("{spec: {disabled: yes}}"), Ok(serde_json::json!({"spec": {"disabled": true}})));
    let refused = patch("{metadata: {labels: {a: n}}}").unwrap_err();
    assert!(refused.starts_with("1:25: metadata.labels.a: must be text"), "{refused}");
    assert!(patch("{metadata: {labels: {y: a}}}").unwrap_err().contains("the name must be in quotes"));
}
