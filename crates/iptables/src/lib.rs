//! iptables: chains of typed rules, their exact text and hashes, and a reconciler for kernel
//! tables.
//!
//! The crate runs no program and reads no clock; the caller passes the text to `iptables-restore`.
//! A rule is data: matches and an action, which can be evaluated as well as printed. The types
//! exclude input for which `iptables-restore` refuses a whole table (too long a name, a quote in a
//! comment, a mark without bits).
//!
//! ```
//! use tortie_iptables::{
//!     Action, Chain, ChainName, Features, MarkBits, Matches, PortList, Protocol, Renderer, Rule,
//! };
//!
//! let accepted = MarkBits::new(0x10000).expect("not zero");
//! let chain = Chain::new(
//!     ChainName::new("web-in")?,
//!     vec![
//!         Rule::when(
//!             Matches::new().protocol(Protocol::TCP).destination_ports(PortList::single(443)),
//!             Action::SetMark(accepted),
//!         )
//!         .comment("web traffic"),
//!         Rule::when(Matches::new().mark_set(accepted), Action::Return),
//!     ],
//! );
//!
//! let rendered = Renderer::new(Features::ALL).chain(&chain);
//! let mut line = String::new();
//! rendered.write_append(0, &mut line);
//! assert_eq!(
//!     line,
//!     "-A web-in -m comment --comment \"cali:XKAklZrr_trrvA7w\" \
//!      -m comment --comment \"web traffic\" \
//!      -p tcp -m multiport --destination-ports 443 --jump MARK --set-mark 0x10000/0x10000"
//! );
//! # Ok::<(), tortie_iptables::InvalidName>(())
//! ```
//!
//! A [`Reconciler`] keeps one table in its desired state. It plans commands, takes their results
//! and the time as arguments, and never changes rules of other programs. In this example, the fake
//! kernel of the feature `fake` replaces the programs; users of this crate can test with it as
//! well.
//!
//! ```
//! use std::time::Duration;
//! use tortie_iptables::fake::FakeKernel;
//! use tortie_iptables::{
//!     Action, Backend, Chain, ChainName, Family, Features, HookPosition, Plan, Reconciler, ReconcilerConfig, Rule,
//!     Table, kernel_chain,
//! };
//!
//! let config = ReconcilerConfig::new(Table::Filter, Family::V4, Backend::Nft);
//! let mut table = Reconciler::new(config, Features::ALL);
//! let ours = ChainName::new("cali-FORWARD")?;
//! table.update_chain(Chain::new(ours, vec![Rule::new(Action::Drop).comment("not yet")]));
//! table.set_hook(kernel_chain::FORWARD, HookPosition::Insert, vec![Rule::new(Action::Jump(ours))]);
//!
//! let mut kernel = FakeKernel::new(Backend::Nft);
//! kernel.run(Table::Filter, "-A FORWARD -j ACCEPT")?;
//! let mut now = Duration::ZERO;
//! // `FakeKernel::apply` contains this loop; with real programs, the caller runs the commands.
//! loop {
//!     match table.plan(now) {
//!         Plan::Save(command) => {
//!             let mut reader = table.save_reader();
//!             let result = kernel.save(&command).and_then(|output| {
//!                 reader.feed(&output);
//!                 Ok(reader.finish()?)
//!             });
//!             table.on_saved(now, result);
//!         }
//!         Plan::Restore(command) => {
//!             let result = kernel.restore(&command, &command.input);
//!             table.on_restored(now, result);
//!         }
//!         Plan::Sleep { until } => now = until,
//!         Plan::Done { problems: 0, .. } => break,
//!         Plan::Done { .. } => return Err(format!("refused: {:?}", table.problems()).into()),
//!         Plan::Failed(error) => return Err(error.into()),
//!     }
//! }
//! assert_eq!(
//!     kernel.rules(Table::Filter, "FORWARD").expect("a chain of the kernel"),
//!     ["-m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD", "-j ACCEPT"]
//! );
//!
//! // Another program removes our rules; the next plan restores them.
//! kernel.run(Table::Filter, "-D FORWARD 1")?;
//! table.invalidate();
//! let _ = kernel.apply(&mut table, &mut now);
//! assert_eq!(kernel.rules(Table::Filter, "FORWARD").expect("a chain of the kernel").len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable)]

mod backend;
mod command;
#[cfg(any(test, feature = "fake"))]
#[allow(clippy::indexing_slicing, reason = "an error in the fake should fail the test that uses it")]
pub mod fake;
mod features;
mod generation;
mod reconciler;
mod render;
mod save;
mod text;

pub use backend::{Backend, BackendProbe, MissingProgram, Programs, SweepFacts, backend_to_sweep, detect_backend};
pub use command::CommandError;
pub use features::{Features, Version, parse_override};
pub use generation::{CommitCounter, ForeignCommits};
pub use reconciler::{InsertMode, Plan, Purpose, Reconciler, ReconcilerConfig, TableError, TableStats};
pub use render::{RenderedChain, Renderer, rule_hashes};
pub use save::{HookedChain, HookedRule, RuleTag, SaveError, SaveReader, TableSnapshot, is_own_chain};
pub use text::{matches_text, write_rest};

pub use tortie_netfilter::{
    Action, AddressUnion, Chain, ChainName, ChainPrefix, ChainProblem, Cidr, CidrParseError, Command, Comment,
    Comments, ConntrackState, ConntrackStates, DispatchBy, Family, HASH_COMMENT_PREFIX, HookPosition, IcmpType,
    InPlace, InterfaceName, InterfacePattern, InvalidName, InvalidRate, IpSetName, Layout, LogPrefix, MapKey, MapKind,
    MapVerdict, MarkBits, MaskedMark, Match, Matches, NamedProtocol, Net, NflogPrefix, Origin, PacketRate, PortList,
    PortRange, Protocol, Rate, RateUnit, Refusal, RejectWith, Rule, RuleHash, Side, StandIn, Table, kernel_chain,
    limited_id,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
