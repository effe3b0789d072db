use super::*;
use crate::params::{Config, PARAMS};

#[test]
fn all_parameters_are_there_once_and_each_that_is_read_is_said_to_be_used() {
    assert_eq!(PARAMETERS.iter().filter(|one| !matches!(one.treatment, Own(_))).count(), 218);
    assert!(PARAMETERS.is_sorted_by(|a, b| a.name.to_ascii_lowercase() < b.name.to_ascii_lowercase()));
    let used: Vec<&str> =
        PARAMETERS.iter().filter(|one| matches!(one.treatment, Used(_) | Own(_))).map(|one| one.name).collect();
    let mut read: Vec<&str> = PARAMS.iter().map(|param| param.name).collect();
    read.sort_by_key(|name| name.to_ascii_lowercase());
    assert_eq!(used, read);
    let texts = PARAMETERS.iter().filter_map(|one| match one.treatment {
        Used(text) | Own(text) | Connection(text) | OfNodes(text) | NotUsed(text) => Some(text),
        Description => None,
    });
    assert!(texts.into_iter().all(|text| !text.is_empty() && !text.ends_with('.') && !text.contains('|')));
}

/// The defaults here are those of the original, in whatever words.
#[test]
fn defaults_are_the_originals() {
    for param in PARAMS {
        let FelixParameter { default, .. } = find(param.name).unwrap();
        let mut config = Config::default();
        let parsed = if default.is_empty() { Ok(()) } else { (param.set)(&mut config, default) };
        assert_eq!(parsed, Ok(()), "{}: `{default}`", param.name);
        let defaults = Config::default();
        assert_eq!(format!("{config:?}"), format!("{defaults:?}"), "{}: `{default}`", param.name);
    }
}

#[test]
fn a_value_that_says_the_default_is_none() {
    for (name, value, differs) in [
        ("BPFEnabled", "0", false),
        ("BPFEnabled", "yes", true),
        ("BPFEnabled", "maybe", true),
        ("usagereportingintervalsecs", "86400.0", false),
        ("UsageReportingIntervalSecs", "1", true),
        ("VXLANTunnelMACAddr", "none", false),
        ("BPFLogLevel", "OFF", false),
        ("BPFLogLevel", "debug", true),
        ("GoMaxProcs", "-1", false),
        ("LogFilePath", "none", true),
    ] {
        assert_eq!(find(name).unwrap().differs_from_default(value), differs, "{name}={value}");
    }
}

#[test]
fn the_documentation_has_this_table() {
    let documented = include_str!("../../../../docs/parameters.md");
    assert!(documented == markdown(), "docs/parameters.md is out of date: run `cargo xtask parameters`");
}
