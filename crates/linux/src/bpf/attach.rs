//! Attachment of programs to netfilter hooks: by links, or on kernels without these by nftables
//! rules that run the programs.

use std::io;
use std::path::Path;
use std::time::Duration;

use tortie_bpf::{NetfilterLink, NetfilterPosition, Program};
use tortie_ebpf::hooks::{Attachment, LICENSE};
use tortie_model::Family;

use super::edge::{AttachPoint, PrioritySlot};
use crate::error_context::with_context;
use crate::netlink::bpf_rule::{self, RulePlace, RuleProgram};
use crate::netlink::{NetlinkError, Nftables};

/// r0 = 0; exit
const NOTHING: [u8; 16] = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];

/// Attachment of a program.
#[derive(Debug)]
pub enum LinuxLink {
    /// By a link, for as long as the link is open or pinned.
    Link(NetfilterLink),
    /// By a rule, which stays after the process ends. There is no link to pin, so the program is
    /// pinned.
    Rule(Program),
}

impl LinuxLink {
    pub(super) fn pin(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::Link(link) => link.pin(path),
            Self::Rule(program) => program.pin(path),
        }
    }

    /// Returns the id of the program.
    pub(super) fn program(&self) -> io::Result<u32> {
        match self {
            Self::Link(link) => link.info().map(|info| info.program),
            Self::Rule(program) => program.info().map(|info| info.id),
        }
    }
}

/// Attaches programs by links or by rules.
#[derive(Debug)]
pub(super) struct Attacher {
    wanted: Option<Attachment>,
    timeout: Duration,
    /// Result of the probe of the kernel.
    found: Option<Result<Attachment, NoHooks>>,
}

/// The kernel supports none of the wanted ways of attachment.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the kernel ({release}) takes no eBPF programs at netfilter hooks: {}", lacking.join("; "))]
struct NoHooks {
    release: String,
    /// Reason for each way.
    lacking: Vec<String>,
}

impl Attacher {
    /// Uses the wanted way, or the best one that the kernel supports.
    pub(super) const fn new(wanted: Option<Attachment>, timeout: Duration) -> Self {
        Self { wanted, timeout, found: None }
    }

    /// Returns the reason why no way is supported.
    pub(super) fn lacking(&mut self) -> io::Result<Option<String>> {
        self.find().map(|found| found.as_ref().err().map(ToString::to_string))
    }

    /// Returns the way in use.
    pub(super) fn attachment(&mut self) -> io::Result<Attachment> {
        self.find()?.as_ref().copied().map_err(|why| io::Error::other(why.clone()))
    }

    fn find(&mut self) -> io::Result<&Result<Attachment, NoHooks>> {
        let found = match self.found.take() {
            Some(found) => found,
            None => self.probe()?,
        };
        Ok(self.found.insert(found))
    }

    fn probe(&self) -> io::Result<Result<Attachment, NoHooks>> {
        let mut lacking = Vec::new();
        for attachment in Attachment::ALL {
            if self.wanted.is_some_and(|wanted| wanted != attachment) {
                continue;
            }
            let why = match attachment {
                Attachment::Link => lacks_links()?,
                Attachment::Rule => self.lacks_rules()?,
            };
            match why {
                None => {
                    tracing::info!(attachment = in_words(attachment), "eBPF programs are attached");
                    return Ok(Ok(attachment));
                }
                Some(why) => lacking.push(why),
            }
        }
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        Ok(Err(NoHooks { release, lacking }))
    }

    fn lacks_rules(&self) -> io::Result<Option<String>> {
        let program = Program::load_socket_filter("tortie_probe", LICENSE, &NOTHING).map_err(forbidden)?;
        let lacking = bpf_rule::lacking(self.timeout, rule_program(&program)?).map_err(failed)?;
        Ok(lacking.map(|why| {
            format!(
                "no rules of nftables that ask programs, for which it must be built with CONFIG_NFT_COMPAT and \
                 CONFIG_NETFILTER_XT_MATCH_BPF ({why})"
            )
        }))
    }

    pub(super) fn load(&mut self, name: &str, instructions: &[u8]) -> io::Result<Program> {
        match self.attachment()? {
            Attachment::Link => Program::load_netfilter(name, LICENSE, instructions),
            Attachment::Rule => Program::load_socket_filter(name, LICENSE, instructions),
        }
    }

