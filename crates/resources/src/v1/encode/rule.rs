//! Rules.

use tortie_model::{Cidr, EntityMatch, Family, HttpMatch, HttpPath, PortSpec, Rule};
use tortie_selector::Selector;

use super::json::{Object, number, object, shown, text};
use super::{annotations, protocol};
use crate::v1::policy::{DESTINATION, SOURCE, Side};

pub(super) fn write(out: &mut String, rule: &Rule) {
    object(out, |out| {
        out.text_if("action", rule.action.as_str());
        out.bare_if("ip_version", rule.ip_version.map(Family::number));
        for (name, given) in [("protocol", rule.protocol), ("!protocol", rule.extras.not_protocol)] {
            if let Some(given) = given {
                out.field(name, |out| protocol(out, given));
            }
        }
        out.bare_if("icmp_type", rule.extras.icmp_type);
        out.bare_if("icmp_code", rule.extras.icmp_code);
        out.bare_if("!icmp_type", rule.extras.not_icmp_type);
        out.bare_if("!icmp_code", rule.extras.not_icmp_code);
        side(out, &SOURCE, &rule.source);
        side(out, &DESTINATION, &rule.destination);
        if let Some(http) = &rule.extras.http {
            out.object("http", |out| http_match(out, http));
        }
        if !rule.extras.annotations.is_empty() {
            out.object("metadata", |out| annotations(out, &rule.extras.annotations));
        }
    });
}

fn side(out: &mut Object<'_>, names: &Side, side: &EntityMatch) {
    nets(out, names.nets[0], &side.nets);
    nets(out, names.not_nets[0], &side.extras.not_nets);
    out.text_if(names.selector, text_of(&side.selector));
    out.text_if(names.not_selector, text_of(&side.extras.not_selector));
    out.list_if(names.ports, &side.ports, port);
    out.list_if(names.not_ports, &side.extras.not_ports, port);
    if let Some(service) = &side.extras.service {
        let [namespace, name] = names.service;
        out.text_if(namespace, &service.namespace);
        out.text_if(name, &service.name);
    }
    if let Some(name) = names.domains {
        out.list_if(name, &side.extras.domains, shown);
    }
    let original = &side.extras.original;
    let [selector, namespace_selector, not_selector, accounts, account_selector] = names.original;
    out.text_if(selector, text_of(&original.selector));
    out.text_if(namespace_selector, text_of(&original.namespace_selector));
    out.text_if(not_selector, text_of(&original.not_selector));
    out.list_if(accounts, &original.service_accounts.names, |out, name| text(out, name));
    out.text_if(account_selector, text_of(&original.service_accounts.selector));
}

fn text_of(selector: &Option<Selector>) -> &str {
    selector.as_ref().map_or("", Selector::text)
}

fn nets(out: &mut Object<'_>, name: &str, nets: &[Cidr]) {
    out.list_if(name, nets, shown);
}

fn port(out: &mut String, port: &PortSpec) {
    match port {
        PortSpec::Range { first, last } if first == last => number(out, (*first).into()),
        PortSpec::Range { .. } => shown(out, port),
        PortSpec::Named(name) => text(out, name),
    }
}

fn http_match(out: &mut Object<'_>, http: &HttpMatch) {
    out.list_if("methods", &http.methods, |out, method| text(out, method));
    out.list_if("paths", &http.paths, |out, path| {
        object(out, |object| match path {
            HttpPath::Exact(path) => object.text("exact", path),
            HttpPath::Prefix(path) => object.text("prefix", path),
        });
    });
}
