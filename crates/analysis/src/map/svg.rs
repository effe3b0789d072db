//! SVG output of the picture, as a document or as part of a page.

use std::fmt::Write as _;

use tortie_classes::evaluate::DecidedBy;
use tortie_model::Direction;

use crate::map::edges::{Anchor, Edge};
use crate::map::escaped::Escaped;
use crate::map::layout::{Curve, LABELLED, Layout, Rect, access, short};
use crate::map::names::Group;
use crate::map::nodes::{Access, Node};
use crate::map::picture::Map;

/// Number of listed names in a tooltip; further ones are only counted.
const LISTED: usize = 12;
/// Number of listed claims in remarks; further ones are only counted.
const CLAIMS: usize = 20;
/// Number of colours for tiers.
const COLOURS: usize = 8;
const STYLE: &str = include_str!("svg.css");

/// Function that describes the deciding rule or reason in a direction, with its position in a file.
pub type Describe<'a> = dyn Fn(&DecidedBy, Direction) -> String + 'a;

impl Map {
    /// Returns the name of an end of an edge: `shop/web`, `shop/*`, `all pods`, `anybody`.
    ///
    /// # Panics
    /// If this picture has no such node or group.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "as with any index")]
    pub fn name(&self, anchor: Anchor) -> String {
        match anchor {
            Anchor::AnyPeer => "anybody".to_owned(),
            Anchor::AllPods => "all pods".to_owned(),
            Anchor::Group(number) => match &self.groups[number] {
                Group::Namespace(name) => format!("{name}/*"),
                Group::Networks => "all networks".to_owned(),
                Group::Domains => "all domain names".to_owned(),
            },
            Anchor::Node(number) => {
                let node = &self.nodes[number];
                match &self.groups[node.group] {
                    Group::Namespace(name) if !name.is_empty() => format!("{name}/{}", node.title),
                    _ => node.title.clone(),
                }
            }
        }
    }

    /// Returns a sentence for each part that the picture leaves out or folds.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(count) = self.unfolded {
            remarks.push(format!(
                "There are {count} classes of pods and networks, too many to draw: those of a namespace are one node, and a \
                 dashed line is traffic of some of them. Use --namespace or --selector to draw fewer."
            ));
        }
        let [members, nodes] = self.left_out;
        if nodes > 0 {
            remarks.push(format!("Left out, because no edge connects them to these: {members} pods and networks."));
        }
        if self.forwards {
            remarks.push(
                "Host endpoints have policies for forwarded packets (applyOnForward), which are not in the picture: `tortie trace` \
                 evaluates them for a connection, and `tortie plan` shows the effect of a change."
                    .to_owned(),
            );
        }
        if self.names_left_out {
            remarks.push("Some domain names of rules are left out: there are too many.".to_owned());
        }
        remarks.extend(self.contested.iter().take(CLAIMS).map(|(workload, why)| {
            // The remark is written as a comment, so no name may end its line.
            format!("{workload}: {why}.").escape_debug().to_string()
        }));
        if let Some(more @ 1..) = self.contested.len().checked_sub(CLAIMS) {
            remarks.push(format!("{more} more claims to addresses or interfaces do not count."));
        }
        remarks
    }
}

/// Returns the picture as an SVG document with a style for light and dark surroundings. It has no
/// external references, and names cannot become markup. Edges, nodes and groups have `data-edge`,
/// `data-node` and `data-group` with their numbers.
#[must_use]
pub fn svg(map: &Map, layout: &Layout, describe: &Describe<'_>) -> String {
    // Writing to a string cannot fail, here and below.
    let mut out = String::new();
    let dense = if map.edges.len() > LABELLED { " dense" } else { "" };
    let (width, height) = (layout.width.ceil() + 20.0, layout.height.ceil() + 20.0);
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"map{dense}\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"-20 -20 {width} {height}\" role=\"group\" aria-label=\"Reachability, {}\">",
        map.family
    );
    let _ = writeln!(out, "<style>{STYLE}</style>");
    out.push_str(
        "<defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
         orient=\"auto-start-reverse\"><path d=\"M0 0.8 L7.4 4 L0 7.2 z\" fill=\"context-stroke\"/></marker></defs>\n",
    );
    for (number, (group, rect)) in map.groups.iter().zip(&layout.groups).enumerate() {
        self::group(&mut out, number, group, rect);
    }
    for (crowd, Rect { x, y, width, height }) in &layout.crowds {
        let _ = writeln!(
            out,
            "<g class=\"crowd\"><rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" rx=\"20\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\">{}</text></g>",
            x + width / 2.0,
            y + height / 2.0 + 4.5,
            crowd.title()
        );
    }
    for (number, (edge, curve)) in map.edges.iter().zip(&layout.curves).enumerate() {
        line(&mut out, map, (number, edge), curve, describe);
    }
    for (number, (node, rect)) in map.nodes.iter().zip(&layout.nodes).enumerate() {
        self::node(&mut out, map, (number, node), rect);
    }
    // Labels are drawn above all nodes.
    for (number, (edge, curve)) in map.edges.iter().zip(&layout.curves).enumerate() {
        let (x, y) = curve.label;
        let _ = writeln!(
            out,
            "<text class=\"label{}\" data-label=\"{number}\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            colours(edge),
            y + 4.0,
            Escaped(short(&edge.label, 26))
        );
    }
    out.push_str("</svg>\n");
    out
}

