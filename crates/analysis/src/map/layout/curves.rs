//! Lines between placed blocks, and the positions of their labels.

use std::collections::BTreeMap;

use super::{Curve, LETTER, Layout, Rect, Site, length, short};
use crate::map::edges::Anchor;
use crate::map::picture::Map;

/// Number of edges above which labels are only shown on demand and need no space.
pub(crate) const LABELLED: usize = 150;
/// Possible positions of a label on its line.
const PLACES: [f64; 7] = [0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74];

/// Attachment of a line: the number of an anchor, and whether it is at the right side.
type Side = (usize, bool);

#[expect(clippy::indexing_slicing, reason = "edges are between nodes, groups and crowds that have places")]
fn rect(layout: &Layout, anchor: Anchor, is_source: bool) -> Rect {
    match Site::of(anchor, is_source) {
        Site::Group(group) => layout.groups[group],
        Site::Node(node) => layout.nodes[node],
        Site::Crowd(crowd) => layout.crowds[&crowd],
    }
}

/// Returns a number for each anchor.
fn key(map: &Map, anchor: Anchor, is_source: bool) -> usize {
    match anchor {
        Anchor::Node(node) => node,
        Anchor::Group(group) => map.nodes.len() + group,
        Anchor::AllPods => map.nodes.len() + map.groups.len() + usize::from(is_source),
        Anchor::AnyPeer => map.nodes.len() + map.groups.len() + 2 + usize::from(is_source),
    }
}

#[expect(clippy::indexing_slicing, reason = "each edge is attached at both ends")]
pub(super) fn curves(map: &Map, layout: &Layout) -> Vec<Curve> {
    let ends: Vec<(Rect, Rect)> =
        map.edges.iter().map(|edge| (rect(layout, edge.from, true), rect(layout, edge.to, false))).collect();
    // Lines meet their ends at the right or left side, in the order of the other ends.
    let mut attached: BTreeMap<Side, Vec<(f64, usize, bool)>> = BTreeMap::new();
    for (number, (edge, (from, to))) in map.edges.iter().zip(&ends).enumerate() {
        let (source_right, target_right) = sides(from, to);
        let (source, target) = (key(map, edge.from, true), key(map, edge.to, false));
        attached.entry((source, source_right)).or_default().push((to.middle().1, number, true));
        attached.entry((target, target_right)).or_default().push((from.middle().1, number, false));
    }
    let mut shares: BTreeMap<(usize, bool), f64> = BTreeMap::new();
    for list in attached.values_mut() {
        list.sort_by(|one, other| one.0.total_cmp(&other.0).then((one.1, one.2).cmp(&(other.1, other.2))));
        let stretches = (list.len() + 1) as f64;
        for (place, (_, number, is_source)) in (1..).zip(list.iter()) {
            shares.insert((*number, *is_source), f64::from(place) / stretches);
        }
    }
    let mut labels = Labels { taken: layout.nodes.clone(), is_full: map.edges.len() > LABELLED };
    let mut curves = Vec::new();
    for (number, (edge, (from, to))) in map.edges.iter().zip(&ends).enumerate() {
        let share = |is_source| shares[&(number, is_source)];
        let points = points(from, to, share(true), share(false));
        let label = labels.place(&points, length(&short(&edge.label, 26)) * LETTER);
        curves.push(Curve { points, label });
    }
    curves
}

/// Returns whether a line leaves at the right side, and whether it arrives at the right side.
fn sides(from: &Rect, to: &Rect) -> (bool, bool) {
    if from == to {
        return (true, true);
    }
    let is_within = from.x <= to.x && from.right() >= to.right() && from.y <= to.y && from.bottom() >= to.bottom();
    let is_around = to.x <= from.x && to.right() >= from.right() && to.y <= from.y && to.bottom() >= from.bottom();
    match () {
        () if is_within => (false, false),
        () if is_around => (true, true),
        () if from.right() <= to.x => (true, false),
        () if to.right() <= from.x => (false, true),
        () => (true, true),
    }
}

fn points(from: &Rect, to: &Rect, source_share: f64, target_share: f64) -> [(f64, f64); 4] {
    let (source_right, target_right) = sides(from, to);
    let at = |rect: &Rect, share: f64, is_right: bool| {
        let margin = (rect.height * 0.16).min(24.0);
        (if is_right { rect.right() } else { rect.x }, rect.y + margin + (rect.height - 2.0 * margin) * share)
    };
    let (mut start, mut end) = (at(from, source_share, source_right), at(to, target_share, target_right));
    if from == to {
        (start.1, end.1) = (from.y + 14.0, from.y + (from.height - 14.0).min(38.0));
        return [start, (start.0 + 46.0, start.1 - 8.0), (end.0 + 46.0, end.1 + 8.0), end];
    }
    // One end is inside the other.
    if source_right == target_right && start.0 != end.0 && (from.touches(to)) {
        if from.width > to.width {
            start.1 = end.1;
        } else {
            end.1 = start.1;
        }
        let step = (end.0 - start.0) / 3.0;
        return [start, (start.0 + step, start.1), (end.0 - step, end.1), end];
    }
    // One end is above the other, close to it.
    let between = (to.y - from.bottom()).max(from.y - to.bottom());
    if source_right == target_right && (0.0..60.0).contains(&between) {
        let overlap = (from.x.max(to.x), from.right().min(to.right()));
        let x = overlap.0 + (overlap.1 - overlap.0) * (0.25 + 0.5 * source_share);
        let (start, end) = if to.y > from.y { (from.bottom(), to.y) } else { (from.y, to.bottom()) };
        let step = (end - start) / 3.0;
        return [(x, start), (x, start + step), (x, end - step), (x, end)];
    }
    if source_right == target_right {
        let out = 40.0 + (start.1 - end.1).abs().min(240.0) * 0.25;
        let reach = start.0.max(end.0) + out;
        return [start, (reach, start.1), (reach, end.1), end];
    }
    let bend = ((end.0 - start.0).abs() * 0.45).max(36.0) * if source_right { 1.0 } else { -1.0 };
    [start, (start.0 + bend, start.1), (end.0 - bend, end.1), end]
}

/// Returns a point of a line.
fn along([start, one, two, end]: &[(f64, f64); 4], at: f64) -> (f64, f64) {
    let rest = 1.0 - at;
    let [a, b, c, d] = [rest * rest * rest, 3.0 * rest * rest * at, 3.0 * rest * at * at, at * at * at];
    (a * start.0 + b * one.0 + c * two.0 + d * end.0, a * start.1 + b * one.1 + c * two.1 + d * end.1)
}

struct Labels {
    taken: Vec<Rect>,
    is_full: bool,
}

impl Labels {
    /// Returns the first free position on the line.
    fn place(&mut self, points: &[(f64, f64); 4], width: f64) -> (f64, f64) {
        let middle = along(points, 0.5);
        if self.is_full {
            return middle;
        }
        let around = |(x, y): (f64, f64)| Rect { x: x - width / 2.0, y: y - 8.0, width, height: 16.0 };
        let is_free = |place: &(f64, f64)| !self.taken.iter().any(|taken| taken.touches(&around(*place)));
        let found = PLACES.iter().map(|at| along(points, *at)).find(is_free).unwrap_or(middle);
        self.taken.push(around(found));
        found
    }
}
