//! Affinities: which node owns which IPAM block.

use std::collections::BTreeSet;

use tortie_net::Cidr;

use super::index::Index;

/// Affinities of nodes. Each block that names a node has one, unless an update of both entries was
/// interrupted.
#[derive(Debug, Default)]
pub(super) struct Affinities {
    by_node: Index<Box<str>, Cidr>,
    /// Nodes whose affinity is marked for deletion, by block.
    leaving: Index<Cidr, Box<str>>,
    /// During a list: known affinities that the list has not contained so far.
    unmentioned: Option<BTreeSet<(Box<str>, Cidr)>>,
}

impl Affinities {
    pub(super) fn list_begins(&mut self) {
        let all = self.by_node.iter().map(|(node, cidr)| (node.clone(), *cidr));
        self.unmentioned = Some(all.collect());
    }

    /// Removes and returns the affinities that the list did not contain.
    pub(super) fn list_ends(&mut self) -> BTreeSet<(Box<str>, Cidr)> {
        let gone = self.unmentioned.take().unwrap_or_default();
        for (node, cidr) in &gone {
            self.set(node, *cidr, None);
        }
        gone
    }

    /// Records an affinity: `None` if it does not exist, otherwise whether it is marked for
    /// deletion. Reports a change.
    pub(super) fn set(&mut self, node: &str, cidr: Cidr, is_leaving: Option<bool>) -> bool {
        let key = (Box::from(node), cidr);
        if let Some(unmentioned) = self.unmentioned.as_mut().filter(|_| is_leaving.is_some()) {
            unmentioned.remove(&key);
        }
        let before = self.by_node.has(node, &cidr).then(|| self.leaving.has(&cidr, &key.0));
        if before == is_leaving {
            return false;
        }
        match is_leaving {
            Some(_) => self.by_node.insert(key.0.clone(), cidr),
            None => self.by_node.remove(node, &cidr),
        }
        match is_leaving {
            Some(true) => self.leaving.insert(cidr, key.0),
            Some(false) | None => self.leaving.remove(&cidr, &key.0),
        }
        true
    }

    /// Returns the nodes that have an affinity.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Box<str>> {
        self.by_node.keys()
    }

    /// Returns the blocks to which a node has an affinity.
    pub(super) fn of_node(&self, node: &str) -> impl Iterator<Item = Cidr> {
        self.by_node.get(node).copied()
    }

    /// Returns the blocks with an affinity that is marked for deletion.
    pub(super) fn leaving(&self) -> impl Iterator<Item = Cidr> {
        self.leaving.keys().copied()
    }

    /// Returns a node, other than the owner, whose affinity to the block is marked for deletion.
    pub(super) fn left_behind(&self, cidr: Cidr, owner: Option<&str>) -> Option<Box<str>> {
        self.leaving.get(&cidr).find(|node| Some(&***node) != owner).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlisted_affinities_are_removed() {
        let cidr = |text: &str| text.parse::<Cidr>().expect("a network");
        let (a, b) = (cidr("10.0.0.0/26"), cidr("10.0.0.64/26"));
        let mut affinities = Affinities::default();
        assert!(affinities.set("n1", a, Some(false)) && affinities.set("n1", b, Some(true)));
        assert!(!affinities.set("n1", b, Some(true)) && affinities.set("n2", b, Some(false)));
        assert_eq!(affinities.left_behind(b, None).as_deref(), Some("n1"));
        assert_eq!(affinities.left_behind(b, Some("n1")), None);
        affinities.list_begins();
        assert!(affinities.set("n1", b, Some(false)) && !affinities.set("n2", b, Some(false)));
        assert_eq!(affinities.list_ends(), BTreeSet::from([("n1".into(), a)]));
        assert_eq!((affinities.of_node("n1").collect::<Vec<_>>(), affinities.leaving().count()), (vec![b], 0));
        affinities.set("n1", b, None);
        assert_eq!(affinities.nodes().map(|node| &**node).collect::<Vec<_>>(), ["n2"]);
    }
}
