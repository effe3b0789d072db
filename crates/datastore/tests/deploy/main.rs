//! The manifests of `deploy/` are valid for the API's types, and the chart renders the same ones.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that reads the manifests")]

mod admission;
mod certificates;
mod chart;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tortie_datastore::kubernetes::KubernetesSource;
use tortie_model::Interner;
use tortie_resources::manifest::{BlockSource, Format, Options, SyncerType, read_written};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn documents(file: &Path) -> Vec<Value> {
    documents_of(&fs::read_to_string(file).unwrap(), &file.display().to_string())
}

fn documents_of(text: &str, name: &str) -> Vec<Value> {
    let (manifest, written) = read_written(text, Format::Yaml, &Options::default(), &mut Interner::new());
    assert_eq!(manifest.unreadable, [], "{name}");
    assert!(!written.is_empty(), "{name}");
    written
}

fn manifests() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["", "agent", "with-fanout"] {
        let entries = fs::read_dir(deploy().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")));
    }
    files.sort();
    assert!(files.len() >= 8, "{files:?}");
    files
}

/// Converts an object to the API's own type and back.
fn through<T: DeserializeOwned + Serialize>(object: &Value) -> Result<Value, String> {
    let typed: T = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    serde_json::to_value(&typed).map_err(|error| error.to_string())
}

fn understood(object: &Value) -> Result<Value, String> {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        ("v1", "ServiceAccount") => through::<ServiceAccount>(object),
        ("v1", "Secret") => through::<Secret>(object),
        ("v1", "Service") => through::<Service>(object),
        ("apps/v1", "DaemonSet") => through::<DaemonSet>(object),
        ("apps/v1", "Deployment") => through::<Deployment>(object),
        ("policy/v1", "PodDisruptionBudget") => through::<PodDisruptionBudget>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => through::<ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => through::<ClusterRoleBinding>(object),
        ("rbac.authorization.k8s.io/v1", "Role") => through::<Role>(object),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => through::<RoleBinding>(object),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => {
            through::<ValidatingAdmissionPolicy>(object)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
            through::<ValidatingAdmissionPolicyBinding>(object)
        }
        (api_version, kind) => Err(format!("{api_version} {kind} is not expected here")),
    }
}

/// Collects the paths of fields that the API's type does not have, or reads differently.
fn lost(path: &str, written: &Value, kept: &Value, found: &mut Vec<String>) {
    match (written, kept) {
        (Value::Object(written), Value::Object(kept)) => {
            for (name, value) in written {
                lost(&format!("{path}.{name}"), value, kept.get(name).unwrap_or(&Value::Null), found);
            }
        }
        (Value::Array(written), Value::Array(kept)) if written.len() == kept.len() => {
            for (i, (written, kept)) in written.iter().zip(kept).enumerate() {
                lost(&format!("{path}[{i}]"), written, kept, found);
            }
        }
        (written, kept) if written == kept => {}
        _ => found.push(path.to_owned()),
    }
}

fn assert_understood(name: &str, object: &Value) {
    let kept = understood(object).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut found = Vec::new();
    lost("", object, &kept, &mut found);
    assert!(found.is_empty(), "{name}: the API does not know {found:?}");
}

#[test]
fn nothing_is_misspelt() {
    for file in manifests() {
        for mut object in documents(&file) {
            let name = format!("{} {}", file.display(), object["kind"]);
            if object["kind"] == "Kustomization" {
                continue;
            }
            // A patch may remove an object by `$patch`, which is not part of the API.
            object.as_object_mut().unwrap().shift_remove("$patch");
            assert_understood(&name, &object);
        }
    }
}

#[test]
fn a_misspelt_field_is_found() {
    let mut object = documents(&deploy().join("agent/agent.yaml")).pop().unwrap();
    let container = &mut object["spec"]["template"]["spec"]["containers"][0];
    container["volumeMounts"][1]["readonly"] = true.into();
    container["livenessProbe"]["httpGet"]["prot"] = 9099.into();
    let mut found = Vec::new();
    lost("", &object, &understood(&object).unwrap(), &mut found);
    let container = ".spec.template.spec.containers[0]";
    let expected =
        [".livenessProbe.httpGet.prot", ".volumeMounts[1].readonly"].map(|field| format!("{container}{field}"));
    found.sort();
    assert_eq!(found, expected);
}

