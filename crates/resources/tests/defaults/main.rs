//! Calico's defaults of absent fields, field by field, and their treatment by each reader.

mod table;

use serde_json::{Value as Json, json};
use tortie_model::Interner;
use tortie_resources::manifest::{
    BlockSource, Contributions, Format, Kind, Options, Outcome, PolicyNames, Resource, UnknownFields, read, read_object,
};
use tortie_resources::stored::{ResourceKind, key_of, to_stored};
use tortie_resources::v1;

use table::{Ours, Row, rows};

/// Field with a default in the definitions of Calico's resources (`testdata/crd_defaults.jsonl`).
#[derive(serde::Deserialize)]
struct CrdDefault {
    crd: String,
    kind: String,
    field: String,
    default: Json,
}

/// Source of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// A manifest of a user.
    File,
    /// An object of the API server.
    Kubernetes,
    /// An object in etcd, written by `tortie apply` or calicoctl.
    Etcd,
    /// An object in etcd without further defaults: older releases have filled in fewer.
    EtcdStored,
}

const READERS: [Reader; 4] = [Reader::File, Reader::Kubernetes, Reader::Etcd, Reader::EtcdStored];

impl Reader {
    /// Returns the contributions of the object; `None` if the reader never meets its kind.
    fn contributions(self, object: &Json) -> Option<Contributions> {
        let text = |field: &str| object[field].as_str().expect("text");
        let kind = Kind::find(text("apiVersion"), text("kind")).expect("a known kind");
        let mut object = object.clone();
        let calico = ResourceKind::of(kind).is_some();
        match self {
            Self::Etcd | Self::EtcdStored if !calico => return None,
            Self::File if !calico && kind.is_passthrough() => return None,
            Self::Kubernetes if calico => object["apiVersion"] = "crd.projectcalico.org/v1".into(),
            Self::Etcd => {
                let key = key_of(&object, "").expect("a key");
                to_stored(&key, &mut object).expect("to be stored");
            }
            _ => {}
        }
        let labels = &mut Interner::new();
        let block_source = BlockSource::IpamBlocks;
        let resource: Resource = if self == Self::File {
            let options = Options { block_source, ..Options::default() };
            read(&object.to_string(), Format::Json, &options, labels).resources.remove(0)
        } else {
            let policy_names = if self == Self::Kubernetes { PolicyNames::Plain } else { PolicyNames::Prefixed };
            let options =
                Options { unknown_fields: UnknownFields::Ignore, policy_names, block_source, ..Options::default() };
            read_object(&object.to_string(), kind, &options, labels).expect("JSON")
        };
        match resource.outcome {
            Outcome::Valid(contributions) => Some(contributions),
            other => panic!("{self:?} {object}: {other:?} {:?}", resource.problems),
        }
    }
}

/// Returns the value at a pointer into the contribution, in the form that Felix reads.
fn at(contributions: &Contributions, pointer: &str) -> Json {
    let bytes = contributions.first().and_then(v1::encode).expect("a contribution");
    let json: Json = serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into());
    json.pointer(pointer).cloned().unwrap_or(Json::Null)
}

/// Returns the object with the field set.
fn with_field(object: &Json, field: &str, value: &Json) -> Json {
    let mut whole = object.clone();
    let mut place = &mut whole;
    for part in field.split('.') {
        let (name, index) = match part.strip_suffix("[]") {
            Some(name) => (name, Some(0)),
            None => (part, None),
        };
        let name = name.replace('~', ".");
        if place.is_null() {
            *place = json!({});
        }
        place = &mut place[name.as_str()];
        if let Some(index) = index {
            place = &mut place[index as usize];
        }
    }
    assert!(place.is_null(), "{field} is written already: {place}");
    *place = value.clone();
    whole
}

#[test]
fn every_reader_applies_the_defaults_of_the_table() {
    let mut wrong = Vec::new();
    for Row { kind, field, default, source, object, ours } in rows() {
        assert_eq!(object["kind"], kind);
        let written = with_field(&object, field, &default);
        for reader in READERS {
            let Some(absent) = reader.contributions(&object) else { continue };
            let present = reader.contributions(&written).expect("the same kind");
            let problem = match &ours {
                Ours::Same(pointer, expected) => {
                    let found = at(&absent, pointer);
                    (absent != present || found != *expected).then(|| format!("{pointer} is {found}, not {expected}"))
                }
                Ours::NotRead(why) => {
                    (absent != present || why.is_empty()).then(|| "the field makes a difference".to_owned())
                }
                Ours::Differs { at: pointer, reads, why } => {
                    let found = at(&absent, pointer);
                    let expected = reads.iter().find(|(of, _)| *of == reader).map(|(_, json)| json);
                    let expected = expected.expect("each reader is listed");
                    (found != *expected || why.is_empty()).then(|| format!("{pointer} is {found}, not {expected}"))
                }
            };
            wrong.extend(problem.map(|message| format!("{kind} {field} ({source}), {reader:?}: {message}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_default_of_the_definitions_is_in_the_table() {
    let lines = include_str!("../../testdata/crd_defaults.jsonl");
    let all: Vec<CrdDefault> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect();
    let rows = rows();
    let mut read = 0;
    for CrdDefault { crd, kind, field, default } in &all {
        // Kinds for syncers other than Felix's have no meaning for the model.
        let options = Options { block_source: BlockSource::IpamBlocks, ..Options::default() };
        if !Kind::find("projectcalico.org/v3", kind).is_some_and(|kind| options.takes(kind)) {
            continue;
        }
        read += 1;
        assert!(
            rows.iter().any(|row| row.kind == kind && row.field == field && row.default == *default),
            "{crd}: {kind} {field} has default {default}"
        );
    }
    assert!(read > 30, "{read}");
    // Conversely, each row with a definition as its source concerns one of its defaults.
    for row in rows.iter().filter(|row| row.source.starts_with("api/config/crd")) {
        assert!(all.iter().any(|crd| crd.kind == row.kind && crd.field == row.field), "{} {}", row.kind, row.field);
    }
}

/// Returns the rows of Kubernetes' kinds as the table of the page.
fn page() -> String {
    let mut page = String::from("| Kind | Field | Default | Here |\n|---|---|---|---|\n");
    let is_of_calico = |row: &Row| row.object["apiVersion"].as_str().is_some_and(|api| api.contains("calico"));
    for Row { kind, field, default, source, ours, .. } in rows().iter().filter(|row| !is_of_calico(row)) {
        let field = field.replace('~', ".");
        let default = match source.strip_prefix("mirror of ") {
            Some(mirror) => format!("that of `{}`", mirror.split(':').next().expect("a field")),
            None => {
                let condition = source.split_once("; if ").map(|(_, condition)| format!(" if {condition}"));
                format!("`{default}`{}", condition.unwrap_or_default())
            }
        };
        let here = match ours {
            Ours::Same(..) => "applied".to_owned(),
            Ours::NotRead(why) => format!("not read: {why}"),
            Ours::Differs { why, .. } => format!("applied {why}"),
        };
        page += &format!("| {kind} | `{field}` | {default} | {here} |\n");
    }
    page
}

#[test]
fn the_page_of_kinds_has_the_table_of_kubernetes() {
    let written = include_str!("../../../../docs/book/src/reference/kinds.md");
    let page = page();
    assert!(written.contains(&page), "docs/book/src/reference/kinds.md has to contain:\n{page}");
}
