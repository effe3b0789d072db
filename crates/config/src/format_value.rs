//! Values of parameters as text, in the form in which they can be written.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use regex::Regex;
use tortie_iptables::InterfaceName;
use tortie_model::{Cidr, DomainName};

use super::dns_server::DnsServer;
use super::server::GrpcServer;

/// A value as text that its parser accepts, or `none`.
pub trait FormatValue {
    /// The text.
    fn format_value(&self) -> String;
}

macro_rules! format_values {
    ($($type:ty: $value:ident => $text:expr;)*) => {
        $(impl $crate::format_value::FormatValue for $type {
            fn format_value(&self) -> String {
                let $value = self;
                $text
            }
        })*
    };
}
pub(crate) use format_values;

format_values! {
    bool: value => value.to_string();
    u8: value => value.to_string();
    u16: value => value.to_string();
    u32: value => value.to_string();
    String: value => if value.is_empty() { "none".into() } else { value.clone() };
    Duration: value => match (value.as_secs(), value.subsec_nanos()) {
        (0, nanos) if nanos > 0 && nanos % 1_000_000 == 0 => format!("{}ms", value.subsec_millis()),
        _ => format!("{}s", value.as_secs_f64()),
    };
    Ipv4Addr: value => value.to_string();
    Ipv6Addr: value => value.to_string();
    Cidr: value => value.to_string();
    Regex: value => format!("/{value}/");
    DnsServer: value => value.to_string();
    DomainName: value => value.to_string();
    GrpcServer: value => value.to_string();
    InterfaceName: value => value.to_string();
    (u16, u16): value => format!("{}:{}", value.0, value.1);
    BTreeMap<String, Duration>: value => {
        list(value.iter().map(|(name, timeout)| format!("{name}={}", timeout.format_value())))
    };
}

impl<T: FormatValue> FormatValue for Option<T> {
    fn format_value(&self) -> String {
        self.as_ref().map_or_else(|| "none".into(), FormatValue::format_value)
    }
}

impl<T: FormatValue> FormatValue for Vec<T> {
    fn format_value(&self) -> String {
        list(self.iter().map(FormatValue::format_value))
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "none".into() } else { items.join(",") }
}