/// The agent's root file system is read-only, so that each folder that it writes to is mounted, and
/// only these. The socket is in `/run/tortie`, and persistent state is in `/var/lib/tortie`, as
/// `tortie run --help` says.
#[test]
fn the_agent_is_given_the_folders_that_it_needs() {
    let object = documents(&deploy().join("agent/agent.yaml")).pop().unwrap();
    let pod = &object["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    // Only `tortie trace --live` needs it: see the README.
    assert_eq!(pod["hostPID"], Value::Null);
    let mut given = BTreeMap::new();
    for mount in container["volumeMounts"].as_array().unwrap() {
        let volume = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        let host = &volume["hostPath"];
        // Outside `/proc`, the container has the host's paths, so that logs and errors name them.
        let path = if host["path"] == "/proc/sys" { &json!("/host/proc/sys") } else { &host["path"] };
        assert_eq!(mount["mountPath"], *path);
        assert!(mount.get("mountPropagation").is_none(), "{mount}");
        let rights = if mount["readOnly"] == true { "ro" } else { "rw" };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        given.insert(text(&mount["mountPath"]), format!("{rights} {}", text(&host["type"])));
    }
    assert_eq!(given.len(), pod["volumes"].as_array().unwrap().len(), "no volume without a mount");
    let expected = [
        ("/host/proc/sys", "rw Directory"),
        ("/lib/modules", "ro Directory"),
        ("/run/tortie", "rw DirectoryOrCreate"),
        ("/run/xtables.lock", "rw FileOrCreate"),
        ("/var/lib/calico", "rw DirectoryOrCreate"),
        ("/var/lib/tortie", "rw DirectoryOrCreate"),
        ("/var/run/calico", "rw DirectoryOrCreate"),
    ];
    assert_eq!(given, expected.map(|(path, rights)| (path.to_owned(), rights.to_owned())).into());
}

/// Unlimited memory use would take memory from the other pods and services of the node.
#[test]
fn each_program_has_a_bound_on_its_memory() {
    let mut count = 0;
    for file in ["agent/agent.yaml", "with-fanout/fanout.yaml", "controller.yaml", "controller-kubernetes.yaml"] {
        for object in documents(&deploy().join(file)) {
            for container in object["spec"]["template"]["spec"]["containers"].as_array().into_iter().flatten() {
                assert!(container["resources"]["limits"]["memory"].is_string(), "{file}");
                count += 1;
            }
        }
    }
    assert_eq!(count, 4);
    let unit = fs::read_to_string(deploy().join("debian/tortie.service")).unwrap();
    let lines: BTreeSet<_> = unit.lines().collect();
    for line in ["MemoryHigh=1536M", "MemoryMax=2G", "UMask=0077"] {
        assert!(lines.contains(line), "{line}");
    }
}

/// The files that kustomizations name exist.
#[test]
fn kustomizations_name_existing_files() {
    let mut count = 0;
    for file in manifests() {
        for object in documents(&file).iter().filter(|object| object["kind"] == "Kustomization") {
            let known = ["apiVersion", "kind", "resources", "patches", "images"];
            assert!(object.as_object().unwrap().keys().all(|name| known.contains(&&**name)), "{object}");
            let resources = object["resources"].as_array().unwrap().iter();
            let patches = object["patches"].as_array().into_iter().flatten().map(|patch| &patch["path"]);
            for named in resources.chain(patches) {
                let named = named.as_str().unwrap();
                let target = file.parent().unwrap().join(named);
                // kustomize accepts only files in the same folder, and folders that do not contain
                // it.
                assert!(
                    !named.contains("..") || target.is_dir() && named.starts_with("../"),
                    "{}: {named}",
                    file.display()
                );
                let target = if target.is_dir() { target.join("kustomization.yaml") } else { target };
                assert!(target.is_file(), "{}: {named}", file.display());
                count += 1;
            }
        }
    }
    assert!(count >= 9, "{count}");
}

/// Returns the permissions of the one role in a file: group, resource and verb.
fn allowed(file: &str) -> BTreeSet<(String, String, String)> {
    let mut roles = documents(&deploy().join(file));
    roles.retain(|object| object["kind"] == "ClusterRole");
    assert_eq!(roles.len(), 1);
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let mut allowed = BTreeSet::new();
    for rule in roles[0]["rules"].as_array().unwrap() {
        assert!(rule.as_object().unwrap().keys().all(|name| ["apiGroups", "resources", "verbs"].contains(&&**name)));
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    assert!(
                        allowed.insert((group.clone(), resource.clone(), verb.clone())),
                        "{group} {resource} {verb}"
                    );
                }
            }
        }
    }
    allowed
}

