//! Traffic control: queueing disciplines and filters, as bytes of `linux/pkt_sched.h` and
//! `linux/pkt_cls.h`.

use tortie_dataplane::{Qdisc, QdiscChange, QdiscKind, TokenBucket};

use super::Netlink;
use super::error::NetlinkError;
use super::wire::{self, attribute};

const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;

const HEADER_LEN: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;

const ROOT: u32 = 0xffff_ffff;
const INGRESS: u32 = 0xffff_fff1;
const INGRESS_HANDLE: u32 = 0xffff_0000;
/// The directions of `clsact`.
const CLSACT: [u32; 2] = [0xffff_fff2, 0xffff_fff3];
/// `1:`, as in Felix.
const BUCKET_HANDLE: u32 = 0x1_0000;

const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_PRATE64: u16 = 5;
const TCA_TBF_PBURST: u16 = 7;
/// Packet lengths count unchanged, so that no table of transmission times is needed.
const LINKLAYER_ETHERNET: u8 = 1;

const TCA_U32_CLASSID: u16 = 1;
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TC_U32_TERMINAL: u8 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TC_ACT_STOLEN: u32 = 4;
const EGRESS_REDIRECT: u32 = 1;
/// Priority 1, all protocols.
const FILTER_INFO: u32 = 1 << 16 | (3_u16.to_be() as u32);

const TCA_BPF_NAME: u16 = 7;

/// Filter of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The index of the interface.
    pub interface: u32,
    /// Its identification within the interface.
    handle: u32,
    parent: u32,
    info: u32,
    kind: String,
    /// Index of the interface to which it redirects packets.
    pub redirects_to: Option<u32>,
    /// The name of its eBPF program.
    pub program: Option<String>,
}

