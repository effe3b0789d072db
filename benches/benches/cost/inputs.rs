//! Objects of one megabyte, for each kind and for each field of it that can grow.

use std::fmt::Write as _;

/// One object in JSON.
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// Returns objects in JSON of about `size` bytes each. With `is_full`, also shorter ones that stay
/// within all limits of numbers.
pub(crate) fn inputs(size: usize, is_full: bool) -> Vec<Input> {
    let mut all = Inputs { size, bounds: None, list: Vec::new() };
    let within: &[Bounds] = if is_full { &[Bounds::OF_RULES, Bounds::OF_SETS] } else { &[] };
    for bounds in [None].into_iter().chain(within.iter().copied().map(Some)) {
        all.bounds = bounds;
        all.calico_policies();
        all.kubernetes_policies();
        all.admin_policies();
        all.pods();
        all.workload_endpoints();
        all.host_endpoints();
        all.services();
    }
    all.bounds = None;
    all.network_sets();
    all.label_holders();
    all.any_field_of_any_kind();
    all.list
}

struct Inputs {
    size: usize,
    bounds: Option<Bounds>,
    list: Vec<Input>,
}

/// Limit of the items of a list.
#[derive(Clone, Copy)]
struct Bounds {
    name: &'static str,
    items: usize,
}

impl Bounds {
    /// Slightly below the limits of rules of a policy and of terms of a selector.
    const OF_RULES: Self = Self { name: "nearly too many", items: 9_900 };
    /// Slightly below the limits of selectors and port names of a policy, and of items of an
    /// endpoint.
    const OF_SETS: Self = Self { name: "many", items: 990 };
}

impl Inputs {
    /// Joins items by `separator` up to the size.
    fn fill(&self, separator: &str, item: impl Fn(usize) -> String) -> String {
        self.fill_part(1, separator, item)
    }

    /// As [`Inputs::fill`], for one of several parts of the object.
    fn fill_part(&self, parts: usize, separator: &str, item: impl Fn(usize) -> String) -> String {
        let mut text = item(0);
        let items = self.bounds.map_or(usize::MAX, |bounds| bounds.items / parts);
        for index in 1..items {
            if text.len() >= self.size / parts {
                break;
            }
            text.push_str(separator);
            text.push_str(&item(index));
        }
        text
    }

