//! Layout of a picture: groups in columns along their edges, and nodes likewise within their group.
//!
//! The layout is deterministic and needs no long search: columns follow the edges, and each column
//! is sorted by the positions of its neighbours.

mod columns;
mod curves;

use std::collections::BTreeMap;

use crate::map::edges::Anchor;
use crate::map::nodes::{Access, Node};
use crate::map::picture::Map;
use columns::{Arrow, in_columns};
pub(crate) use curves::LABELLED;
use curves::curves;

/// Height of a node.
const NODE: f64 = 58.0;
/// Gap between the nodes of a column.
const NODE_GAP: f64 = 16.0;
/// Padding around the nodes of a group, and space above them for its name.
const PADDING: f64 = 16.0;
const NAME: f64 = 26.0;
const GROUP_GAP: f64 = 30.0;
/// Width of a letter of titles and of labels.
const TITLE_LETTER: f64 = 7.6;
const LETTER: f64 = 6.3;

/// Rectangle by its upper left corner and its size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(clippy::exhaustive_structs, reason = "a rectangle has nothing else")]
pub struct Rect {
    /// Distance from the left, in pixels.
    pub x: f64,
    /// Distance from the top.
    pub y: f64,
    /// The width.
    pub width: f64,
    /// The height.
    pub height: f64,
}

impl Rect {
    pub(crate) fn right(&self) -> f64 {
        self.x + self.width
    }

    pub(crate) fn bottom(&self) -> f64 {
        self.y + self.height
    }

    pub(crate) fn middle(&self) -> (f64, f64) {
        (self.x + self.width / 2.0, self.y + self.height / 2.0)
    }

    fn moved(self, x: f64, y: f64) -> Self {
        Self { x: self.x + x, y: self.y + y, ..self }
    }

    fn touches(&self, other: &Self) -> bool {
        self.x < other.right() && other.x < self.right() && self.y < other.bottom() && other.y < self.bottom()
    }
}

/// A line with its label.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Curve {
    /// Start, two control points, end.
    pub(crate) points: [(f64, f64); 4],
    /// The middle of the label.
    pub(crate) label: (f64, f64),
}

/// Symbol for many peers: all sources or all destinations of some packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Crowd {
    FromAnyPeer,
    FromAllPods,
    ToAllPods,
    ToAnyPeer,
}

/// Positions of all parts of a [`Map`].
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Layout {
    /// Width of the picture.
    pub width: f64,
    /// Height of the picture.
    pub height: f64,
    /// The nodes, in order.
    pub nodes: Vec<Rect>,
    /// The groups, in order.
    pub groups: Vec<Rect>,
    pub(crate) crowds: BTreeMap<Crowd, Rect>,
    pub(crate) curves: Vec<Curve>,
}

/// Symbol at an end of an edge.
pub(crate) enum Site {
    Node(usize),
    Group(usize),
    Crowd(Crowd),
}

impl Site {
    pub(crate) fn of(anchor: Anchor, is_source: bool) -> Self {
        match (anchor, is_source) {
            (Anchor::Node(number), _) => Self::Node(number),
            (Anchor::Group(number), _) => Self::Group(number),
            (Anchor::AnyPeer, true) => Self::Crowd(Crowd::FromAnyPeer),
            (Anchor::AnyPeer, false) => Self::Crowd(Crowd::ToAnyPeer),
            (Anchor::AllPods, true) => Self::Crowd(Crowd::FromAllPods),
            (Anchor::AllPods, false) => Self::Crowd(Crowd::ToAllPods),
        }
    }

    pub(crate) fn crowd(self) -> Option<Crowd> {
        match self {
            Self::Crowd(crowd) => Some(crowd),
            Self::Node(_) | Self::Group(_) => None,
        }
    }
}

impl Crowd {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::FromAnyPeer => "anybody",
            Self::ToAnyPeer => "anywhere",
            Self::FromAllPods | Self::ToAllPods => "all pods",
        }
    }
}

/// Returns the text below the title of a node.
pub(crate) fn access(node: &Node) -> String {
    let word = |access: &Access| match access {
        Access::Everything => "all".to_owned(),
        Access::Nothing => "none".to_owned(),
        Access::Some(label) => short(label, 14),
        Access::Depends => "by peer".to_owned(),
        Access::NotEvaluated => String::new(),
    };
    if node.is_networks() {
        return String::new();
    }
    format!("in: {} · out: {}", word(&node.ingress), word(&node.egress))
}

/// Returns a text with at most this number of letters, which must be at least one.
pub(crate) fn short(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    text.chars().take(letters - 1).chain(['…']).collect()
}

