//! A set of chains that is rendered as a whole, of which only what differs is handed on.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_iptables::{Chain, ChainName, Table};

use crate::output::{FamilyOutput, Output};

/// Chains by table and name.
#[derive(Debug, Default)]
pub(crate) struct ChainSet {
    chains: BTreeMap<(Table, ChainName), Arc<Chain>>,
}

impl ChainSet {
    /// Makes these the chains of the set: new and changed ones are defined, those that are not among them any more are
    /// taken back.
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

/// The same for one family.
#[derive(Debug, Default)]
pub(crate) struct FamilyChainSet {
    chains: BTreeMap<ChainName, Arc<Chain>>,
}

impl FamilyChainSet {
    /// Makes these the chains of the set, all of one table.
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
