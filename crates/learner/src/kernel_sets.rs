//! The kernel's sets of learned addresses.

use std::time::Duration;

use tortie_dataplane::{DomainSetPart, Shard, domain_set_name};
use tortie_iptables::InvalidName;
use tortie_linux::bpf::{EdgeError, LearnedAddresses, LearnedMember, Learner};
use tortie_linux::netlink::{IpSetMembers, MemberChange, NetlinkError, NftMembers, SetMember};
use tortie_model::{Family, IpSetId, with_causes};
use tortie_nftables::{SetName, TableId};

use super::writes::{Batch, KernelMember};

/// Kind of the kernel's sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsSets {
    /// IP sets, for iptables.
    IpSets,
    /// Sets of Calico's nftables tables.
    Nftables,
    /// Maps beside eBPF programs.
    Programs(LearnedAddresses),
}

/// Members cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum SetsError {
    /// The kernel refuses, or does not answer.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The maps of programs cannot be written.
    #[error(transparent)]
    Programs(#[from] EdgeError),
}

/// Kind of sets with names.
#[derive(Clone, Copy, Debug)]
enum NamedSets {
    IpSets,
    Nftables,
}

impl NamedSets {
    /// Returns the kernel's name of a set.
    fn name(self, family: Family, set: &IpSetId, part: DomainSetPart) -> Result<String, InvalidName> {
        let name = domain_set_name(family, set, part)?;
        Ok(match self {
            Self::IpSets => name.to_string(),
            Self::Nftables => SetName::new(name).to_string(),
        })
    }
}

/// Reads and writes members; a fake one in tests.
pub(super) trait Sets: Send {
    /// Returns the members of the sets; none of those that are missing.
    fn list(&mut self, sets: &[(IpSetId, DomainSetPart)]) -> Result<Vec<KernelMember>, SetsError>;

    /// Writes changes, and returns the positions of those that the kernel refuses, with reasons.
    fn write(&mut self, batch: &Batch) -> Result<Vec<(usize, String)>, SetsError>;
}

/// The sets of the network namespace of the thread that uses this.
#[derive(Debug)]
pub(super) struct KernelSets {
    kind: Kind,
    families: Vec<Family>,
    timeout: Duration,
    socket: Option<Socket>,
}

#[derive(Clone, Debug)]
enum Kind {
    Named(NamedSets),
    Programs(LearnedAddresses),
}

#[derive(Debug)]
enum Socket {
    IpSets(IpSetMembers),
    Nftables(NftMembers),
}

impl Socket {
    fn open(kind: NamedSets, timeout: Duration) -> Result<Self, NetlinkError> {
        match kind {
            NamedSets::IpSets => IpSetMembers::open(timeout).map(Self::IpSets),
            NamedSets::Nftables => NftMembers::open(TableId::calico(Family::V4).name, timeout).map(Self::Nftables),
        }
    }

    fn list(&mut self, family: Family, name: &str) -> Result<Option<Vec<SetMember>>, NetlinkError> {
        match self {
            Self::IpSets(sets) => sets.list(name),
            Self::Nftables(sets) => sets.list(family, name),
        }
    }

    fn write(&mut self, changes: &[MemberChange<'_>]) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        match self {
            Self::IpSets(sets) => sets.write(changes),
            Self::Nftables(sets) => sets.write(changes),
        }
    }
}

impl KernelSets {
    pub(super) fn new(kind: DnsSets, families: Vec<Family>, timeout: Duration) -> Self {
        let kind = match kind {
            DnsSets::IpSets => Kind::Named(NamedSets::IpSets),
            DnsSets::Nftables => Kind::Named(NamedSets::Nftables),
            DnsSets::Programs(addresses) => Kind::Programs(addresses),
        };
        Self { kind, families, timeout, socket: None }
    }

    fn with<T>(
        &mut self,
        kind: NamedSets,
        call: impl FnOnce(&mut Socket) -> Result<T, NetlinkError>,
    ) -> Result<T, NetlinkError> {
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => Socket::open(kind, self.timeout)?,
        };
        let result = call(&mut socket)?;
        // Not kept after a failure, since an answer may still arrive.
        self.socket = Some(socket);
        Ok(result)
    }
}