fn header(interface: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let words = [0, interface, handle, parent, info];
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

/// Returns type, flags and payload of the request for a change, and its name in errors.
fn change_request(change: &QdiscChange) -> (u16, u16, Vec<u8>, &'static str) {
    match change {
        QdiscChange::SetBucket(index, bucket) => {
            let parts = [header(*index, BUCKET_HANDLE, ROOT, 0), text(TCA_KIND, "tbf"), bucket_options(bucket)];
            (RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, parts.concat(), "bandwidth limit")
        }
        QdiscChange::DeleteRoot(index) => (RTM_DELQDISC, 0, header(*index, 0, ROOT, 0), "removal of a bandwidth limit"),
        QdiscChange::AddIngress(index) => {
            let parts = [header(*index, INGRESS_HANDLE, INGRESS, 0), text(TCA_KIND, "ingress")];
            (RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, parts.concat(), "ingress qdisc")
        }
        QdiscChange::DeleteIngress(index) => {
            (RTM_DELQDISC, 0, header(*index, INGRESS_HANDLE, INGRESS, 0), "removal of an ingress qdisc")
        }
        QdiscChange::Redirect { from, to } => {
            let parts = [header(*from, 0, INGRESS_HANDLE, FILTER_INFO), text(TCA_KIND, "u32"), redirect_options(*to)];
            (RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, parts.concat(), "redirection")
        }
    }
}

fn bucket_options(bucket: &TokenBucket) -> Vec<u8> {
    // The kernel takes a rate that does not fit from the attribute of 64 bits.
    let narrow = |rate: u64| u32::try_from(rate).unwrap_or(u32::MAX);
    let rate = |rate: u64| {
        let mut spec = vec![0, LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0];
        spec.extend(narrow(rate).to_ne_bytes());
        spec
    };
    let mut parms = [rate(bucket.rate), rate(bucket.peak_rate)].concat();
    for word in [bucket.limit, bucket.buffer, 0] {
        parms.extend(word.to_ne_bytes());
    }
    let mut options = attribute(TCA_TBF_PARMS, &parms);
    for (kind, rate) in [(TCA_TBF_RATE64, bucket.rate), (TCA_TBF_PRATE64, bucket.peak_rate)] {
        if rate > u64::from(u32::MAX) {
            options.extend(attribute(kind, &rate.to_ne_bytes()));
        }
    }
    if bucket.peak_rate > 0 {
        options.extend(attribute(TCA_TBF_PBURST, &bucket.min_burst.to_ne_bytes()));
    }
    attribute(TCA_OPTIONS, &options)
}

/// Returns options that redirect all packets to another interface.
fn redirect_options(to: u32) -> Vec<u8> {
    // One key that matches every packet.
    let mut selector = vec![TC_U32_TERMINAL, 0, 1, 0];
    selector.resize(16 + 16, 0);
    let parms = [0, 0, TC_ACT_STOLEN, 0, 0, EGRESS_REDIRECT, to].into_iter().flat_map(u32::to_ne_bytes);
    let parms = attribute(TCA_MIRRED_PARMS, &parms.collect::<Vec<u8>>());
    let action = [text(TCA_ACT_KIND, "mirred"), attribute(TCA_ACT_OPTIONS, &parms)].concat();
    let options = [
        attribute(TCA_U32_CLASSID, &0x1_0001_u32.to_ne_bytes()),
        attribute(TCA_U32_SEL, &selector),
        attribute(TCA_U32_ACT, &attribute(1, &action)),
    ];
    attribute(TCA_OPTIONS, &options.concat())
}

struct Raw {
    interface: u32,
    handle: u32,
    parent: u32,
    info: u32,
    kind: String,
    options: Vec<u8>,
}

fn parse_raw(subject: &'static str, payload: &[u8]) -> Result<Raw, NetlinkError> {
    let word = |at: usize| payload.get(at..at + 4).and_then(wire::number).ok_or(NetlinkError::Malformed { subject });
    let mut raw = Raw {
        interface: word(4)?,
        handle: word(8)?,
        parent: word(12)?,
        info: word(16)?,
        kind: String::new(),
        options: Vec::new(),
    };
    wire::for_each_attribute(subject, payload.get(HEADER_LEN..).unwrap_or_default(), |kind, value| {
        match kind {
            TCA_KIND => raw.kind = wire::text(value),
            TCA_OPTIONS => raw.options = value.to_vec(),
            _ => {}
        }
        Some(())
    })?;
    Ok(raw)
}

fn parse_qdisc(kind: u16, payload: &[u8]) -> Result<Option<Qdisc>, NetlinkError> {
    if kind != RTM_NEWQDISC {
        return Ok(None);
    }
    let raw = parse_raw("qdisc", payload)?;
    let kind = match raw.kind.as_str() {
        "ingress" => QdiscKind::Ingress,
        "clsact" => QdiscKind::Clsact,
        // Below another qdisc, a token bucket belongs to the configuration of other software.
        "tbf" if raw.parent == ROOT && raw.handle == BUCKET_HANDLE => QdiscKind::Bucket(parse_bucket(&raw.options)?),
        // The kernel's default qdisc of an interface has no handle.
        _ if raw.handle == 0 => QdiscKind::Default,
        _ => QdiscKind::Other(raw.kind),
    };
    Ok(Some(Qdisc { interface: raw.interface, is_root: raw.parent == ROOT, kind }))
}

fn parse_bucket(options: &[u8]) -> Result<TokenBucket, NetlinkError> {
    let mut bucket = TokenBucket::default();
    wire::for_each_attribute("token bucket", options, |kind, value| {
        let wide = |value: &[u8]| value.try_into().ok().map(u64::from_ne_bytes);
        match kind {
            TCA_TBF_PARMS => {
                let word = |at: usize| value.get(at..at + 4).and_then(wire::number);
                bucket.rate = bucket.rate.max(u64::from(word(8)?));
                bucket.peak_rate = bucket.peak_rate.max(u64::from(word(20)?));
                bucket.limit = word(24)?;
                bucket.buffer = word(28)?;
                // In units of time; only its presence can be compared.
                bucket.min_burst = word(32)?;
            }
            TCA_TBF_RATE64 => bucket.rate = wide(value)?,
            TCA_TBF_PRATE64 => bucket.peak_rate = wide(value)?,
            _ => {}
        }
        Some(())
    })?;
    Ok(bucket)
}

fn parse_filter(kind: u16, payload: &[u8]) -> Result<Option<Filter>, NetlinkError> {
    if kind != RTM_NEWTFILTER {
        return Ok(None);
    }
    let raw = parse_raw("filter", payload)?;
    let Raw { interface, handle, parent, info, kind, options } = raw;
    let (mut redirects_to, mut program) = (None, None);
    if kind == "u32" {
        wire::for_each_attribute("filter", &options, |kind, actions| {
            if kind == TCA_U32_ACT {
                redirects_to = redirection(actions);
            }
            Some(())
        })?;
    }
    if kind == "bpf" {
        wire::for_each_attribute("filter", &options, |kind, value| {
            if kind == TCA_BPF_NAME {
                program = Some(wire::text(value));
            }
            Some(())
        })?;
    }
    Ok(Some(Filter { interface, handle, parent, info, kind, redirects_to, program }))
}

/// Returns the target of the first action that redirects packets; `None` if there is none or it
/// cannot be decoded.
fn redirection(actions: &[u8]) -> Option<u32> {
    let mut to = None;
    let each_action = |_, action: &[u8]| {
        wire::for_each_attribute("action", action, |kind, options| {
            if kind == TCA_ACT_OPTIONS {
                wire::for_each_attribute("action", options, |kind, parms| {
                    if kind == TCA_MIRRED_PARMS && parms.len() >= 28 {
                        to = to.or(parms.get(24..28).and_then(wire::number));
                    }
                    Some(())
                })
                .ok()?;
            }
            Some(())
        })
        .ok()
    };
    wire::for_each_attribute("actions", actions, each_action).ok()?;
    to
}

impl Netlink {
    /// Returns all queueing disciplines.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn qdiscs(&mut self) -> Result<Vec<Qdisc>, NetlinkError> {
        self.socket.dump_raw(RTM_GETQDISC, &header(0, 0, 0, 0), "qdiscs", parse_qdisc)
    }

    /// Changes a queueing discipline, or the redirection of an interface's packets.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn change_qdisc(&mut self, change: &QdiscChange) -> Result<(), NetlinkError> {
        let (kind, flags, payload, subject) = change_request(change);
        self.socket.request_raw(kind, flags, &payload, subject)
    }

    /// Returns the indices of the interfaces to which filters redirect the packets received by an
    /// interface; `None` for a filter that does something else.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn redirections(&mut self, interface: u32) -> Result<Vec<Option<u32>>, NetlinkError> {
        let filters = self.filters(interface, INGRESS_HANDLE)?;
        // The kernel also lists the hash table of its u32 filters.
        let real = filters.into_iter().filter(|filter| filter.kind != "u32" || filter.handle & 0xfff != 0);
        Ok(real.map(|filter| filter.redirects_to).collect())
    }

    fn filters(&mut self, interface: u32, parent: u32) -> Result<Vec<Filter>, NetlinkError> {
        let subject = "filters";
        let found = self.socket.dump_raw(RTM_GETTFILTER, &header(interface, 0, parent, 0), subject, parse_filter);
        match found {
            Err(error) if error.is_not_found() || error.is_invalid() => Ok(Vec::new()),
            found => found,
        }
    }

    /// Returns the filters of the `clsact` of an interface, in both directions.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn clsact_filters(&mut self, interface: u32) -> Result<Vec<Filter>, NetlinkError> {
        let mut filters = Vec::new();
        for parent in CLSACT {
            filters.extend(self.filters(interface, parent)?);
        }
        // The kernel also lists the common part of all filters of a priority, as a filter without a
        // handle.
        filters.retain(|filter| filter.handle != 0);
        Ok(filters)
    }

    /// Deletes a filter.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn delete_filter(&mut self, filter: &Filter) -> Result<(), NetlinkError> {
        let Filter { interface, handle, parent, info, kind, .. } = filter;
        let payload = [header(*interface, *handle, *parent, *info), text(TCA_KIND, kind)].concat();
        self.socket.request_raw(RTM_DELTFILTER, 0, &payload, "removal of a filter")
    }
}

#[cfg(test)]
mod tests;
