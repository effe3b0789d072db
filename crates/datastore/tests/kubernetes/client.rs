//! Objects one by one.

use serde_json::{Value, json};
use tortie_datastore::kubernetes::{ApiError, ApiResource, Client, KubeConfig};
use tortie_lab::apiserver::{ApiServer, Fault, On};
use tortie_model::with_causes;

use super::client;

const LEASES: ApiResource = ApiResource::LEASES;

fn lease(name: &str, holder: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "labels": {"app": "tortie"}},
        "spec": {"holderIdentity": holder},
    })
}

/// Performs all operations on an object; used without and with TLS.
fn whole_life(server: &ApiServer) {
    let client = client(server);
    let missing = client.get(LEASES, "kube-system", "one").unwrap_err();
    assert!(missing.is_not_found(), "{missing}");
    let created = client.create(LEASES, "kube-system", &lease("one", "a")).unwrap();
    assert!(client.create(LEASES, "kube-system", &lease("one", "b")).unwrap_err().is_already_exists());
    let mut second = created.clone();
    second["spec"]["holderIdentity"] = json!("b");
    let replaced = client.replace(LEASES, "kube-system", "one", &second).unwrap();
    assert_ne!(created["metadata"]["resourceVersion"], replaced["metadata"]["resourceVersion"]);
    // The version has been replaced already.
    assert!(client.replace(LEASES, "kube-system", "one", &second).unwrap_err().is_conflict());
    let patch = json!({"spec": {"holderIdentity": null, "leaseTransitions": 1}});
    let patched = client.patch(LEASES, "kube-system", "one", &patch).unwrap();
    assert_eq!(patched["spec"], json!({"leaseTransitions": 1}));
    assert_eq!(client.get(LEASES, "kube-system", "one").unwrap(), patched);
    assert_eq!(client.list(LEASES, "", "app=tortie").unwrap().len(), 1);
    assert_eq!(client.list(LEASES, "kube-system", "app!=tortie").unwrap(), [] as [Value; 0]);
    let old = created["metadata"]["resourceVersion"].as_str();
    assert!(client.delete(LEASES, "kube-system", "one", old).unwrap_err().is_conflict());
    client.delete(LEASES, "kube-system", "one", patched["metadata"]["resourceVersion"].as_str()).unwrap();
    assert!(client.delete(LEASES, "kube-system", "one", None).unwrap_err().is_not_found());
    let groups = client.groups().unwrap();
    assert!(groups.iter().any(|group| group == "networking.k8s.io"), "{groups:?}");
}

#[test]
fn the_life_of_an_object() {
    whole_life(&ApiServer::start().unwrap());
}

#[test]
fn the_life_of_an_object_by_tls() {
    let server = ApiServer::start_tls().unwrap();
    whole_life(&server);
    // Certificates of another CA are rejected.
    let other = ApiServer::start_tls().unwrap();
    std::fs::copy(other.files().join("ca.pem"), server.files().join("ca.pem")).unwrap();
    let error = client(&server).groups().unwrap_err();
    assert!(matches!(error, ApiError::Unreachable(_)), "{error:?}");
    std::fs::copy(other.files().join("client.pem"), server.files().join("client.pem")).unwrap();
    assert!(client(&server).groups().is_err());
}

#[test]
fn a_page_may_be_larger_than_any_object() {
    let server = ApiServer::start().unwrap();
    for number in 0..12 {
        let mut lease = lease(&format!("l{number}"), "somebody");
        lease["metadata"]["annotations"] = json!({"note": "x".repeat(1 << 20)});
        server.apply(lease);
    }
    assert_eq!(client(&server).list(LEASES, "", "").unwrap().len(), 12);
}

#[test]
fn a_token_that_is_replaced_is_read_again() {
    let server = ApiServer::start().unwrap();
    let client = client(&server);
    client.groups().unwrap();
    server.rotate_token("second-token").unwrap();
    client.groups().unwrap();
    server.expire_token();
    let error = client.groups().unwrap_err();
    assert_eq!(error.code(), Some(401));
    assert!(!format!("{error:?} {client:?}").contains("token-"), "{error:?}");
    server.rotate_token("third-token").unwrap();
    client.groups().unwrap();
}