impl KernelSets {
    fn list_named(
        &mut self,
        kind: NamedSets,
        sets: &[(IpSetId, DomainSetPart)],
    ) -> Result<Vec<KernelMember>, NetlinkError> {
        let families = self.families.clone();
        self.with(kind, |socket| {
            let mut members = Vec::new();
            for (set, part) in sets {
                for family in &families {
                    // A set whose name is invalid is not made.
                    let Ok(name) = kind.name(*family, set, *part) else { continue };
                    let listed = socket.list(*family, &name)?.unwrap_or_default();
                    let member = |SetMember { interface, address }| {
                        let (set, part) = (set.clone(), *part);
                        KernelMember { set, part, interface, owner: 0, address }
                    };
                    members.extend(listed.into_iter().map(member));
                }
            }
            Ok(members)
        })
    }

    fn write_named(&mut self, kind: NamedSets, batch: &Batch) -> Result<Vec<(usize, String)>, NetlinkError> {
        let mut refused = Vec::new();
        let mut named = Vec::with_capacity(batch.changes.len());
        for (at, (member, is_added)) in batch.changes.iter().enumerate() {
            let family = Family::of(member.address);
            if !self.families.contains(&family) {
                // No rule opens connections in this family.
                continue;
            }
            match kind.name(family, &member.set, member.part) {
                Ok(name) => named.push(Named { name, is_added: *is_added, at, member }),
                Err(error) => refused.push((at, error.to_string())),
            }
        }
        // Changes of the same set and kind are one message; the name tells the family.
        named.sort_unstable_by(|a, b| (&a.name, a.is_added, a.at).cmp(&(&b.name, b.is_added, b.at)));
        let changes: Vec<MemberChange<'_>> = named.iter().map(Named::change).collect();
        let outcomes = self.with(kind, |socket| socket.write(&changes))?;
        for (named, outcome) in named.iter().zip(outcomes) {
            // A set that is gone has no member.
            if let Err(error) = outcome
                && (named.is_added || !error.is_not_found())
            {
                refused.push((named.at, with_causes(&error)));
            }
        }
        refused.sort_unstable();
        Ok(refused)
    }
}

impl Sets for KernelSets {
    fn list(&mut self, sets: &[(IpSetId, DomainSetPart)]) -> Result<Vec<KernelMember>, SetsError> {
        match self.kind.clone() {
            Kind::Named(kind) => Ok(self.list_named(kind, sets)?),
            Kind::Programs(addresses) => {
                let members = addresses.members().into_iter().map(of_programs);
                Ok(members.filter(|member| sets.iter().any(|(set, _)| *set == member.set)).collect())
            }
        }
    }

    fn write(&mut self, batch: &Batch) -> Result<Vec<(usize, String)>, SetsError> {
        let addresses = match self.kind.clone() {
            Kind::Named(kind) => return Ok(self.write_named(kind, batch)?),
            Kind::Programs(addresses) => addresses,
        };
        let of_family =
            |(_, (member, _)): &(usize, &(KernelMember, bool))| self.families.contains(&Family::of(member.address));
        let changes = batch.changes.iter().enumerate().filter(of_family);
        let (places, changes): (Vec<usize>, Vec<(LearnedMember, bool)>) =
            changes.map(|(at, (member, is_present))| (at, (for_programs(member), *is_present))).unzip();
        let refused = addresses.learn(&changes)?;
        let refused = refused.into_iter().filter_map(|at| places.get(at).copied());
        Ok(refused.map(|at| (at, "the map of learned addresses is full".to_owned())).collect())
    }
}

fn for_programs(member: &KernelMember) -> LearnedMember {
    let learner =
        member.interface.map_or(Learner::Host, |interface| Learner::Workload { interface, owner: member.owner });
    LearnedMember { learner, set: member.set.clone(), address: member.address }
}

