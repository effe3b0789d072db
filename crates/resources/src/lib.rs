//! Kubernetes and Calico resources in their user-visible form: decoding, validation with field
//! paths, conversion to the model.
//!
//! Read a manifest:
//!
//! ```
//! use tortie_model::Interner;
//! use tortie_resources::manifest::{self, Format, Options, Outcome};
//!
//! let text = "
//! apiVersion: networking.k8s.io/v1
//! kind: NetworkPolicy
//! metadata: {name: web, namespace: shop}
//! spec:
//!   podSelektor: {}
//! ";
//! let manifest = manifest::read(text, Format::Yaml, &Options::default(), &mut Interner::new());
//! let policy = &manifest.resources[0];
//! assert_eq!(policy.subject, "NetworkPolicy/shop/web");
//! assert!(matches!(policy.outcome, Outcome::Invalid { substitute: None }));
//! let first = &policy.problems[0];
//! assert_eq!(first.position.to_string(), "6:3");
//! assert_eq!(first.to_string(), "spec.podSelektor: is not a known field; is `podSelector` meant?");
//! ```
//!
//! Decode an object in its stored form:
//!
//! ```
//! use serde_json::json;
//! use tortie_model::{Key, Interner};
//! use tortie_resources::v1::{self, Decoded};
//!
//! let mut labels = Interner::new();
//! let value = json!({"order": 100, "defaultAction": "Pass"});
//! let decoded = v1::decode("/calico/v1/policy/tier/platform/metadata", Some(&value), &mut labels)?;
//! let Decoded::Update(update) = decoded else { panic!("tiers belong to the model") };
//! assert_eq!(update.key(), Key::Tier("platform".into()));
//! # Ok::<(), v1::DecodeError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

pub mod custom;
mod duration;
mod echo;
mod felix;
mod ipam_block;
mod k8s;
mod label_query;
pub mod manifest;
mod object;
mod passthrough;
pub mod path;
mod position;
mod problem;
mod scalar;
mod schema;
pub mod spelling;
pub mod stored;
mod switches;
pub mod syncer;
pub mod to_v3;
mod tree;
pub mod v1;
mod v3;
mod yaml;

pub use duration::{go_duration, go_duration_text};
pub use echo::echoes_cut;
pub use label_query::{LabelQuery, LabelQueryError};
pub use position::Position;
pub use problem::{FieldProblem, Lint, Severity};
pub use scalar::parse_dscp;
pub use tree::SyntaxError;
pub use v3::time_text;
pub use yaml::{from_yaml, to_yaml};
