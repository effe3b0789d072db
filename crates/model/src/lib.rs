//! The vocabulary of the Tortie engine.
//!
//! It contains three things only:
//!
//! - [`Update`]: an object of a datastore. It has an identity and, if the object exists, a value,
//!   which is [`Valid`] where it needs checks beyond its type.
//! - [`SyncStatus`]: the progress of reading the datastore.
//! - [`desired::DesiredUpdate`]: a change of the resulting desired state of one node. It is the
//!   contract between the calculation and any dataplane.
//!
//! The crate has no dependency on Kubernetes types, files or the kernel. Values are parsed and
//! small: labels are one shared blob with an interned [`Shape`], addresses are packed into 17
//! bytes.
//!
//! ```
//! use tortie_model::{Key, Labels, NetworkSet, NetworkSetName, Update, Valid};
//!
//! let set = NetworkSet {
//!     nets: ["192.0.2.0/24".parse().unwrap()].into(),
//!     labels: Labels::from_pairs([("role", "partner")]).unwrap(),
//!     ..NetworkSet::default()
//! };
//! let name = NetworkSetName::new("partners");
//! let update = Update::NetworkSet(name.clone(), Some(Valid::new(set)?));
//! assert_eq!(update.key(), Key::NetworkSet(name));
//! # Ok::<(), tortie_model::Invalid>(())
//! ```
//!
//! # JSON
//!
//! With the feature `serde`, updates of both kinds and all their values can be written and read
//! with serde, as JSON or in another format that describes itself:
//!
//! ```
//! # #[cfg(feature = "serde")]
//! # fn main() -> Result<(), serde_json::Error> {
//! use tortie_model::{Order, Tier, Update};
//!
//! let tier = Tier { order: Order::new(20.0), default_action: None };
//! let update = Update::Tier("security".into(), Some(tier));
//! let text = serde_json::to_string(&update)?;
//! assert_eq!(text, r#"{"tier":["security",{"order":20,"default_action":null}]}"#);
//! assert_eq!(serde_json::from_str::<Update>(&text)?, update);
//! assert_eq!(update.to_string(), "tier security");
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "serde"))]
//! # fn main() {}
//! ```
//!
//! Names, addresses, networks and selectors are serialized as their text, labels as a map, and
//! variants are named in `snake_case`. A field may be missing if its type has a default value. An
//! unknown field is an error, because a misspelt one must not leave a rule that matches more.
//! [`Valid`] values are checked as by [`Valid::stored`], and kinds of policies are named as in
//! datastore paths. [`Interner::share`] deduplicates deserialized values.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod bgp_peer;
pub mod desired;
mod endpoint;
mod extras;
mod ids;
mod interner;
mod ipam;
mod key;
mod labels;
mod list;
mod live_migration;
mod node_labels;
mod policy;
mod port;
mod reserved;
mod rule;
#[cfg(feature = "serde")]
mod serde_forms;
mod short_list;
mod syncer_object;
mod update;
mod valid;
mod value;

pub use tortie_net::{
    Budget, Cause, Cidr, CidrIter, CidrList, CidrParseError, DomainName, DomainParseError, DomainPattern, Family,
    InterfaceName, InvalidName, IpSetId, Ledger, Mac, MacParseError, NamedProtocol, Protocol, parse_address,
    with_causes,
};

pub use bgp_peer::{BgpPeer, PeerNodes};
pub use endpoint::{
    AddressSource, AdminState, EndpointPort, HostEndpoint, HostInterface, NatMapping, NetworkSet, QosControls,
    WorkloadEndpoint, WorkloadExtras,
};
pub use extras::{Extras, Seldom};
pub use ids::{
    ConfigName, HostEndpointName, Hostname, NamespacedName, NetworkSetName, PolicyId, PolicyKind, ProfileName,
    TierName, WorkloadEndpointId, WorkloadEndpointKey,
};
pub use interner::{Interner, SelectorCache};
pub use ipam::{IpamBlock, NodeAllocation};
pub use key::{HostConfigKey, HostEndpointKey};
pub use labels::{LabelValues, Labels, LabelsError, PrefixStripper, Shape};
pub use list::List;
pub use live_migration::{LiveMigration, MigrationParty};
pub use node_labels::{NODE_LABEL, NODE_LABEL_PREFIX, selects_nodes};
pub use policy::{
    DenyAction, Direction, Order, Policy, PolicyTypes, ProfileRules, StagedAction, Tier, TierDefaultAction,
};
pub use port::PortSpec;
pub use reserved::reserved_range;
pub use rule::{
    EntityExtras, EntityMatch, HttpMatch, HttpPath, OriginalMatch, Rule, RuleAction, RuleExtras, ServiceAccountMatch,
};
pub use short_list::ShortList;
pub use syncer_object::SyncerObject;
pub use update::{Key, SyncStatus, Update};
pub use valid::{FieldPath, Invalid, Reason, RuleCount, Valid, Validate};
pub use value::{
    BgpConfiguration, EncapMode, EndpointSlice, EndpointSlicePort, IpPool, Node, NodeAddress, NodeAddressKind, NodeBgp,
    NodeTunnels, Profile, ScopedConfig, Service, ServicePort, TrafficPolicy, Wireguard,
};
