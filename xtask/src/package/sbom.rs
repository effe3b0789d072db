//! The bill of materials of the agent, `CycloneDX` 1.5 in JSON: the packages that are linked into
//! it, by their names in the registry.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::files::write;
use crate::shell::{cargo, output};

/// Writes the bill of a build of the agent with these options of cargo, and returns its path.
///
/// # Errors
/// If cargo does not describe the dependencies, or the file cannot be written.
pub fn write_sbom(options: &[&str], target: &str, file: &Path) -> Result<PathBuf, String> {
    let manifest = ["--manifest-path", "crates/agent/Cargo.toml", "--filter-platform", target];
    let described = output(cargo(&["metadata", "--locked", "--format-version=1"]).args(manifest).args(options))?;
    let metadata: Value = serde_json::from_str(&described).map_err(|error| format!("cargo metadata: {error}"))?;
    let bill = bill(&metadata, "tortie-agent")?;
    write(file, &format!("{bill:#}\n"))?;
    Ok(file.to_owned())
}

/// Returns the bill of a package: its dependencies at run time and build time, without those of
/// tests.
fn bill(metadata: &Value, root: &str) -> Result<Value, String> {
    let packages: BTreeMap<&str, &Value> =
        items(&metadata["packages"]).map(|package| (text(&package["id"]), package)).collect();
    let nodes: BTreeMap<&str, &Value> =
        items(&metadata["resolve"]["nodes"]).map(|node| (text(&node["id"]), node)).collect();
    let top = packages.iter().find(|(_, package)| package["name"] == root);
    let (&top, package) = top.ok_or_else(|| format!("cargo describes no package {root}"))?;
    let (mut seen, mut open) = (BTreeSet::from([top]), vec![top]);
    let mut dependencies = BTreeMap::new();
    while let Some(id) = open.pop() {
        let node = nodes.get(id).ok_or_else(|| format!("cargo does not resolve {id}"))?;
        let needed: BTreeSet<&str> =
            items(&node["deps"]).filter(|dep| is_linked(dep)).map(|dep| text(&dep["pkg"])).collect();
        open.extend(needed.iter().filter(|id| seen.insert(id)));
        let of = |id: &str| packages.get(id).map(|package| reference(package));
        dependencies.insert(of(id), needed.into_iter().filter_map(of).collect::<BTreeSet<_>>());
    }
    let others = seen.iter().filter(|id| **id != top).filter_map(|id| packages.get(id));
    let components: BTreeMap<String, Value> =
        others.map(|package| (reference(package), component(package, "library"))).collect();
    let dependencies = dependencies.into_iter().map(|(of, on)| json!({"ref": of, "dependsOn": on}));
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(package, "application")},
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies.collect::<Vec<_>>(),
    }))
}

/// Reports whether a dependency is used outside tests.
fn is_linked(dependency: &Value) -> bool {
    items(&dependency["dep_kinds"]).any(|kind| kind["kind"] != "dev")
}

fn component(package: &Value, kind: &str) -> Value {
    let reference = reference(package);
    let mut component = json!({
        "type": kind,
        "bom-ref": reference,
        "name": package["name"],
        "version": package["version"],
        "purl": reference,
    });
    if let Some(licence) = package["license"].as_str() {
        // Old packages write a slash for an alternative.
        component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
    }
    component
}

fn reference(package: &Value) -> String {
    format!("pkg:cargo/{}@{}", text(&package["name"]), text(&package["version"]))
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linked_packages_are_listed_with_their_dependencies() {
        let package = |name: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let dep = |name: &str, kind: Option<&str>| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let packages = ["agent", "direct", "indirect", "tests"].map(package).to_vec();
        let metadata = json!({
            "packages": packages,
            "resolve": {"nodes": [
                {"id": "agent", "deps": [dep("direct", None), dep("tests", Some("dev"))]},
                {"id": "direct", "deps": [dep("indirect", Some("build"))]},
                {"id": "indirect", "deps": []},
                {"id": "tests", "deps": []},
            ]},
        });
        let bill = bill(&metadata, "agent").expect("the metadata is complete");
        let names: Vec<_> = items(&bill["components"]).map(|component| text(&component["name"])).collect();
        assert_eq!(names, ["direct", "indirect"]);
        assert_eq!(bill["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bill["metadata"]["component"]["purl"], "pkg:cargo/agent@1.0.0");
        let needs = json!({"ref": "pkg:cargo/direct@1.0.0", "dependsOn": ["pkg:cargo/indirect@1.0.0"]});
        assert_eq!(bill["dependencies"][1], needs);
    }
}
