//! Numbers for endpoints, carried in the packet mark while IPVS forwards a packet
//! (`felix/rules/epmark.go`).

use std::collections::{BTreeMap, BTreeSet};

use tortie_netfilter::{
    Action, Chain, ChainName, DispatchBy, InterfaceName, MapKey, MapVerdict, MarkBits, MaskedMark, Matches, Rule, Side,
};

use crate::dispatch::{Bins, by_map};
use crate::marks::Marks;
use crate::names::{EndpointChain, chain, endpoint_chain};
use crate::renderer::Renderer;

/// Gives each interface a separate number and keeps it until it is released.
///
/// The search for a free number starts at a hash of the name, so that most endpoints keep their
/// numbers after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointMarks {
    mask: MarkBits,
    marks: BTreeMap<InterfaceName, u32>,
    used: BTreeSet<u32>,
}

impl EndpointMarks {
    /// Starts without assigned numbers. Zero stands for "no endpoint", and the lowest bit for "no
    /// endpoint of Tortie".
    #[must_use]
    pub fn new(marks: &Marks) -> Self {
        let reserved = marks.non_endpoint.map_or(0, |mark| number_of(mark.get(), marks.endpoint));
        Self { mask: marks.endpoint, marks: BTreeMap::new(), used: BTreeSet::from([0, reserved]) }
    }

    /// Returns the mark of an interface, a new one if it has none; `None` if all numbers are in
    /// use.
    pub fn assign(&mut self, interface: InterfaceName) -> Option<MaskedMark> {
        if let Some(mark) = self.get(interface) {
            return Some(mark);
        }
        let bits = self.mask.get().count_ones();
        let count = u32::MAX >> (u32::BITS - bits);
        let start = fnv1(interface.as_str());
        let number = (0..=count).map(|step| start.wrapping_add(step) & count).find(|n| !self.used.contains(n))?;
        self.used.insert(number);
        self.marks.insert(interface, number);
        Some(self.mark(number))
    }

    /// Returns the mark of an interface, if it has one.
    #[must_use]
    pub fn get(&self, interface: InterfaceName) -> Option<MaskedMark> {
        self.marks.get(&interface).map(|number| self.mark(*number))
    }

    /// Frees an interface's number.
    pub fn release(&mut self, interface: InterfaceName) {
        if let Some(number) = self.marks.remove(&interface) {
            self.used.remove(&number);
        }
    }

    fn mark(&self, number: u32) -> MaskedMark {
        MaskedMark::new(spread(number, self.mask), self.mask)
    }
}

/// Returns the bits of `number`, lowest first, on the bits of `mask`.
fn spread(number: u32, mask: MarkBits) -> u32 {
    bits_of(mask).enumerate().filter(|(i, _)| number >> i & 1 == 1).fold(0, |mark, (_, bit)| mark | bit)
}

/// Reverses [`spread`].
fn number_of(mark: u32, mask: MarkBits) -> u32 {
    bits_of(mask).enumerate().filter(|(_, bit)| mark & bit != 0).fold(0, |number, (i, _)| number | 1 << i)
}

fn bits_of(mask: MarkBits) -> impl Iterator<Item = u32> {
    (0..u32::BITS).map(|i| 1 << i).filter(move |bit| mask.get() & bit != 0)
}

/// Returns the FNV-1 hash, 32 bits: multiply, then xor
/// (<http://www.isthe.com/chongo/tech/comp/fnv/>).
fn fnv1(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

impl Renderer {
    /// Returns the chains that turn interfaces into marks, and marks into endpoint chains.
    #[must_use]
    pub fn endpoint_mark_dispatch(
        &self,
        marks: &EndpointMarks,
        workloads: impl IntoIterator<Item = InterfaceName>,
        hosts: impl IntoIterator<Item = InterfaceName>,
    ) -> Vec<Chain> {
        let (workloads, hosts) = (Bins::new(workloads), Bins::new(hosts));
        let mut chains = Vec::new();
        let mut set_mark = Vec::new();
        let is_fast = self.config().packet_filter.is_fast();
        if is_fast {
            set_mark.push(by_map(chain::SET_ENDPOINT_MARK, Side::Source));
        }
        for (bins, infix) in [(&workloads, "-wep"), (&hosts, "-hep")].into_iter().filter(|_| !is_fast) {
            let (children, rules) =
                bins.branches(chain::SET_ENDPOINT_MARK, infix, Side::Source, EndpointChain::SetMark, &[]);
            chains.extend(children);
            set_mark.extend(rules);
        }
        set_mark.extend(self.workload_interfaces().map(|cali| {
            // A workload that is not programmed yet.
            Rule::when(Matches::new().in_interface(cali), self.deny()).comment("Unknown endpoint")
        }));
        let from_no_endpoint = self.marks().non_endpoint.map_or(0, MarkBits::get);
        let from_no_endpoint = MaskedMark::new(from_no_endpoint, self.marks().endpoint);
        set_mark.push(Rule::new(Action::SetMaskedMark(from_no_endpoint)).comment("Non-Cali endpoint mark"));
        chains.push(Chain::new(chain::SET_ENDPOINT_MARK, set_mark));

        let mut from_mark = Vec::new();
        if is_fast {
            let by = DispatchBy::Mark(self.marks().endpoint);
            from_mark.push(Rule::new(Action::Dispatch { by, map: chain::FROM_ENDPOINT_MARK }));
        }
        let ends = [(&workloads, EndpointChain::FromWorkload), (&hosts, EndpointChain::FromHostForward)];
        for (bins, target) in ends.into_iter().filter(|_| !is_fast) {
            from_mark.extend(bins.names().iter().filter_map(|name| {
                let goto = Action::Goto(endpoint_chain(target, name.as_str()));
                marks.get(*name).map(|mark| Rule::when(Matches::new().mark_is(mark), goto))
            }));
        }
        from_mark.push(Rule::new(self.deny()).comment("Unknown interface"));
        chains.push(Chain::new(chain::FROM_ENDPOINT_MARK, from_mark));
        chains
    }

    /// Returns the members of the verdict maps of `filter` for interfaces and their numbers; none
    /// if the layout has no such maps.
    #[must_use]
    pub fn endpoint_mark_maps(
        &self,
        marks: &EndpointMarks,
        workloads: impl IntoIterator<Item = InterfaceName>,
        hosts: impl IntoIterator<Item = InterfaceName>,
    ) -> Vec<(ChainName, MapKey, MapVerdict)> {
        if !self.config().packet_filter.is_fast() {
            return Vec::new();
        }
        let workloads = workloads.into_iter().map(|name| (name, EndpointChain::FromWorkload));
        let hosts = hosts.into_iter().map(|name| (name, EndpointChain::FromHostForward));
        let mut members = Vec::new();
        for (name, target) in workloads.chain(hosts) {
            let goto = |kind| MapVerdict::Goto(endpoint_chain(kind, name.as_str()));
            members.push((chain::SET_ENDPOINT_MARK, MapKey::Interface(name), goto(EndpointChain::SetMark)));
            let mark = marks.get(name).map(|mark| MapKey::Mark(mark.value()));
            members.extend(mark.map(|mark| (chain::FROM_ENDPOINT_MARK, mark, goto(target))));
        }
        members
    }
}

#[cfg(test)]
mod tests;