    fn add(&mut self, kind: (&str, &str), field: &str, spec: &str) {
        self.add_object(kind, field, r#""name":"big","namespace":"dev""#, &format!(r#""spec":{{{spec}}}"#));
    }

    fn add_object(&mut self, (version, kind): (&str, &str), field: &str, metadata: &str, rest: &str) {
        let bounds = self.bounds.map_or(String::new(), |bounds| format!(", {}", bounds.name));
        let name = format!("{kind}: {field}{bounds}");
        let text = format!(r#"{{"apiVersion":"{version}","kind":"{kind}","metadata":{{{metadata}}},{rest}}}"#);
        self.list.push(Input { name, text });
    }

    /// Returns selectors in Calico's syntax.
    fn selectors(&self, parts: usize) -> Vec<(&'static str, String)> {
        let fill = |separator: &str, item: &dyn Fn(usize) -> String| self.fill_part(parts, separator, item);
        let nested = |open: &str, item: &dyn Fn(usize) -> String| {
            // 500 nested operators, and the operands of the rest in the innermost.
            let mut text = String::new();
            (0..250).for_each(|i| write!(text, "a{i} == 'x' {open} (b == 'y' && (").expect("a String takes any text"));
            text.push_str(&self.fill_part(parts, " || ", item));
            (0..250).for_each(|_| text.push_str("))"));
            text
        };
        vec![
            ("alternatives of one label", fill(" || ", &|i| format!("a == 'v{i}'"))),
            ("alternatives of many labels", fill(" || ", &|i| format!("k{i} == 'v'"))),
            ("labels that exist", fill(" || ", &|i| format!("has(k{i})"))),
            ("labels that do not exist", fill(" && ", &|i| format!("!has(k{i})"))),
            ("conjunction of alternatives", fill(" && ", &|i| format!("(a == 'v{i}' || b == 'w{i}')"))),
            ("alternatives of conjunctions", fill(" || ", &|i| format!("(a == 'v{i}' && b == 'w{i}')"))),
            ("nested alternatives", nested("||", &|i| format!("c{i} == 'z'"))),
            ("values of a set", format!("a in {{{}}}", fill(",", &|i| format!("'v{i}'")))),
            ("sets of values", fill(" || ", &|i| format!("k{i} in {{'a','b'}}"))),
            ("prefixes", fill(" || ", &|i| format!("a starts with 'v{i}'"))),
            ("one long value", format!("a == '{}'", "x".repeat(self.size / parts))),
            (
                "parentheses",
                format!("{}a == 'b'{}", "(".repeat(self.size / parts / 2), ")".repeat(self.size / parts / 2)),
            ),
            ("negations", format!("{}has(a)", "!".repeat(self.size / parts))),
            ("an error at the end", format!("{} ||", fill(" || ", &|i| format!("a == 'v{i}'")))),
        ]
    }

    /// Returns rules of a Calico policy, some of them for one direction only.
    fn rules(&self) -> Vec<(String, String)> {
        [
            self.rules_of_selectors(),
            self.many_rules(),
            self.rules_of_networks(),
            self.rules_of_ports(),
            self.rules_of_both_sides(),
            self.rules_of_names(),
        ]
        .concat()
    }

    fn rules_of_selectors(&self) -> Vec<(String, String)> {
        let mut rules: Vec<(String, String)> = Vec::new();
        let mut add = |name: &str, text: String| rules.push((name.to_owned(), text));
        for (name, selector) in self.selectors(1) {
            add(&format!("peers by {name}"), format!(r#"{{"action":"Allow","source":{{"selector":"{selector}"}}}}"#));
            add(
                &format!("no peers by {name}"),
                format!(r#"{{"action":"Allow","source":{{"notSelector":"{selector}"}}}}"#),
            );
        }
        rules
    }

    fn many_rules(&self) -> Vec<(String, String)> {
        let mut rules: Vec<(String, String)> = Vec::new();
        let mut add = |name: &str, text: String| rules.push((name.to_owned(), text));
        let fill = |item: &dyn Fn(usize) -> String| self.fill(",", item);
        add("empty rules", fill(&|_| r#"{"action":"Allow"}"#.to_owned()));
        add(
            "rules with a selector each",
            fill(&|i| format!(r#"{{"action":"Allow","source":{{"selector":"a=='{i}'"}}}}"#)),
        );
        add(
            "rules with a wide selector each",
            fill(&|i| format!(r#"{{"action":"Allow","source":{{"selector":"a!='{i}'"}}}}"#)),
        );
        add(
            "rules with a namespace selector each",
            fill(&|i| format!(r#"{{"action":"Allow","source":{{"namespaceSelector":"a!='{i}'"}}}}"#)),
        );
        add(
            "rules with a network each",
            fill(&|i| format!(r#"{{"action":"Allow","source":{{"nets":["{}"]}}}}"#, net(i))),
        );
        add(
            "rules with a network and a port each",
            fill(&|i| {
                format!(
                    r#"{{"action":"Allow","protocol":"TCP","source":{{"nets":["{}"]}},"destination":{{"ports":[{}]}}}}"#,
                    net(i),
                    i % 65535 + 1
                )
            }),
        );
        add(
            "rules with a service each",
            fill(&|i| format!(r#"{{"action":"Allow","source":{{"services":{{"name":"s{i}"}}}}}}"#)),
        );
        add(
            "rules with the same service",
            fill(&|_| r#"{"action":"Allow","source":{"services":{"name":"web"}}}"#.to_owned()),
        );
        add(
            "rules with an ICMP code each",
            fill(&|i| {
                format!(
                    r#"{{"action":"Allow","protocol":"ICMP","icmp":{{"type":{},"code":{}}}}}"#,
                    i % 255,
                    i / 255 % 256
                )
            }),
        );
        add("rules that log", fill(&|_| r#"{"action":"Log"}"#.to_owned()));
        add("rules without an action", fill(&|_| "{}".to_owned()));
        rules
    }

    fn rules_of_networks(&self) -> Vec<(String, String)> {
        let mut rules: Vec<(String, String)> = Vec::new();
        let mut add = |name: &str, text: String| rules.push((name.to_owned(), text));
        let fill = |item: &dyn Fn(usize) -> String| self.fill(",", item);
        for field in ["nets", "notNets"] {
            let nets = fill(&|i| format!("\"{}\"", net(i)));
            add(field, format!(r#"{{"action":"Allow","source":{{"{field}":[{nets}]}}}}"#));
        }
        add(
            "networks that are none",
            format!(r#"{{"action":"Allow","source":{{"nets":[{}]}}}}"#, fill(&|i| format!("\"x{i}\""))),
        );
        rules
    }

    fn rules_of_ports(&self) -> Vec<(String, String)> {
        let mut rules: Vec<(String, String)> = Vec::new();
        let mut add = |name: &str, text: String| rules.push((name.to_owned(), text));
        let fill = |item: &dyn Fn(usize) -> String| self.fill(",", item);
        for field in ["ports", "notPorts"] {
            let numbers = fill(&|i| (i * 2 % 65535 + 1).to_string());
            add(&format!("{field} by number"), tcp(&format!(r#""{field}":[{numbers}]"#)));
            let names = fill(&|i| format!("\"p{i}\""));
            add(&format!("{field} by name"), tcp(&format!(r#""{field}":[{names}]"#)));
            let names = self.fill_part(2, ",", |i| format!("\"p{i}\""));
            for (name, selector) in self.selectors(2) {
                add(
                    &format!("{field} by name, {name}"),
                    tcp(&format!(r#""{field}":[{names}],"selector":"{selector}""#)),
                );
            }
            let selector = self.fill_part(2, " || ", |i| format!("a == 'v{i}'"));
            add(
                &format!("{field} by name of no peers"),
                tcp(&format!(r#""{field}":[{names}],"selector":"all()","notSelector":"{selector}""#)),
            );
        }
        rules
    }

    fn rules_of_both_sides(&self) -> Vec<(String, String)> {
        let mut rules: Vec<(String, String)> = Vec::new();
        let mut add = |name: &str, text: String| rules.push((name.to_owned(), text));
        add("networks and ports", {
            let nets = self.fill_part(2, ",", |i| format!("\"{}\"", net(i)));
            let ports = self.fill_part(2, ",", |i| (i * 2 % 65535 + 1).to_string());
            format!(
                r#"{{"action":"Allow","protocol":"TCP","source":{{"nets":[{nets}]}},"destination":{{"ports":[{ports}]}}}}"#
            )
        });
        add("ports of both sides", {
            let ports = self.fill_part(2, ",", |i| (i * 2 % 65535 + 1).to_string());
            format!(
                r#"{{"action":"Allow","protocol":"TCP","source":{{"ports":[{ports}]}},"destination":{{"ports":[{ports}]}}}}"#
            )
        });
        add("named ports of both sides", {
            let ports = self.fill_part(2, ",", |i| format!("\"p{i}\""));
            format!(
                r#"{{"action":"Allow","protocol":"TCP","source":{{"ports":[{ports}]}},"destination":{{"ports":[{ports}]}}}}"#
            )
        });
        rules
    }

    /// Returns rules with names of service accounts, methods, paths, annotations and unknown
    /// fields.
    fn rules_of_names(&self) -> Vec<(String, String)> {
        let mut rules: Vec<(String, String)> = Vec::new();
        let mut add = |name: &str, text: String| rules.push((name.to_owned(), text));
        let fill = |item: &dyn Fn(usize) -> String| self.fill(",", item);
        add(
            "names of service accounts",
            format!(
                r#"{{"action":"Allow","source":{{"serviceAccounts":{{"names":[{}]}}}}}}"#,
                fill(&|i| format!("\"a{i}\""))
            ),
        );
        add("methods", format!(r#"{{"action":"Allow","http":{{"methods":[{}]}}}}"#, fill(&|i| format!("\"M{i}\""))));
        add(
            "paths",
            format!(r#"{{"action":"Allow","http":{{"paths":[{}]}}}}"#, fill(&|i| format!(r#"{{"exact":"/{i}"}}"#))),
        );
        add(
            "annotations",
            format!(r#"{{"action":"Allow","metadata":{{"annotations":{{{}}}}}}}"#, fill(&|i| format!(r#""a{i}":"x""#))),
        );
        add("unknown fields", format!(r#"{{"action":"Allow",{}}}"#, fill(&|i| format!(r#""x{i}":1"#))));
        rules
    }

    fn calico_policies(&mut self) {
        let policy = ("projectcalico.org/v3", "NetworkPolicy");
        for (name, selector) in self.selectors(1) {
            self.add(policy, &format!("selector, {name}"), &format!(r#""selector":"{selector}""#));
        }
        for (name, selector) in self.selectors(1) {
            self.add(
                policy,
                &format!("service accounts, {name}"),
                &format!(r#""serviceAccountSelector":"{selector}""#),
            );
        }
        for (name, rules) in self.rules() {
            self.add(policy, &name, &format!(r#""types":["Ingress"],"ingress":[{rules}]"#));
        }
        let rules =
            self.fill(",", |i| format!(r#"{{"action":"Allow","destination":{{"services":{{"name":"s{i}"}}}}}}"#));
        self.add(policy, "egress rules with a service each", &format!(r#""types":["Egress"],"egress":[{rules}]"#));
        let rules = self.fill(",", |_| r#"{"action":"Allow","destination":{"services":{"name":"web"}}}"#.to_owned());
        self.add(policy, "egress rules with the same service", &format!(r#""types":["Egress"],"egress":[{rules}]"#));
        for field in ["types", "performanceHints"] {
            let words = self.fill(",", |_| "\"Ingress\"".to_owned());
            self.add(policy, field, &format!(r#""{field}":[{words}]"#));
        }
        let staged = ("projectcalico.org/v3", "StagedNetworkPolicy");
        let rules = self.fill(",", |i| format!(r#"{{"action":"Allow","source":{{"selector":"a!='{i}'"}}}}"#));
        self.add(staged, "rules with a wide selector each", &format!(r#""types":["Ingress"],"ingress":[{rules}]"#));
    }

    fn kubernetes_policies(&mut self) {
        for kind in
            [("networking.k8s.io/v1", "NetworkPolicy"), ("projectcalico.org/v3", "StagedKubernetesNetworkPolicy")]
        {
            for (name, selector) in self.label_selectors() {
                self.add(kind, &format!("pods by {name}"), &format!(r#""podSelector":{{{selector}}}"#));
                for field in ["podSelector", "namespaceSelector"] {
                    let spec = format!(r#""podSelector":{{}},"ingress":[{{"from":[{{"{field}":{{{selector}}}}}]}}]"#);
                    self.add(kind, &format!("{field} of a peer by {name}"), &spec);
                }
            }
            let one_rule = |text: String| format!(r#""podSelector":{{}},"ingress":[{{{text}}}]"#);
            let peers = |size: usize| {
                self.fill_part(size, ",", |i| format!(r#"{{"podSelector":{{"matchLabels":{{"a":"{i}"}}}}}}"#))
            };
            let any_peers = |size: usize| self.fill_part(size, ",", |_| r#"{"podSelector":{}}"#.to_owned());
            let blocks =
                |size: usize| self.fill_part(size, ",", |i| format!(r#"{{"ipBlock":{{"cidr":"{}"}}}}"#, net(i)));
            let ports = |size: usize| self.fill_part(size, ",", |i| format!(r#"{{"port":{}}}"#, i * 2 % 65535 + 1));
            let names = |size: usize| self.fill_part(size, ",", |i| format!(r#"{{"port":"p{i}"}}"#));
            let except = self.fill(",", |i| format!("\"{}\"", net(i)));
            let inputs = [
                ("peers", format!(r#""from":[{}]"#, peers(1))),
                ("peers that are the same", format!(r#""from":[{}]"#, any_peers(1))),
                ("blocks", format!(r#""from":[{}]"#, blocks(1))),
                ("holes of a block", format!(r#""from":[{{"ipBlock":{{"cidr":"10.0.0.0/7","except":[{except}]}}}}]"#)),
                ("ports by number", format!(r#""ports":[{}]"#, ports(1))),
                ("ports by name", format!(r#""ports":[{}]"#, names(1))),
                ("peers and ports", format!(r#""from":[{}],"ports":[{}]"#, any_peers(2), ports(2))),
                ("peers and ports by name", format!(r#""from":[{}],"ports":[{}]"#, peers(2), names(2))),
                ("blocks and ports", format!(r#""from":[{}],"ports":[{}]"#, blocks(2), ports(2))),
                ("peers that are none", format!(r#""from":[{}]"#, self.fill(",", |_| "{}".to_owned()))),
                ("ports that are none", format!(r#""ports":[{}]"#, self.fill(",", |_| "{\"port\":0}".to_owned()))),
            ];
            for (name, text) in inputs {
                self.add(kind, name, &one_rule(text));
            }
            let rules = self.fill(",", |_| "{}".to_owned());
            self.add(kind, "empty rules", &format!(r#""podSelector":{{}},"ingress":[{rules}]"#));
            let rules = self.fill(",", |i| format!(r#"{{"ports":[{{"port":{}}}]}}"#, i % 65535 + 1));
            self.add(kind, "rules with a port each", &format!(r#""podSelector":{{}},"ingress":[{rules}]"#));
        }
    }

    fn label_selectors(&self) -> Vec<(&'static str, String)> {
        let labels = self.fill(",", |i| format!(r#""k{i}":"v""#));
        let requirement = |operator: &str, values: &str| {
            let all = self.fill(",", |i| format!(r#"{{"key":"k{i}","operator":"{operator}"{values}}}"#));
            format!(r#""matchExpressions":[{all}]"#)
        };
        let values = self.fill(",", |i| format!("\"v{i}\""));
        vec![
            ("labels", format!(r#""matchLabels":{{{labels}}}"#)),
            ("labels that exist", requirement("Exists", "")),
            ("labels that do not exist", requirement("DoesNotExist", "")),
            ("sets of values", requirement("In", r#","values":["a","b"]"#)),
            ("values", format!(r#""matchExpressions":[{{"key":"a","operator":"In","values":[{values}]}}]"#)),
            (
                "values that are not",
                format!(r#""matchExpressions":[{{"key":"a","operator":"NotIn","values":[{values}]}}]"#),
            ),
        ]
    }

    fn admin_policies(&mut self) {
        let kind = ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy");
        let rule = |text: &str| format!(r#"{{"action":"Accept",{text}}}"#);
        let subject = r#""tier":"Admin","priority":7,"subject":{"namespaces":{}}"#;
        let peers =
            |size: usize| self.fill_part(size, ",", |i| format!(r#"{{"namespaces":{{"matchLabels":{{"a":"{i}"}}}}}}"#));
        let ports = |size: usize| {
            self.fill_part(size, ",", |i| {
                format!(r#"{{"tcp":{{"destinationPort":{{"number":{}}}}}}}"#, i * 2 % 65535 + 1)
            })
        };
        let nets = |size: usize| self.fill_part(size, ",", |i| format!("\"{}\"", net(i)));
        let inputs = [
            ("peers", format!(r#""ingress":[{}]"#, rule(&format!(r#""from":[{}]"#, peers(1))))),
            (
                "peers and ports",
                format!(r#""ingress":[{}]"#, rule(&format!(r#""from":[{}],"protocols":[{}]"#, peers(2), ports(2)))),
            ),
            ("networks", format!(r#""egress":[{}]"#, rule(&format!(r#""to":[{{"networks":[{}]}}]"#, nets(1))))),
            (
                "networks and ports",
                format!(
                    r#""egress":[{}]"#,
                    rule(&format!(r#""to":[{{"networks":[{}]}}],"protocols":[{}]"#, nets(2), ports(2)))
                ),
            ),
            ("rules", format!(r#""ingress":[{}]"#, self.fill(",", |_| rule(r#""from":[{"namespaces":{}}]"#)))),
        ];
        for (name, text) in inputs {
            self.add(kind, name, &format!("{subject},{text}"));
        }
        for (name, selector) in self.label_selectors() {
            self.add(
                kind,
                &format!("subject by {name}"),
                &format!(r#""tier":"Admin","priority":7,"subject":{{"namespaces":{{{selector}}}}}"#),
            );
        }
    }

    fn network_sets(&mut self) {
        for kind in [("projectcalico.org/v3", "NetworkSet"), ("projectcalico.org/v3", "GlobalNetworkSet")] {
            for (name, item) in [("networks", ""), ("networks that are none", "x")] {
                let nets = self.fill(",", |i| format!("\"{item}{}\"", net(i)));
                self.add(kind, name, &format!(r#""nets":[{nets}]"#));
            }
        }
    }

    fn pods(&mut self) {
        let running = r#""phase":"Running","podIP":"10.0.0.99","podIPs":[{"ip":"10.0.0.99"}]"#;
        let pod = |spec: &str, status: &str| {
            format!(r#""spec":{{"nodeName":"n1","serviceAccountName":"default"{spec}}},"status":{{{status}}}"#)
        };
        let metadata = r#""name":"big","namespace":"dev""#;
        let port = |i: usize| format!(r#"{{"name":"p{i}","containerPort":{}}}"#, i % 65535 + 1);
        let inputs = [
            (
                "containers",
                pod(&format!(r#","containers":[{}]"#, self.fill(",", |i| format!(r#"{{"name":"c{i}"}}"#))), running),
            ),
            ("ports", pod(&format!(r#","containers":[{{"name":"c","ports":[{}]}}]"#, self.fill(",", port)), running)),
            (
                "ports of a name",
                pod(
                    &format!(
                        r#","containers":[{{"name":"c","ports":[{}]}}]"#,
                        self.fill(",", |i| format!(r#"{{"name":"http","containerPort":{}}}"#, i % 65535 + 1))
                    ),
                    running,
                ),
            ),
            (
                "addresses",
                pod(
                    "",
                    &format!(
                        r#""phase":"Running","podIPs":[{}]"#,
                        self.fill(",", |i| format!(r#"{{"ip":"10.0.{}.{}"}}"#, i >> 8 & 255, i & 255))
                    ),
                ),
            ),
        ];
        for (name, text) in inputs {
            self.add_object(("v1", "Pod"), name, metadata, &text);
        }
        for annotation in [
            "cni.projectcalico.org/podIPs",
            "cni.projectcalico.org/ipAddrs",
            "cni.projectcalico.org/floatingIPs",
            "cni.projectcalico.org/allowedSourcePrefixes",
        ] {
            let nets = self.fill(",", |i| format!("\\\"10.0.{}.{}\\\"", i >> 8 & 255, i & 255));
            let metadata = format!(r#"{metadata},"annotations":{{"{annotation}":"[{nets}]"}}"#);
            self.add_object(("v1", "Pod"), annotation, &metadata, &pod("", running));
        }
    }

    fn workload_endpoints(&mut self) {
        let workload = ("projectcalico.org/v3", "WorkloadEndpoint");
        let metadata = r#""name":"n1-k8s-big-eth0","namespace":"dev""#;
        let spec = |text: String| {
            format!(
                r#""spec":{{"node":"n1","orchestrator":"k8s","pod":"big","endpoint":"eth0","interfaceName":"cali12345","ipNetworks":["10.0.0.99/32"],{text}}}"#
            )
        };
        let address = |i: usize| format!("\"10.0.{}.{}/32\"", i >> 8 & 255, i & 255);
        let inputs = [
            ("networks", spec(format!(r#""ipNetworks":[{}]"#, self.fill(",", address)))),
            ("profiles", spec(format!(r#""profiles":[{}]"#, self.fill(",", |i| format!("\"p{i}\""))))),
            (
                "ports",
                spec(format!(
                    r#""ports":[{}]"#,
                    self.fill(",", |i| format!(r#"{{"name":"p{i}","protocol":"TCP","port":{}}}"#, i % 65535 + 1))
                )),
            ),
            (
                "NAT",
                spec(format!(
                    r#""ipNATs":[{}]"#,
                    self.fill(",", |i| format!(
                        r#"{{"internalIP":"10.0.0.99","externalIP":"11.0.{}.{}"}}"#,
                        i >> 8 & 255,
                        i & 255
                    ))
                )),
            ),
            ("source prefixes", spec(format!(r#""allowSpoofedSourcePrefixes":[{}]"#, self.fill(",", address)))),
        ];
        for (name, text) in inputs {
            self.add_object(workload, name, metadata, &text);
        }
    }

    fn host_endpoints(&mut self) {
        let host = ("projectcalico.org/v3", "HostEndpoint");
        let inputs = [
            (
                "addresses",
                format!(r#""expectedIPs":[{}]"#, self.fill(",", |i| format!("\"10.0.{}.{}\"", i >> 8 & 255, i & 255))),
            ),
            ("profiles", format!(r#""profiles":[{}]"#, self.fill(",", |i| format!("\"p{i}\"")))),
            (
                "ports",
                format!(
                    r#""ports":[{}]"#,
                    self.fill(",", |i| format!(r#"{{"name":"p{i}","protocol":"TCP","port":{}}}"#, i % 65535 + 1))
                ),
            ),
        ];
        for (name, text) in inputs {
            self.add(host, name, &format!(r#""node":"n1","interfaceName":"eth0",{text}"#));
        }
    }

    fn services(&mut self) {
        let service = ("v1", "Service");
        let address = |i: usize| format!("\"10.96.{}.{}\"", i >> 8 & 255, i & 255);
        let inputs = [
            (
                "ports",
                format!(
                    r#""clusterIP":"10.96.0.9","ports":[{}]"#,
                    self.fill(",", |i| format!(r#"{{"name":"p{i}","port":{}}}"#, i % 65535 + 1))
                ),
            ),
            ("cluster addresses", format!(r#""clusterIPs":[{}]"#, self.fill(",", address))),
            ("external addresses", format!(r#""clusterIP":"10.96.0.9","externalIPs":[{}]"#, self.fill(",", address))),
            (
                "source ranges",
                format!(r#""clusterIP":"10.96.0.9","loadBalancerSourceRanges":[{}]"#, self.fill(",", address)),
            ),
            (
                "selector",
                format!(r#""clusterIP":"10.96.0.9","selector":{{{}}}"#, self.fill(",", |i| format!(r#""k{i}":"v""#))),
            ),
        ];
        for (name, text) in inputs {
            self.add(service, name, &text);
        }
        let slice = ("discovery.k8s.io/v1", "EndpointSlice");
        let metadata = r#""name":"big","namespace":"dev","labels":{"kubernetes.io/service-name":"web"}"#;
        let endpoints = |size: usize| {
            self.fill_part(size, ",", |i| {
                format!(r#"{{"addresses":["10.{}.{}.{}"]}}"#, i >> 16 & 255, i >> 8 & 255, i & 255)
            })
        };
        let addresses = |size: usize| {
            self.fill_part(size, ",", |i| format!("\"10.{}.{}.{}\"", i >> 16 & 255, i >> 8 & 255, i & 255))
        };
        let ports = |size: usize| {
            self.fill_part(size, ",", |i| format!(r#"{{"name":"p{i}","protocol":"TCP","port":{}}}"#, i % 65535 + 1))
        };
        let inputs = [
            ("endpoints", endpoints(1), ports(1 << 20)),
            ("addresses", format!(r#"{{"addresses":[{}]}}"#, addresses(1)), ports(1 << 20)),
            ("ports", endpoints(1 << 20), ports(1)),
            ("endpoints and ports", endpoints(2), ports(2)),
            ("few ports of many endpoints", endpoints(2), ports(self.size / 400)),
        ];
        for (name, endpoints, ports) in inputs {
            let rest = format!(r#""addressType":"IPv4","endpoints":[{endpoints}],"ports":[{ports}]"#);
            self.add_object(slice, name, metadata, &rest);
        }
    }

    /// Adds kinds whose labels endpoints inherit, and profiles.
    fn label_holders(&mut self) {
        let profile = ("projectcalico.org/v3", "Profile");
        let labels = self.fill(",", |i| format!(r#""k{i}":"v""#));
        self.add(profile, "labels to apply", &format!(r#""labelsToApply":{{{labels}}}"#));
        let rules = self.fill(",", |i| format!(r#"{{"action":"Allow","source":{{"selector":"a!='{i}'"}}}}"#));
        self.add(profile, "rules", &format!(r#""ingress":[{rules}]"#));
    }

    /// Adds fields that every kind has, or accepts.
    fn any_field_of_any_kind(&mut self) {
        for kind in KINDS {
            for field in ["labels", "annotations"] {
                for (name, value) in [("", "v".to_owned()), (" with one long value", "x".repeat(self.size))] {
                    let all = if name.is_empty() {
                        self.fill(",", |i| format!(r#""example.com/k{i}":"{value}""#))
                    } else {
                        format!(r#""example.com/k":"{value}""#)
                    };
                    let metadata = format!(r#""name":"big","namespace":"dev","{field}":{{{all}}}"#);
                    self.add_object(kind, &format!("{field}{name}"), &metadata, r#""spec":{}"#);
                }
            }
            let unknown = self.fill(",", |i| format!(r#""x{i}":1"#));
            self.add(kind, "unknown fields", &unknown);
            let repeated = self.fill(",", |_| r#""x":1"#.to_owned());
            self.add(kind, "repeated fields", &repeated);
            let deep = format!(r#""x":{}{}"#, "[".repeat(100), "]".repeat(100));
            self.add(kind, "lists in each other", &deep);
            let name = "x".repeat(self.size);
            self.add_object(kind, "name", &format!(r#""name":"{name}","namespace":"dev""#), r#""spec":{}"#);
        }
    }
}

const CALICO: &str = "projectcalico.org/v3";

/// All supported kinds.
const KINDS: [(&str, &str); 33] = [
    (CALICO, "NetworkPolicy"),
    (CALICO, "GlobalNetworkPolicy"),
    (CALICO, "StagedNetworkPolicy"),
    (CALICO, "StagedGlobalNetworkPolicy"),
    (CALICO, "StagedKubernetesNetworkPolicy"),
    (CALICO, "Tier"),
    (CALICO, "Profile"),
    (CALICO, "NetworkSet"),
    (CALICO, "GlobalNetworkSet"),
    (CALICO, "WorkloadEndpoint"),
    (CALICO, "HostEndpoint"),
    (CALICO, "IPPool"),
    (CALICO, "Node"),
    (CALICO, "FelixConfiguration"),
    (CALICO, "ClusterInformation"),
    (CALICO, "BGPConfiguration"),
    (CALICO, "BGPPeer"),
    (CALICO, "IPAMBlock"),
    (CALICO, "LiveMigration"),
    (CALICO, "BGPFilter"),
    (CALICO, "BlockAffinity"),
    (CALICO, "CalicoNodeStatus"),
    ("v1", "Namespace"),
    ("v1", "ServiceAccount"),
    ("v1", "Pod"),
    ("v1", "Service"),
    ("v1", "Node"),
    ("discovery.k8s.io/v1", "EndpointSlice"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"),
    ("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy"),
    ("policy.networking.k8s.io/v1alpha1", "BaselineAdminNetworkPolicy"),
    ("kubevirt.io/v1", "VirtualMachineInstanceMigration"),
];

/// Returns the `i`-th network within 10.0.0.0/7; all are distinct.
fn net(i: usize) -> String {
    format!("1{}.{}.{}.{}/32", i >> 24 & 1, i >> 16 & 255, i >> 8 & 255, i & 255)
}

/// Returns a TCP rule with these source fields.
fn tcp(side: &str) -> String {
    format!(r#"{{"action":"Allow","protocol":"TCP","source":{{{side}}}}}"#)
}