fn of_programs(LearnedMember { learner, set, address }: LearnedMember) -> KernelMember {
    let (part, interface, owner) = match learner {
        Learner::Host => (DomainSetPart::Host, None, 0),
        Learner::Workload { interface, owner } => (DomainSetPart::Interfaces(Shard(0)), Some(interface), owner),
    };
    KernelMember { set, part, interface, owner, address }
}

/// A change with the name of its set.
struct Named<'b> {
    name: String,
    is_added: bool,
    /// Its position in the batch.
    at: usize,
    member: &'b KernelMember,
}

impl Named<'_> {
    fn change(&self) -> MemberChange<'_> {
        let KernelMember { interface, address, .. } = *self.member;
        MemberChange { set: &self.name, member: SetMember { interface, address }, is_added: self.is_added }
    }
}

#[cfg(test)]
mod tests {
    use tortie_lab::kernel_test;
    use tortie_lab::netns::Namespace;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn member(set: &str, part: DomainSetPart, interface: Option<&str>, address: &str) -> KernelMember {
        let interface = interface.map(|name| name.parse().unwrap());
        KernelMember { set: IpSetId::new(set), part, interface, owner: 0, address: address.parse().unwrap() }
    }

    /// Writes members of both families and both kinds of sets, and lists them.
    fn members_are_written_and_listed(kind: DnsSets, commands: &str) {
        let namespace = Namespace::new().unwrap();
        namespace.shell(commands).unwrap();
        let workload = DomainSetPart::Interfaces(Shard(0));
        let mut present: Vec<KernelMember> = ["192.0.2.1", "2001:db8::1"]
            .into_iter()
            .flat_map(|address| {
                [member("d:x", workload, Some("cali1"), address), member("d:x", DomainSetPart::Host, None, address)]
            })
            .collect();
        present.sort();
        let absent = member("d:absent", workload, Some("cali1"), "192.0.2.1");
        let changes = present.iter().chain([&absent]).map(|member| (member.clone(), true)).collect();
        let mut sets = KernelSets::new(kind.clone(), Family::ALL.into(), TIMEOUT);
        let parts = [workload, DomainSetPart::Host].map(|part| (IpSetId::new("d:x"), part));
        let (refused, mut listed) =
            namespace.run(|| (sets.write(&Batch { changes }).unwrap(), sets.list(&parts).unwrap())).unwrap();
        listed.sort();
        assert_eq!(listed, present);
        assert_eq!(refused.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [4], "{refused:?}");
        let removals = present.into_iter().chain([absent]).map(|member| (member, false)).collect();
        let (refused, listed) =
            namespace.run(|| (sets.write(&Batch { changes: removals }).unwrap(), sets.list(&parts).unwrap())).unwrap();
        assert_eq!((refused, listed), (Vec::new(), Vec::new()));
        // Without IPv6 its members have no set.
        let mut sets = KernelSets::new(kind, vec![Family::V4], TIMEOUT);
        let changes = vec![(member("d:absent", workload, Some("cali1"), "2001:db8::1"), true)];
        assert_eq!(namespace.run(|| sets.write(&Batch { changes }).unwrap()).unwrap(), []);
    }

    kernel_test! {
        fn members_of_ip_sets() {
            let lines = [
                "ipset create cali40d:x.0 hash:net,iface",
                "ipset create cali60d:x.0 hash:net,iface family inet6",
                "ipset create cali40d:x.h hash:ip",
                "ipset create cali60d:x.h hash:ip family inet6",
            ];
            members_are_written_and_listed(DnsSets::IpSets, &lines.join("\n"));
        }

        fn members_of_nftables_sets() {
            let lines = [("ip", "4", "ipv4_addr"), ("ip6", "6", "ipv6_addr")].map(|(family, number, kind)| format!(
                "add table {family} calico; add set {family} calico cali{number}0d-x.0 {{ type ifname . {kind}; }}; \
                 add set {family} calico cali{number}0d-x.h {{ type {kind}; }}"
            ));
            members_are_written_and_listed(DnsSets::Nftables, &format!("nft '{}'", lines.join("; ")));
        }
    }
}
