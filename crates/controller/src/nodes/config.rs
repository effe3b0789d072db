//! Configuration of the node controller: the `KubeControllersConfiguration` named `default`, and
//! its overrides from the command line (`kube-controllers/pkg/config/runconfig.go`).

use std::collections::BTreeMap;
use std::time::Duration;

use regex::Regex;
use serde_json::{Map, Value, json};
use tortie_net::Cidr;
use tortie_resources::{go_duration, go_duration_text};
use tortie_selector::Selector;

use crate::json::{field, set};

/// Default grace period of a suspected leak: 15 min.
const LEAK_GRACE: Duration = Duration::from_secs(15 * 60);

/// Settings from the command line or the environment that override the resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Whether node labels are copied (`SYNC_NODE_LABELS`); `None`: as in the resource.
    pub sync_labels: Option<bool>,
    /// Whether each node gets a host endpoint (`AUTO_HOST_ENDPOINTS`); `None`: as in the resource.
    pub host_endpoints: Option<bool>,
    /// Comparison period of the other controllers, reported in the status.
    pub reconcile_period: Duration,
    /// Whether Kubernetes is the datastore (`DATASTORE_TYPE`). Then there are no other controllers
    /// and no labels to copy.
    pub kubernetes_datastore: bool,
    /// Whether another controller writes the resource and its status.
    pub leaves_status: bool,
}

/// Effective settings of the node controller.
#[derive(Clone, Debug)]
pub(super) struct NodeConfig {
    /// False if the resource has no `node` section; nothing is done then.
    pub(super) enabled: bool,
    pub(super) sync_labels: bool,
    pub(super) host_endpoints: HostEndpointConfig,
    /// Time from the suspicion of a leak to its release; zero means never.
    pub(super) leak_grace: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct HostEndpointConfig {
    pub(super) auto_create: bool,
    pub(super) create_default: bool,
    pub(super) templates: Vec<Template>,
    /// A part of it is invalid, so that no existing endpoint counts as unwanted.
    pub(super) is_incomplete: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Template {
    pub(super) generate_name: String,
    pub(super) cidrs: Vec<Cidr>,
    pub(super) pattern: Option<Regex>,
    pub(super) selector: Selector,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
}

/// Returns the resource to create if none exists.
pub(super) fn default_resource() -> Value {
    let period = json!({"reconcilerPeriod": "5m0s"});
    json!({"spec": {
        "logSeverityScreen": "Info",
        "healthChecks": "Enabled",
        "etcdV3CompactionPeriod": "10m0s",
        "controllers": {
            "node": {
                "reconcilerPeriod": "5m0s",
                "syncLabels": "Enabled",
                "hostEndpoint": {"autoCreate": "Disabled", "createDefaultHostEndpoint": "Enabled"},
                "leakGracePeriod": go_duration_text(LEAK_GRACE),
            },
            "policy": period,
            "workloadEndpoint": period,
            "serviceAccount": period,
            "namespace": period,
            "loadBalancer": {"assignIPs": "AllServices"},
            "migration": {"policyNameMigrator": "Enabled"},
        },
    }})
}

impl NodeConfig {
    /// Reads a resource and returns its problems. An invalid field has its default, except that an
    /// invalid duration is zero and an invalid template is left out.
    pub(super) fn read(resource: &Value, overrides: &Overrides) -> (Self, Vec<String>) {
        let mut reader = Reader { problems: Vec::new() };
        let node = field(resource, &["spec", "controllers", "node"]);
        let place = "spec.controllers.node";
        let sync_labels = reader.switch(node, place, "syncLabels", true).unwrap_or(true);
        let config = Self {
            enabled: !node.is_null(),
            sync_labels: !overrides.kubernetes_datastore && overrides.sync_labels.unwrap_or(sync_labels),
            host_endpoints: reader.host_endpoints(node, overrides),
            leak_grace: reader.duration(node, place, "leakGracePeriod", LEAK_GRACE),
        };
        (config, reader.problems)
    }

    /// Returns the status with the effective settings.
    pub(super) fn status(&self, overrides: &Overrides) -> Value {
        let enabled = |enabled: bool| if enabled { "Enabled" } else { "Disabled" };
        let mut variables = Map::new();
        if overrides.kubernetes_datastore {
            variables.insert("DATASTORE_TYPE".into(), "kubernetes".into());
        } else if let Some(sync) = overrides.sync_labels {
            variables.insert("SYNC_NODE_LABELS".into(), sync.to_string().into());
        }
        if let Some(create) = overrides.host_endpoints {
            variables.insert("AUTO_HOST_ENDPOINTS".into(), enabled(create).to_lowercase().into());
        }
        let period = json!({"reconcilerPeriod": go_duration_text(overrides.reconcile_period)});
        let mut controllers = match overrides.kubernetes_datastore {
            true => json!({}),
            false => json!({
                "policy": period, "workloadEndpoint": period, "serviceAccount": period, "namespace": period,
            }),
        };
        if self.enabled {
            let endpoints = &self.host_endpoints;
            let mut node = json!({
                "syncLabels": enabled(self.sync_labels),
                "hostEndpoint": {
                    "autoCreate": enabled(endpoints.auto_create),
                    "createDefaultHostEndpoint": enabled(endpoints.create_default),
                },
                "leakGracePeriod": go_duration_text(self.leak_grace),
            });
            if !endpoints.templates.is_empty() {
                let templates: Vec<Value> = endpoints.templates.iter().map(Template::written).collect();
                set(&mut node, &["hostEndpoint", "templates"], templates.into());
            }
            set(&mut controllers, &["node"], node);
        }
        let mut status = json!({"runningConfig": {"controllers": controllers}});
        if !variables.is_empty() {
            set(&mut status, &["environmentVars"], variables.into());
        }
        status
    }
}

impl Template {
    fn written(&self) -> Value {
        let cidrs: Vec<String> = self.cidrs.iter().map(ToString::to_string).collect();
        let mut written = json!({
            "generateName": self.generate_name,
            "interfaceCIDRs": cidrs,
            "labels": self.labels,
            "annotations": self.annotations,
        });
        // Empty fields are not stored.
        let pattern = self.pattern.as_ref().map_or("", Regex::as_str);
        for (name, text) in [("interfacePattern", pattern), ("nodeSelector", self.selector.text())] {
            if !text.is_empty() {
                set(&mut written, &[name], text.into());
            }
        }
        written
    }
}

struct Reader {
    problems: Vec<String>,
}

impl Reader {
    fn wrong(&mut self, place: &str, name: &str, message: &str, value: &Value) {
        self.problems.push(format!("KubeControllersConfiguration/default: {place}.{name}: {message}: {value}"));
    }

    /// Reads `Enabled` or `Disabled`; `None` for any other value.
    fn switch(&mut self, of: &Value, place: &str, name: &str, default: bool) -> Option<bool> {
        match field(of, &[name]) {
            Value::Null => Some(default),
            Value::String(text) if text.is_empty() => Some(default),
            Value::String(text) if text == "Enabled" => Some(true),
            Value::String(text) if text == "Disabled" => Some(false),
            value => {
                self.wrong(place, name, "is neither Enabled nor Disabled", value);
                None
            }
        }
    }

    /// Reads a duration in Go notation; zero if it is invalid.
    fn duration(&mut self, of: &Value, place: &str, name: &str, default: Duration) -> Duration {
        match field(of, &[name]) {
            Value::Null => default,
            value => value.as_str().and_then(go_duration).unwrap_or_else(|| {
                self.wrong(place, name, "is no duration", value);
                Duration::ZERO
            }),
        }
    }

    fn host_endpoints(&mut self, node: &Value, overrides: &Overrides) -> HostEndpointConfig {
        if let Some(auto_create) = overrides.host_endpoints {
            return HostEndpointConfig {
                auto_create,
                create_default: true,
                templates: Vec::new(),
                is_incomplete: false,
            };
        }
        let section = field(node, &["hostEndpoint"]);
        let place = "spec.controllers.node.hostEndpoint";
        let before = self.problems.len();
        let auto_create = self.switch(section, place, "autoCreate", false).unwrap_or(false);
        let create_default = self.switch(section, place, "createDefaultHostEndpoint", true).unwrap_or(true);
        let mut templates = Vec::new();
        match field(section, &["templates"]) {
            Value::Null => {}
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    templates.extend(self.template(item, &format!("{place}.templates[{index}]")));
                }
            }
            other => self.wrong(place, "templates", "is no list", other),
        }
        HostEndpointConfig { auto_create, create_default, templates, is_incomplete: self.problems.len() > before }
    }