fn length(text: &str) -> f64 {
    text.chars().count() as f64
}

fn size(node: &Node) -> Rect {
    let letters = [length(&short(&node.title, 30)) * TITLE_LETTER, length(&access(node)) * 5.9];
    let width = letters.into_iter().fold(96.0, f64::max) + 30.0;
    Rect { width, height: if node.is_networks() { NODE - 14.0 } else { NODE }, ..Rect::default() }
}

/// Lays out a picture.
#[must_use]
#[expect(
    clippy::indexing_slicing,
    reason = "nodes and blocks are numbered by their places, and crowds are those of edges"
)]
pub fn layout(map: &Map) -> Layout {
    let mut layout = Layout::default();
    let (insides, sizes): (Vec<_>, Vec<_>) =
        (0..map.groups.len()).map(|group| inside(map, group)).map(|inside| (inside.0, inside.1)).unzip();
    // Blocks are the groups, followed by the crowds.
    let mut blocks: Vec<Rect> = sizes;
    let mut crowds: BTreeMap<Crowd, usize> = BTreeMap::new();
    for edge in &map.edges {
        for crowd in [Site::of(edge.from, true), Site::of(edge.to, false)].into_iter().filter_map(Site::crowd) {
            crowds.entry(crowd).or_insert_with(|| {
                blocks.push(Rect { width: 92.0, height: 40.0, ..Rect::default() });
                blocks.len() - 1
            });
        }
    }
    let block = |anchor: Anchor, is_source: bool| match Site::of(anchor, is_source) {
        Site::Group(group) => group,
        Site::Node(number) => map.nodes[number].group,
        Site::Crowd(crowd) => crowds[&crowd],
    };
    let arrows: Vec<Arrow> = map
        .edges
        .iter()
        .filter_map(|edge| {
            let (from, to) = (block(edge.from, true), block(edge.to, false));
            (from != to).then(|| Arrow { from, to, room: length(&short(&edge.label, 26)) * LETTER })
        })
        .collect();
    let placed = in_columns(&blocks, &arrows, GROUP_GAP);
    layout.groups = placed.rects.iter().take(map.groups.len()).copied().collect();
    layout.crowds = crowds.iter().map(|(crowd, block)| (*crowd, placed.rects[*block])).collect();
    layout.nodes = vec![Rect::default(); map.nodes.len()];
    for (rects, group) in insides.iter().zip(&layout.groups) {
        for (number, rect) in rects {
            layout.nodes[*number] = rect.moved(group.x, group.y);
        }
    }
    layout.curves = curves(map, &layout);
    let all = layout.groups.iter().chain(layout.crowds.values());
    let (right, bottom) =
        all.fold((0.0, 0.0), |(right, bottom): (f64, f64), rect| (right.max(rect.right()), bottom.max(rect.bottom())));
    let points = layout.curves.iter().flat_map(|curve| curve.points);
    let (right, bottom) = points.fold((right, bottom), |(right, bottom), (x, y)| (right.max(x), bottom.max(y)));
    (layout.width, layout.height) = (right + 24.0, bottom + 24.0);
    layout
}

/// Returns the positions of the nodes within their group, and its size.
#[expect(clippy::indexing_slicing, reason = "groups are numbered by their places")]
fn inside(map: &Map, group: usize) -> (Vec<(usize, Rect)>, Rect) {
    let nodes = map.nodes.iter().enumerate().filter(|(_, node)| node.group == group);
    let (numbers, sizes): (Vec<usize>, Vec<Rect>) = nodes.map(|(number, node)| (number, size(node))).unzip();
    let place = |anchor: Anchor| match anchor {
        Anchor::Node(number) => numbers.binary_search(&number).ok(),
        _ => None,
    };
    let arrows: Vec<Arrow> = map
        .edges
        .iter()
        .filter_map(|edge| {
            let (from, to) = (place(edge.from)?, place(edge.to)?);
            (from != to).then(|| Arrow { from, to, room: length(&short(&edge.label, 26)) * LETTER })
        })
        .collect();
    let placed = in_columns(&sizes, &arrows, NODE_GAP);
    let rects = numbers.iter().zip(placed.rects).map(|(number, rect)| (*number, rect.moved(PADDING, PADDING + NAME)));
    let name = length(&map.groups[group].title()) * 8.4 + 2.0 * PADDING + 30.0;
    let width = (placed.width + 2.0 * PADDING).max(name);
    (rects.collect(), Rect { width, height: placed.height + 2.0 * PADDING + NAME, ..Rect::default() })
}
