//! IP sets.

use std::collections::BTreeSet;

use tortie_model::desired::{DesiredUpdate, IpPortMember, IpSetDelta, IpSetType, IpSetUpdate, Members};
use tortie_model::{Cidr, IpSetId};

use super::flaw::{Flaw, Unusable, bad, parsed};
use super::{felix, in_object};

const MEMBER: &str = "members";

pub(super) fn update(update: &felix::IpSetUpdate) -> Result<DesiredUpdate, Unusable> {
    let read = || -> Result<IpSetUpdate, Flaw> {
        let set_type = match felix::ip_set_update::IpSetType::try_from(update.r#type) {
            Ok(felix::ip_set_update::IpSetType::Ip) => IpSetType::Ip,
            Ok(felix::ip_set_update::IpSetType::IpAndPort) => IpSetType::IpAndPort,
            Ok(felix::ip_set_update::IpSetType::Net) => IpSetType::Net,
            Err(_) => return Err(bad("type", update.r#type)),
        };
        let members = match set_type {
            IpSetType::IpAndPort => Members::IpPorts(sorted(&update.members, ip_port)?),
            IpSetType::Ip | IpSetType::Net => Members::Nets(sorted(&update.members, net)?),
            IpSetType::Domains => return Err(bad("type", update.r#type)),
        };
        Ok(IpSetUpdate { id: IpSetId::new(update.id.as_str()), set_type, members })
    };
    read().map(DesiredUpdate::IpSet).map_err(in_object(format_args!("IP set {}", update.id)))
}

/// Converts a delta. The message does not contain the type of the set; members with ports contain a
/// comma. An empty delta counts as one of networks.
pub(super) fn delta(update: &felix::IpSetDeltaUpdate) -> Result<DesiredUpdate, Unusable> {
    let read = || -> Result<IpSetDelta, Flaw> {
        let texts = [&update.added_members, &update.removed_members];
        let have_ports = texts.into_iter().flatten().any(|text| text.contains(','));
        let [added, removed] = if have_ports {
            change(texts, ip_port)?.map(Members::IpPorts)
        } else {
            change(texts, net)?.map(Members::Nets)
        };
        Ok(IpSetDelta { id: IpSetId::new(update.id.as_str()), added, removed })
    };
    read().map(DesiredUpdate::IpSetDelta).map_err(in_object(format_args!("IP set {}", update.id)))
}

pub(super) fn remove(remove: felix::IpSetRemove) -> DesiredUpdate {
    DesiredUpdate::IpSetRemove(IpSetId::new(remove.id))
}

/// Parses the added and removed members. A member in both lists is removed, because Felix adds
/// before it removes (`felix/dataplane/linux/ipsets_mgr.go`).
fn change<T: Ord>(texts: [&Vec<String>; 2], read: fn(&str) -> Result<T, Flaw>) -> Result<[Vec<T>; 2], Flaw> {
    let [added, removed] = texts;
    let removed = sorted(removed, read)?;
    let mut added = sorted(added, read)?;
    added.retain(|member| removed.binary_search(member).is_err());
    Ok([added, removed])
}

fn sorted<T: Ord>(texts: &[String], read: fn(&str) -> Result<T, Flaw>) -> Result<Vec<T>, Flaw> {
    let members: BTreeSet<T> = texts.iter().map(|text| read(text)).collect::<Result<_, _>>()?;
    Ok(members.into_iter().collect())
}

fn net(text: &str) -> Result<Cidr, Flaw> {
    parsed(MEMBER, text)
}

fn ip_port(text: &str) -> Result<IpPortMember, Flaw> {
    text.parse().map_err(|_| bad(MEMBER, text))
}
