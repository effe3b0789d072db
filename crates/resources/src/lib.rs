//! Kubernetes and Calico resources as people write them: decoding, validation with field paths, conversion to the model.
//!
//! Decode an object as the datastore has it:
//!
//! ```
//! use serde_json::json;
//! use tortie_model::{Key, LabelInterner};
//! use tortie_resources::v1::{self, Decoded};
//!
//! let mut labels = LabelInterner::new();
//! let value = json!({"order": 100, "defaultAction": "Pass"});
//! let decoded = v1::decode("/calico/v1/policy/tier/platform/metadata", Some(&value), &mut labels)?;
//! let Decoded::Update(update) = decoded else { panic!("tiers belong to the model") };
//! assert_eq!(update.key, Key::Tier("platform".into()));
//! # Ok::<(), v1::DecodeError>(())
//! ```
#![forbid(unsafe_code)]

mod k8s;
pub mod path;
mod problem;
mod scalar;
mod tree;
pub mod v1;
mod v3;

pub use problem::{Problem, Severity};
pub use tree::{Position, SyntaxError};
