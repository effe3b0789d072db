//! Programs for netfilter hooks, which decide about the packets of a whole node.
//!
//! There is one for each hook and family. It finds out whose the interfaces are, reads the headers, and asks the groups of the
//! endpoints in the order in which the chains of `tortie-rules` do. What belongs to a known connection is accepted, by what
//! connection tracking says of the packet, unless its interface looks like a workload's and is nobody's; where that can be told by the
//! names of interfaces, and nothing is untracked, nothing else is read for it. All that changes is read from maps
//! ([`layout`](crate::layout)); what is written into a program is where the kernel has what is read, and [`HookSettings`].
//!
//! Maps are filled before programs are attached. If a record is missing all the same (somebody wrote the maps), nothing is known of
//! policy, and what policy could deny is dropped: everything of interfaces that look like workloads', and of the host all but known
//! connections, failsafe ports at INPUT and OUTPUT, and the messages by which IPv6 neighbours find each other.
//!
//! Such a program can accept a packet, which then goes on to other programs' rules, or drop it. It can neither tell the sender, nor
//! keep a packet from being tracked, nor mark it. So untracked policy is asked about each packet, tracked as it is; and what the hooks behind
//! PREROUTING must know of what was decided there, they ask again, about the addresses that connection tracking saw first.

mod access;
mod conntrack;
mod failsafe;
mod frame;
mod headers;
mod interfaces;
mod kernel;
mod order;
mod policy;

use std::ffi::CStr;

use tortie_classes::evaluate::Settings;
use tortie_model::Family;

use crate::assembler::{AssembleError, Assembler, Program};
use crate::instruction::{Label, Register};
use crate::node::MapSizes;

pub use kernel::{KernelLayout, Missing};

/// What the programs say of their licence: the kernel lets none read its structures that it does not take for compatible with its
/// own.
pub const LICENSE: &CStr = c"Dual MIT/GPL";

/// How the kernel has packets meet programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "whoever attaches programs must know how")]
pub enum Attachment {
    /// By links of netfilter (Linux 6.4): programs accept packets with 1 and drop them with 0.
    Link,
    /// As what a rule in a chain of nftables asks, which drops what it holds for (the match `bpf` of `xt_bpf`; for kernels that have
    /// no links): programs are socket filters, accept packets with 0 and drop them with 1.
    Rule,
}

impl Attachment {
    /// Both, the better one first.
    pub const ALL: [Self; 2] = [Self::Link, Self::Rule];
}

/// A place in netfilter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "whoever attaches programs must attach all")]
pub enum Hook {
    /// Before the destination is translated: anti-spoofing, untracked and pre-DNAT policy.
    Prerouting,
    /// To the host itself.
    Input,
    /// Through the host.
    Forward,
    /// From the host itself.
    Output,
}

impl Hook {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Prerouting, Self::Input, Self::Forward, Self::Output];

    /// Its number, `NF_INET_*`.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// A word for it, in names of programs and pins.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
        }
    }

    /// The two priorities that may be taken by turns, so that a program can be attached beside the one that it replaces: behind
    /// connection tracking and mangling, and before destinations are translated (-100) or packets filtered (0).
    #[must_use]
    pub const fn priorities(self) -> [i32; 2] {
        match self {
            Self::Prerouting => [-141, -140],
            Self::Input | Self::Forward | Self::Output => [-2, -1],
        }
    }
}

/// What is written into programs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "whoever fills it in must think of all")]
pub struct HookSettings {
    /// Beginnings of the names of workloads' interfaces. Those that have such a name and are nobody's get nothing through.
    pub workload_prefixes: Vec<String>,
    /// Failsafe ports, and what becomes of packets of workloads beside policy.
    pub policy: Settings,
    /// Whether what connection tracking finds invalid is dropped at endpoints, not `DisableConntrackInvalidCheck`.
    pub deny_invalid_conntrack: bool,
}

impl Default for HookSettings {
    /// Felix's defaults, but for failsafe ports, of which there are none.
    fn default() -> Self {
        Self { workload_prefixes: vec!["cali".to_owned()], policy: Settings::default(), deny_invalid_conntrack: true }
    }
}

/// The program of a hook for one family, for maps of these sizes.
///
/// ```
/// use tortie_ebpf::hooks::{Hook, HookSettings, KernelLayout, program};
/// use tortie_ebpf::MapSizes;
/// use tortie_model::Family;
///
/// // In truth what `KernelLayout::read` finds in `Btf`, which the kernel has for each of its own builds.
/// let kernel = KernelLayout::placeholder();
/// let program = program(Hook::Forward, Family::V4, &kernel, &HookSettings::default(), &MapSizes::default())?;
/// assert!(program.len() < 4096, "{} instructions", program.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`AssembleError`] if there are so many failsafe ports that jumps over them are too long.
pub fn program(
    hook: Hook,
    family: Family,
    kernel: &KernelLayout,
    settings: &HookSettings,
    sizes: &MapSizes,
) -> Result<Program, AssembleError> {
    let mut asm = Assembler::new();
    let (accept, drop, unknown, closed) = (asm.label(), asm.label(), asm.label(), asm.label());
    let mut code = Code { asm, kernel, settings, family, sizes, accept, drop, unknown, closed };
    code.begin();
    code.accept_known(hook);
    match hook {
        Hook::Prerouting => code.prerouting(),
        Hook::Input => code.input(),
        Hook::Forward => code.forward(),
        Hook::Output => code.output(),
    }
    code.without_records(hook);
    code.end();
    code.asm.assemble()
}

/// A program as it is written.
struct Code<'a> {
    asm: Assembler,
    kernel: &'a KernelLayout,
    settings: &'a HookSettings,
    family: Family,
    /// How many values maps have.
    sizes: &'a MapSizes,
    /// Where packets are accepted.
    accept: Label,
    /// Where they are dropped.
    drop: Label,
    /// Where those are dropped that nobody has decided about.
    unknown: Label,
    /// Where it goes on if a record is missing from which the endpoints of interfaces are known.
    closed: Label,
}

impl Code<'_> {
    fn is_v6(&self) -> bool {
        self.family == Family::V6
    }

    /// Ends the program.
    fn end(&mut self) {
        let (accept, drop, unknown) = (self.accept, self.drop, self.unknown);
        let [accepted, dropped] = match self.kernel.attachment() {
            // NF_ACCEPT and NF_DROP.
            Attachment::Link => [1, 0],
            Attachment::Rule => [0, 1],
        };
        self.asm.place(accept).set(Register::R0, accepted).exit();
        self.asm.place(unknown).set(Register::R9, 0);
        self.count();
        self.asm.place(drop).set(Register::R0, dropped).exit();
    }
}
