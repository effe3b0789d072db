//! Members of IP sets, one by one.

use tortie_model::Cidr;
use tortie_model::desired::{IpPortMember, IpSetType, Members};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Member {
    Net(Cidr),
    IpPort(IpPortMember),
}

pub(super) fn of(members: &Members) -> impl Iterator<Item = Member> {
    let (nets, ip_ports): (&[Cidr], &[IpPortMember]) = match members {
        Members::Nets(nets) => (nets, &[]),
        Members::IpPorts(members) => (&[], members),
        Members::Domains(_) => (&[], &[]),
    };
    let nets = nets.iter().copied().map(Member::Net);
    nets.chain(ip_ports.iter().copied().map(Member::IpPort))
}

pub(super) fn pack<'a>(set_type: IpSetType, members: impl Iterator<Item = &'a Member>) -> Members {
    match set_type {
        // Sets of domains are not passed on.
        IpSetType::Ip | IpSetType::Net | IpSetType::Domains => Members::Nets(
            members.filter_map(|member| if let Member::Net(net) = member { Some(*net) } else { None }).collect(),
        ),
        IpSetType::IpAndPort => Members::IpPorts(
            members
                .filter_map(|member| if let Member::IpPort(member) = member { Some(*member) } else { None })
                .collect(),
        ),
    }
}
