//! Sets of chains and verdicts that are rendered as a whole; only differences are passed on.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_iptables::{Chain, ChainName, MapKey, MapVerdict, Table};

use crate::output::{FamilyOutput, Output};

/// Chains by table and name.
#[derive(Debug, Default)]
pub(crate) struct ChainSet {
    chains: BTreeMap<(Table, ChainName), Arc<Chain>>,
}

impl ChainSet {
    /// Replaces the chains of the set: defines new and changed ones, and removes those that are no
    /// longer in the set.
    pub(crate) fn replace(&mut self, chains: impl IntoIterator<Item = (Table, Chain)>, output: &mut Output) {
        let mut old = std::mem::take(&mut self.chains);
        for (table, chain) in chains {
            let key = (table, chain.name);
            let chain = match old.remove(&key) {
                Some(same) if *same == chain => same,
                _ => {
                    let chain = Arc::new(chain);
                    output.update_chain(&[table], &chain);
                    chain
                }
            };
            self.chains.insert(key, chain);
        }
        for (table, name) in old.into_keys() {
            output.remove_chain(&[table], name);
        }
    }
}

/// Entries of verdict maps, rendered as a whole.
#[derive(Debug, Default)]
pub(crate) struct MapSet {
    members: BTreeMap<(Table, ChainName, MapKey), MapVerdict>,
}

impl MapSet {
    /// Replaces all entries of the maps.
    pub(crate) fn replace(
        &mut self,
        members: impl IntoIterator<Item = (Table, ChainName, MapKey, MapVerdict)>,
        output: &mut Output,
    ) {
        let members = members.into_iter().map(|(table, map, key, verdict)| ((table, map, key), verdict)).collect();
        let old = std::mem::replace(&mut self.members, members);
        for place in old.keys().filter(|place| !self.members.contains_key(place)) {
            output.set_verdict(place.0, place.1, place.2, None);
        }
        for (place, verdict) in self.members.iter().filter(|(place, verdict)| old.get(place) != Some(verdict)) {
            output.set_verdict(place.0, place.1, place.2, Some(*verdict));
        }
    }
}

/// Chains of one family.
#[derive(Debug, Default)]
pub(crate) struct FamilyChainSet {
    chains: BTreeMap<ChainName, Arc<Chain>>,
}

impl FamilyChainSet {
    /// Replaces the chains of the set, all of one table.
    pub(crate) fn replace(&mut self, table: Table, chains: Vec<Chain>, output: &mut FamilyOutput) {
        let mut old = std::mem::take(&mut self.chains);
        for chain in chains {
            let chain = match old.remove(&chain.name) {
                Some(same) if *same == chain => same,
                _ => {
                    let chain = Arc::new(chain);
                    output.update_chain(&[table], &chain);
                    chain
                }
            };
            self.chains.insert(chain.name, chain);
        }
        for name in old.into_keys() {
            output.remove_chain(&[table], name);
        }
    }
}