/// Agents and fan-outs may list and watch the kinds that they read, and nothing else. Only fan-outs
/// read for other syncers than Felix's.
#[test]
fn readers_may_read_exactly_the_watched_kinds() {
    let needed = |syncer| -> BTreeSet<_> {
        let options = Options { syncer, block_source: BlockSource::IpamBlocks, ..Options::default() };
        KubernetesSource::reads(&options)
            .flat_map(|read| {
                ["list", "watch"].map(|verb| (read.group.to_owned(), read.plural.to_owned(), verb.to_owned()))
            })
            .collect()
    };
    let agents = allowed("agent/rbac.yaml");
    let mut of_felix = needed(SyncerType::Felix);
    // An agent reads its own node to see whether it has a WireGuard key.
    of_felix.insert(right("nodes", "get"));
    assert_eq!(agents, of_felix);
    let of_any: BTreeSet<_> = SyncerType::ALL.into_iter().flat_map(needed).collect();
    assert_eq!(allowed("with-fanout/fanout.yaml"), of_any.difference(&agents).cloned().collect());
}

/// A migration of Calico's custom resources takes no right away. A reader of both groups also needs
/// the locks, which tell the one in use.
#[test]
fn rights_are_the_same_in_both_groups_of_calico() {
    let mut count = 0;
    // The roles of tenants are not for requests, but for the checks of admission policies.
    for file in manifests().into_iter().filter(|file| !file.ends_with("tenants.yaml")) {
        for role in documents(&file).iter().filter(|object| object["kind"] == "ClusterRole") {
            let [v1, v3] = ["crd.projectcalico.org", "projectcalico.org"].map(|group| rights_of(role, group));
            let renamed = v1.iter().map(|(kind, verb)| {
                let kind = if kind == "ipamconfigs" { "ipamconfigurations" } else { kind };
                (kind.to_owned(), verb.clone())
            });
            assert_eq!(renamed.collect::<BTreeSet<_>>(), v3, "{} {}", file.display(), role["metadata"]["name"]);
            count += usize::from(!v1.is_empty());
        }
    }
    assert!(count >= 4, "{count}");
    for file in ["agent/rbac.yaml", "agent/wireguard.yaml", "controller-kubernetes.yaml"] {
        for group in ["crd.projectcalico.org", "projectcalico.org"] {
            let right = [group, "clusterinformations", "list"].map(str::to_owned);
            assert!(allowed(file).contains(&right.into()), "{file} {group}");
        }
    }
}

/// Returns the kinds and verbs that a role allows in a group.
fn rights_of(role: &Value, group: &str) -> BTreeSet<(String, String)> {
    let rules = role["rules"].as_array().into_iter().flatten();
    let of_group = rules.filter(|rule| rule["apiGroups"].as_array().unwrap().contains(&group.into()));
    let texts =
        |value: &Value| value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect();
    of_group
        .flat_map(|rule| {
            let (kinds, verbs): (Vec<String>, Vec<String>) = (texts(&rule["resources"]), texts(&rule["verbs"]));
            kinds.into_iter().flat_map(move |kind| verbs.clone().into_iter().map(move |verb| (kind.clone(), verb)))
        })
        .collect()
}

#[test]
fn writers_of_keys_may_write_nothing_else() {
    let of_calico = |group: &str, resource: &str| (group.to_owned(), resource.to_owned(), "list".to_owned());
    assert_eq!(
        allowed("agent/wireguard.yaml"),
        BTreeSet::from([
            right("nodes", "get"),
            right("nodes/status", "patch"),
            // Before they connect to a fan-out they have to know whether they encrypt, by either
            // API.
            of_calico("crd.projectcalico.org", "clusterinformations"),
            of_calico("crd.projectcalico.org", "felixconfigurations"),
            of_calico("projectcalico.org", "clusterinformations"),
            of_calico("projectcalico.org", "felixconfigurations"),
        ])
    );
}

/// Returns the permission for a verb on objects of the core group.
fn right(resource: &str, verb: &str) -> (String, String, String) {
    (String::new(), resource.to_owned(), verb.to_owned())
}
