//! Labels by which selectors of rules name nodes.

use tortie_selector::{Expr, Selector};

use crate::{Labels, Node};

/// Prefix of a node's labels in selectors: `pcnode.rack == 'a'` selects the addresses of nodes with
/// the label `rack: a`. No other object has labels with this prefix.
pub const NODE_LABEL_PREFIX: &str = "pcnode.";

/// Label without a value that every node has in selectors: `has(pcnode.projectcalico.org/node)`
/// selects all nodes.
pub const NODE_LABEL: &str = "pcnode.projectcalico.org/node";

/// Reports whether a selector of a rule selects nodes, as far as its form shows that each match
/// needs a label of a node: a comparison of one that is not negated, at least one operand of an
/// `&&`, all operands of an `||`. Any other selector selects endpoints and network sets, which have
/// no such label.
///
/// ```
/// use tortie_model::selects_nodes;
/// use tortie_selector::Selector;
///
/// let nodes = |text| selects_nodes(&Selector::parse(text).unwrap());
/// assert!(nodes("pcnode.rack == 'a' && !has(pcnode.gpu)") && nodes("pcnode.rack == 'a' || has(pcnode.gpu)"));
/// assert!(!nodes("all()") && !nodes("!has(pcnode.gpu)") && !nodes("pcnode.rack == 'a' || app == 'web'"));
/// ```
#[must_use]
pub fn selects_nodes(selector: &Selector) -> bool {
    needs_node_label(selector.expr())
}

fn needs_node_label(expr: &Expr) -> bool {
    match expr {
        Expr::Has(label)
        | Expr::Eq(label, _)
        | Expr::Contains(label, _)
        | Expr::StartsWith(label, _)
        | Expr::EndsWith(label, _)
        | Expr::In(label, _) => label.as_str().starts_with(NODE_LABEL_PREFIX),
        Expr::And(operands) => operands.iter().any(needs_node_label),
        Expr::Or(operands) => operands.iter().all(needs_node_label),
        Expr::All | Expr::Global | Expr::NotEq(..) | Expr::NotIn(..) | Expr::Not(_) => false,
    }
}

impl Node {
    /// Returns the labels by which selectors of rules match the node: its own with
    /// [`NODE_LABEL_PREFIX`], and [`NODE_LABEL`].
    #[must_use]
    #[expect(clippy::expect_used, reason = "one more empty value changes no length")]
    pub fn selectable_labels(&self) -> Labels {
        let own = self.labels.iter().map(|(label, value)| (format!("{NODE_LABEL_PREFIX}{label}"), value));
        Labels::from_pairs(own.chain([(NODE_LABEL.to_owned(), "")])).expect("the values of labels fit into labels")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_a_node_have_a_prefix_and_one_more_label_has_no_value() {
        let labels = Labels::from_pairs([("rack", "a"), ("projectcalico.org/node", "own")]).unwrap();
        let node = Node { labels, ..Node::default() };
        assert_eq!(node.selectable_labels().iter().collect::<Vec<_>>(), [(NODE_LABEL, ""), ("pcnode.rack", "a")]);
    }
}
