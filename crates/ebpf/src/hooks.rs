//! Programs for netfilter hooks, which filter the packets of a whole node.
//!
//! Each hook and family has one program. It finds the endpoints of the packet's interfaces, reads
//! the headers, and evaluates the groups of the endpoints in the order of the chains of
//! `tortie-rules`. It accepts packets of known connections, as connection tracking marks them,
//! unless their interface has a workload prefix and no endpoint. If the names of interfaces suffice
//! for this and no untracked policy exists, it reads nothing else. All variable data comes from
//! maps ([`layout`](crate::layout)). Only the offsets in kernel structures and the [`HookSettings`]
//! are compiled into a program.
//!
//! Maps are filled before programs are attached. If a record is missing nevertheless, because
//! another process wrote the maps, policy is unknown, and the program drops all packets that it
//! could deny. These are all packets of interfaces with workload prefixes. For the host, they are
//! all packets except known connections, failsafe ports at INPUT and OUTPUT, and IPv6 neighbour
//! discovery.
//!
//! Such a program can accept a packet, which then continues to the rules of other programs, or drop
//! it. It can neither reject it with a message to the sender, nor exempt it from tracking, nor mark
//! it. So untracked policy is evaluated for each packet, although the packet is tracked. Hooks
//! behind PREROUTING that depend on a decision there evaluate it again, for the addresses that
//! connection tracking saw first.

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

/// Licence that the programs declare: the kernel lets a program read kernel structures only if it
/// considers the licence compatible with its own.
pub const LICENSE: &CStr = c"Dual MIT/GPL";

/// Way in which programs are attached to netfilter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "attaching code must handle both")]
pub enum Attachment {
    /// By netfilter links (Linux 6.4): programs accept packets with 1 and drop them with 0.
    Link,
    /// By a rule in an nftables chain, which drops the packets that the program matches (the match
    /// `bpf` of `xt_bpf`; for kernels without links). Programs are socket filters; they accept
    /// packets with 0 and drop them with 1.
    Rule,
}

impl Attachment {
    /// Both, the preferred one first.
    pub const ALL: [Self; 2] = [Self::Link, Self::Rule];
}

/// A netfilter hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "attaching code must handle every hook")]
pub enum Hook {
    /// Before DNAT: anti-spoofing, untracked and pre-DNAT policy.
    Prerouting,
    /// To the host itself.
    Input,
    /// Through the host.
    Forward,
    /// From the host itself.
    Output,
}

impl Hook {
    /// All hooks.
    pub const ALL: [Self; 4] = [Self::Prerouting, Self::Input, Self::Forward, Self::Output];

    /// Returns its number, `NF_INET_*`.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Returns its name, for names of programs and pins.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
        }
    }

    /// Returns two priorities to be used alternately, so that a program can be attached beside the
    /// one that it replaces. They are behind connection tracking and mangling, and before DNAT
    /// (-100) or filtering (0).
    #[must_use]
    pub const fn priorities(self) -> [i32; 2] {
        match self {
            Self::Prerouting => [-141, -140],
            Self::Input | Self::Forward | Self::Output => [-2, -1],
        }
    }
}

/// Settings that are compiled into programs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "callers must set every field")]
pub struct HookSettings {
    /// Name prefixes of workload interfaces. An interface with such a name and without an endpoint
    /// passes no packets.
    pub workload_prefixes: Vec<String>,
    /// Failsafe ports, and treatment of workload packets outside of policy.
    pub policy: Settings,
    /// Whether packets that connection tracking considers invalid are dropped at endpoints; false
    /// with `DisableConntrackInvalidCheck`.
    pub deny_invalid_conntrack: bool,
}

impl Default for HookSettings {
    /// Returns Felix's defaults, except failsafe ports, of which there are none.
    fn default() -> Self {
        Self { workload_prefixes: vec!["cali".to_owned()], policy: Settings::default(), deny_invalid_conntrack: true }
    }
}

/// Returns the program of a hook for one family, for maps of these sizes.
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

/// A program under construction.
struct Code<'a> {
    asm: Assembler,
    kernel: &'a KernelLayout,
    settings: &'a HookSettings,
    family: Family,
    /// Sizes of the maps.
    sizes: &'a MapSizes,
    /// Target for packets to accept.
    accept: Label,
    /// Target for packets to drop.
    drop: Label,
    /// Target for packets to drop without a decision; they are counted as denied by the unknown
    /// decision.
    unknown: Label,
    /// Target if a record is missing that identifies the endpoints of interfaces.
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