fn group(out: &mut String, number: usize, group: &Group, rect: &Rect) {
    let Rect { x, y, width, height } = rect;
    let kind = if matches!(group, Group::Networks | Group::Domains) { "group networks" } else { "group" };
    let _ = writeln!(
        out,
        "<g class=\"{kind}\" data-group=\"{number}\"><rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" rx=\"10\"/><text x=\"{:.0}\" y=\"{:.0}\">{}</text></g>",
        x + 16.0,
        y + 25.0,
        Escaped(group.title())
    );
}

/// Returns the CSS classes of the deciding tiers of an edge, and of its colour.
fn colours(edge: &Edge) -> String {
    let mut classes: String = edge.tiers.iter().map(|tier| format!(" tier{tier}")).collect();
    match edge.tiers.last() {
        Some(last) => classes += &format!(" colour{}", last % COLOURS),
        None => classes += " untiered",
    }
    classes
}

fn line(out: &mut String, map: &Map, (number, edge): (usize, &Edge), curve: &Curve, describe: &Describe<'_>) {
    let [start, one, two, end] = curve.points;
    let point = |(x, y): (f64, f64)| format!("{x:.1} {y:.1}");
    let path = format!("M{} C{}, {}, {}", point(start), point(one), point(two), point(end));
    let part = if edge.is_part { " part" } else { "" };
    let mut title = format!("{} → {}: {}", map.name(edge.from), map.name(edge.to), edge.label);
    for decider in edge.deciders.iter().take(LISTED) {
        let way = match decider.direction {
            Direction::Egress => "out",
            Direction::Ingress => "in",
        };
        let _ = write!(title, "\n{way}: {}", describe(&decider.by, decider.direction));
    }
    if let Some(more) = edge.deciders.len().checked_sub(LISTED).filter(|more| *more > 0) {
        let _ = write!(title, "\nand {more} more");
    }
    let _ = writeln!(
        out,
        "<g class=\"edge{}{part}\" data-edge=\"{number}\" tabindex=\"0\" role=\"button\"><title>{}</title>\
         <path class=\"hit\" d=\"{path}\"/><path class=\"line\" d=\"{path}\" marker-end=\"url(#arrow)\"/></g>",
        colours(edge),
        Escaped(title)
    );
}

fn node(out: &mut String, map: &Map, (number, node): (usize, &Node), rect: &Rect) {
    let Rect { x, y, width, height } = rect;
    let kind = match node.ingress {
        Access::NotEvaluated => "networks",
        Access::Everything => "open",
        Access::Nothing => "closed",
        Access::Some(_) | Access::Depends => "ruled",
    };
    let wanted = if node.is_wanted || node.is_networks() { "" } else { " peer" };
    let mut title = map.name(Anchor::Node(number));
    let _ = write!(title, " ({})", node.count());
    for member in node.members.iter().take(LISTED) {
        let _ = write!(title, "\n{member}");
    }
    if let Some(more) = node.members.len().checked_sub(LISTED).filter(|more| *more > 0) {
        let _ = write!(title, "\nand {more} more");
    }
    let _ = write!(
        out,
        "<g class=\"node {kind}{wanted}\" data-node=\"{number}\" tabindex=\"0\" role=\"button\"><title>{}</title>\
         <rect class=\"body\" x=\"{x:.0}\" y=\"{y:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" rx=\"6\"/>\
         <rect class=\"mark\" x=\"{x:.0}\" y=\"{y:.0}\" width=\"5\" height=\"{height:.0}\" rx=\"2\"/>",
        Escaped(title)
    );
    let lines =
        [("title", short(&node.title, 30), 19.0), ("count", node.count(), 35.0), ("access", access(node), 50.0)];
    for (class, text, down) in lines.into_iter().filter(|(_, text, _)| !text.is_empty()) {
        let _ =
            write!(out, "<text class=\"{class}\" x=\"{:.0}\" y=\"{:.0}\">{}</text>", x + 14.0, y + down, Escaped(text));
    }
    out.push_str("</g>\n");
}