    fn template(&mut self, item: &Value, place: &str) -> Option<Template> {
        let before = self.problems.len();
        let cidrs: Vec<Cidr> = self.list(item, place, "interfaceCIDRs", |text| text.parse().ok());
        let pattern = self.text(item, place, "interfacePattern");
        let compiled = (!pattern.is_empty()).then(|| Regex::new(pattern));
        if let Some(Err(_)) = compiled {
            self.wrong(place, "interfacePattern", "is no regular expression", field(item, &["interfacePattern"]));
        }
        let selector = Selector::parse(self.text(item, place, "nodeSelector"));
        if selector.is_err() {
            self.wrong(place, "nodeSelector", "is no selector", field(item, &["nodeSelector"]));
        }
        let generate_name = self.text(item, place, "generateName").to_owned();
        if generate_name.is_empty() {
            self.wrong(place, "generateName", "is missing", field(item, &["generateName"]));
        }
        let (labels, annotations) = (self.texts(item, place, "labels"), self.texts(item, place, "annotations"));
        if self.problems.len() > before {
            return None;
        }
        let selector = selector.ok()?;
        Some(Template { generate_name, cidrs, pattern: compiled.and_then(Result::ok), selector, labels, annotations })
    }

    fn text<'v>(&mut self, of: &'v Value, place: &str, name: &str) -> &'v str {
        match field(of, &[name]) {
            Value::Null => "",
            Value::String(text) => text,
            other => {
                self.wrong(place, name, "is no text", other);
                ""
            }
        }
    }

    fn list<T>(&mut self, of: &Value, place: &str, name: &str, read: impl Fn(&str) -> Option<T>) -> Vec<T> {
        let value = field(of, &[name]);
        let Some(items) = value.as_array() else {
            if !value.is_null() {
                self.wrong(place, name, "is no list", value);
            }
            return Vec::new();
        };
        let mut all = Vec::new();
        for item in items {
            match item.as_str().and_then(&read) {
                Some(item) => all.push(item),
                None => self.wrong(place, name, "is no network", item),
            }
        }
        all
    }

    fn texts(&mut self, of: &Value, place: &str, name: &str) -> BTreeMap<String, String> {
        let value = field(of, &[name]);
        if value.is_null() {
            return BTreeMap::new();
        }
        let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
        let texts = value.as_object().and_then(|texts| texts.iter().map(text).collect::<Option<_>>());
        texts.unwrap_or_else(|| {
            self.wrong(place, name, "is no mapping of texts", value);
            BTreeMap::new()
        })
    }
}

#[cfg(test)]
mod tests;