    /// Attaches a program of a generation. A program that is already attached in the same turn is
    /// reported as busy.
    pub(super) fn attach(&mut self, place: AttachPoint, generation: u64, program: &Program) -> io::Result<LinuxLink> {
        let [even, odd] = place.hook.priorities();
        let priority = match PrioritySlot::of(generation) {
            PrioritySlot::Even => even,
            PrioritySlot::Odd => odd,
        };
        let hook = place.hook.number();
        match self.attachment()? {
            Attachment::Link => {
                let family = match place.family {
                    Family::V4 => 2,
                    Family::V6 => 10,
                };
                attach_link(program, NetfilterPosition { family, hook, priority, defragment: true })
            }
            Attachment::Rule => {
                let at = RulePlace { family: place.family, hook, chain: place.hook.name(), priority };
                let is_new = bpf_rule::attach(self.timeout, generation, &at, rule_program(program)?).map_err(failed)?;
                if is_new { program.try_clone().map(LinuxLink::Rule) } else { Err(io::ErrorKind::ResourceBusy.into()) }
            }
        }
    }

    /// Opens a pinned attachment.
    pub(super) fn open(&mut self, path: &Path) -> io::Result<LinuxLink> {
        match self.attachment()? {
            Attachment::Link => NetfilterLink::open(path).map(LinuxLink::Link),
            Attachment::Rule => Program::open(path).map(LinuxLink::Rule),
        }
    }

    /// Returns the generation of the nftables ruleset, which any change increments, if programs are
    /// attached by rules.
    pub(super) fn changes(&mut self) -> io::Result<Option<u32>> {
        match self.attachment()? {
            // Only the holder of the link can detach it.
            Attachment::Link => Ok(None),
            Attachment::Rule => {
                let generation = Nftables::open(self.timeout).and_then(|mut nftables| nftables.generation());
                generation.map(Some).map_err(failed)
            }
        }
    }
}

/// Returns the generations whose programs are attached by rules.
pub(super) fn generations(timeout: Duration) -> io::Result<Vec<u64>> {
    bpf_rule::tables(timeout).map_err(failed)
}

/// Removes the rules of a generation, if it has any.
pub(super) fn detach(generation: u64, timeout: Duration) -> io::Result<()> {
    bpf_rule::detach(timeout, generation).map_err(failed)
}

/// Detaches a pinned object if it is a link.
pub(super) fn detach_pinned(path: &Path) -> io::Result<()> {
    match NetfilterLink::open(path) {
        Ok(link) => link.detach(),
        // An object that is no link attaches nothing. A link that cannot be opened is detached when
        // its pin is removed.
        Err(_) => Ok(()),
    }
}

fn attach_link(program: &Program, position: NetfilterPosition) -> io::Result<LinuxLink> {
    let link = match NetfilterLink::attach(program, position) {
        // Linux before 6.6 does not support this flag. Connection tracking defragments packets
        // anyway.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            NetfilterLink::attach(program, NetfilterPosition { defragment: false, ..position })
        }
        result => result,
    };
    link.map(LinuxLink::Link)
}

fn lacks_links() -> io::Result<Option<String>> {
    match Program::load_netfilter("tortie_probe", LICENSE, &NOTHING) {
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(Some(
            "no links of them, for which it must be Linux 6.4 or later, built with CONFIG_NETFILTER_BPF_LINK"
                .to_owned(),
        )),
        Err(error) => Err(forbidden(error)),
    }
}

/// Adds the required capabilities to an error about missing permission.
fn forbidden(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    with_context("loading programs needs CAP_BPF, CAP_PERFMON and the system call bpf")(error)
}

fn in_words(attachment: Attachment) -> &'static str {
    match attachment {
        Attachment::Link => "links",
        Attachment::Rule => "rules of nftables",
    }
}

fn rule_program(program: &Program) -> io::Result<RuleProgram> {
    Ok(RuleProgram { descriptor: program.descriptor(), id: program.info()?.id })
}

fn failed(error: NetlinkError) -> io::Error {
    io::Error::other(error)
}