#[test]
fn refusals_are_classified() {
    let server = ApiServer::start().unwrap();
    let client = client(&server);
    server.apply(lease("one", "a"));
    let get = |fault| {
        server.fail(On::Object, "leases", fault, 1);
        client.get(LEASES, "default", "one")
    };
    let busy = get(Fault::TooManyRequests(3)).unwrap_err();
    assert_eq!((busy.code(), busy.retry_after().map(|wish| wish.as_secs())), (Some(429), Some(3)));
    assert!(get(Fault::Forbidden).unwrap_err().is_forbidden());
    assert_eq!(get(Fault::Internal).unwrap_err().code(), Some(500));
    assert!(matches!(get(Fault::Hangup), Err(ApiError::Unreachable(_))));
    assert!(matches!(get(Fault::DropInside), Err(ApiError::Unreachable(_))));
    assert!(matches!(get(Fault::Truncate), Err(ApiError::Malformed(_))));
    server.partition();
    assert!(matches!(client.groups(), Err(ApiError::Unreachable(_))));
    server.heal();
    client.groups().unwrap();
}

#[test]
fn unusable_configurations_name_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    let error = |config: KubeConfig| Client::new(config).unwrap().groups().unwrap_err().to_string();
    assert!(
        error(KubeConfig::file(&file)).contains("kubeconfig: failed to read"),
        "{}",
        error(KubeConfig::file(&file))
    );
    std::fs::write(&file, "users: [{name: u, user: {token: [secret-thing]}}]\n\t").unwrap();
    assert!(error(KubeConfig::file(&file)).ends_with("is not a kubeconfig"), "{}", error(KubeConfig::file(&file)));
    let server = ApiServer::start().unwrap();
    let other = KubeConfig::file(server.kubeconfig()).with_context("other");
    assert!(error(other).contains("context: other"));
    assert!(Client::new(KubeConfig::file(server.kubeconfig()).with_context("test")).unwrap().groups().is_ok());
}

#[test]
fn output_of_a_plugin_is_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    let config = |command: &str| {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:1'}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, \
             interactiveMode: Never, args: ['-c', '{command}']}}}}}}]\n"
        )
    };
    for command in ["echo secret-thing; exit 3", "echo secret-thing"] {
        std::fs::write(&file, config(command)).unwrap();
        let error = Client::new(KubeConfig::file(&file)).unwrap().groups().unwrap_err();
        assert!(matches!(error, ApiError::Config(_)), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("secret-thing"), "{error:?}");
    }
}

#[test]
fn a_failed_handshake_names_the_expectation() {
    let (encrypted, plain) = (ApiServer::start_tls().unwrap(), ApiServer::start().unwrap());
    let kubeconfig = std::fs::read_to_string(encrypted.kubeconfig()).unwrap();
    let dir = encrypted.files().display().to_string();
    let edited = |from: &str, to: &str| {
        assert!(kubeconfig.contains(from), "{kubeconfig}");
        kubeconfig.replace(from, to)
    };
    let identity = format!("\n    client-certificate: {dir}/client.pem\n    client-key: {dir}/client.key");
    let mut wrong = Vec::new();
    for (description, kubeconfig, expected) in [
        ("another authority", edited(&format!("{dir}/ca.pem"), &format!("{dir}/client.pem")), "kubeconfig"),
        ("no client certificate", edited(&identity, ""), "requires a client certificate"),
        (
            "TLS to a plain port",
            edited(&encrypted.address().to_string(), &plain.address().to_string()),
            "does not speak TLS",
        ),
        ("plain text to a TLS port", edited("https://", "http://"), "expects TLS"),
    ] {
        let file = encrypted.files().join("edited");
        std::fs::write(&file, kubeconfig).unwrap();
        let error = Client::new(KubeConfig::file(&file)).unwrap().groups().unwrap_err();
        let text = with_causes(&error);
        wrong.extend((!text.contains(expected)).then(|| format!("{description}: {text}")));
    }
    assert_eq!(wrong, Vec::<String>::new());
}
