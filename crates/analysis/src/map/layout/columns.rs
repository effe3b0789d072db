//! Blocks in columns: each to the right of those that reach it, as far as possible.

#![expect(clippy::indexing_slicing, reason = "blocks and columns are numbered by their places")]

use super::Rect;

/// Connection from a block to another one.
pub(super) struct Arrow {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Width of its label.
    pub(super) room: f64,
}

/// Blocks with their positions.
pub(super) struct ColumnLayout {
    pub(super) rects: Vec<Rect>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Gap between unconnected columns.
const COLUMN_GAP: f64 = 24.0;
const MAX_COLUMN_GAP: f64 = 190.0;
/// Ratio of the width of a picture to its height.
const ASPECT: f64 = 1.7;
/// Number of columns that are never merged. More columns are merged while the ratio of width to
/// height exceeds `MAX_ASPECT`.
const FEW_COLUMNS: usize = 3;
const MAX_ASPECT: f64 = 2.6;
const SWEEPS: usize = 4;

pub(super) fn in_columns(sizes: &[Rect], arrows: &[Arrow], gap: f64) -> ColumnLayout {
    let neighbours = Neighbours::new(sizes.len(), arrows);
    let ranks = ranks(&neighbours);
    let connected = |block: &usize| neighbours.count(*block) > 0;
    let columns = ranks.iter().enumerate().filter(|(block, _)| connected(block)).map(|(_, rank)| rank + 1).max();
    let mut columns: Vec<Vec<usize>> = vec![Vec::new(); columns.unwrap_or(0)];
    for (block, rank) in ranks.iter().enumerate().filter(|(block, _)| connected(block)) {
        columns[*rank].push(block);
    }
    let ranks = merge(&mut columns, sizes, gap, ranks);
    let alone: Vec<usize> = (0..sizes.len()).filter(|block| !connected(block)).collect();
    put_in_order(&mut columns, &neighbours);

    let height = |blocks: &[usize]| blocks.iter().map(|block| sizes[*block].height + gap).sum::<f64>();
    let area: f64 = sizes.iter().map(|size| (size.width + gap) * (size.height + gap)).sum();
    let target =
        (area / ASPECT).sqrt().max(columns.iter().map(|column| height(column)).fold(0.0, f64::max).min(1200.0));
    let mut placed = ColumnLayout { rects: sizes.to_vec(), width: 0.0, height: 0.0 };
    let mut spans: Vec<(Vec<Vec<usize>>, f64)> = Vec::new();
    for (rank, column) in columns.iter().enumerate() {
        let room = arrows.iter().filter(|arrow| {
            let (from, to) = (ranks[arrow.from], ranks[arrow.to]);
            from.min(to) <= rank && from.max(to) == rank + 1
        });
        let room = room.map(|arrow| arrow.room + 44.0).fold(COLUMN_GAP, f64::max).min(MAX_COLUMN_GAP);
        let is_last = rank + 1 == columns.len();
        spans.push((cut(column, target * 1.25, &height, sizes, gap), if is_last { 0.0 } else { room }));
    }
    let tallest = spans.iter().flat_map(|(parts, _)| parts.iter().map(|part| height(part))).fold(0.0, f64::max);
    let mut x = 0.0;
    for (parts, room) in &spans {
        for (place, part) in parts.iter().enumerate() {
            let mut y = (tallest - height(part)) / 2.0;
            let mut width: f64 = 0.0;
            for block in part {
                let rect = &mut placed.rects[*block];
                (rect.x, rect.y) = (x, y);
                y += rect.height + gap;
                width = width.max(rect.width);
            }
            x += width + if place + 1 == parts.len() { *room } else { gap };
        }
    }
    (placed.width, placed.height) = (x, (tallest - gap).max(0.0));
    rows(&mut placed, &alone, area, gap);
    placed
}

/// Merges neighbouring columns, the pair of least height first, until the picture is not too wide
/// for its height.
#[expect(clippy::expect_used, reason = "a few columns are never merged")]
fn merge(columns: &mut Vec<Vec<usize>>, sizes: &[Rect], gap: f64, mut ranks: Vec<usize>) -> Vec<usize> {
    let height = |column: &[usize]| column.iter().map(|block| sizes[*block].height + gap).sum::<f64>();
    let width =
        |column: &[usize]| column.iter().map(|block| sizes[*block].width + MAX_COLUMN_GAP * 0.7).fold(0.0, f64::max);
    loop {
        let tallest = columns.iter().map(|column| height(column)).fold(0.0, f64::max);
        let wide: f64 = columns.iter().map(|column| width(column)).sum();
        if columns.len() <= FEW_COLUMNS || wide < tallest * MAX_ASPECT {
            return ranks;
        }
        let together = |at: &usize| columns[*at..*at + 2].iter().map(|column| height(column)).sum::<f64>();
        let best = (0..columns.len() - 1).min_by(|one, other| together(one).total_cmp(&together(other)));
        let best = best.expect("there are more than a few columns");
        let next = columns.remove(best + 1);
        columns[best].extend(&next);
        ranks.iter_mut().filter(|rank| **rank > best).for_each(|rank| *rank -= 1);
    }
}

/// Places unconnected blocks in rows below the rest.
fn rows(placed: &mut ColumnLayout, alone: &[usize], area: f64, gap: f64) {
    let width = placed.width.max((area * ASPECT).sqrt());
    let mut y = if placed.height > 0.0 { placed.height + gap } else { 0.0 };
    let (mut x, mut tallest) = (0.0, 0.0_f64);
    for block in alone {
        let rect = &mut placed.rects[*block];
        if x > 0.0 && x + rect.width > width {
            (x, y, tallest) = (0.0, y + tallest + gap, 0.0);
        }
        (rect.x, rect.y) = (x, y);
        x += rect.width + gap;
        tallest = tallest.max(rect.height);
        placed.width = placed.width.max(rect.x + rect.width);
        placed.height = placed.height.max(rect.y + rect.height);
    }
}

/// Splits a column into as many as its height needs.
fn cut(column: &[usize], target: f64, height: &impl Fn(&[usize]) -> f64, sizes: &[Rect], gap: f64) -> Vec<Vec<usize>> {
    let total = height(column);
    if total <= target {
        return vec![column.to_vec()];
    }
    let parts = (total / target).ceil();
    let (mut cut, mut part, mut reached) = (Vec::new(), Vec::new(), 0.0);
    for block in column {
        if reached > total / parts {
            cut.push(std::mem::take(&mut part));
            reached = 0.0;
        }
        reached += sizes[*block].height + gap;
        part.push(*block);
    }
    cut.push(part);
    cut
}

/// Connections of each block.
struct Neighbours {
    out: Vec<Vec<usize>>,
    into: Vec<Vec<usize>>,
}

impl Neighbours {
    fn new(count: usize, arrows: &[Arrow]) -> Self {
        let mut neighbours = Self { out: vec![Vec::new(); count], into: vec![Vec::new(); count] };
        for Arrow { from, to, .. } in arrows {
            neighbours.out[*from].push(*to);
            neighbours.into[*to].push(*from);
        }
        for list in neighbours.out.iter_mut().chain(&mut neighbours.into) {
            list.sort_unstable();
            list.dedup();
        }
        neighbours
    }

    fn count(&self, block: usize) -> usize {
        self.out[block].len() + self.into[block].len()
    }
}

/// Returns the column of each block: the length of the longest path to it, without connections that
/// lead back.
fn ranks(neighbours: &Neighbours) -> Vec<usize> {
    let count = neighbours.out.len();
    let mut order: Vec<usize> = (0..count).collect();
    // A block with more outgoing than incoming connections is further to the left.
    order.sort_by_key(|block| {
        let (out, into) = (neighbours.out[*block].len(), neighbours.into[*block].len());
        (into.min(1), into.saturating_sub(out), std::cmp::Reverse(out), *block)
    });
    let order = finished(&order, neighbours);
    let mut position = vec![0; count];
    order.iter().enumerate().for_each(|(at, block)| position[*block] = at);
    let mut ranks = vec![0_usize; count];
    for block in order {
        for next in &neighbours.out[block] {
            if position[*next] > position[block] {
                ranks[*next] = ranks[*next].max(ranks[block] + 1);
            }
        }
    }
    // A block without incoming connections is directly before the first block that it reaches.
    for block in 0..count {
        if neighbours.into[block].is_empty() {
            // All blocks that it reaches are to its right.
            let next = neighbours.out[block].iter().map(|next| ranks[*next]).min();
            ranks[block] = next.map_or(0, |next| next - 1);
        }
    }
    ranks
}

/// Returns blocks in depth-first order: each before those that it reaches, except those that lead
/// back to it.
fn finished(order: &[usize], neighbours: &Neighbours) -> Vec<usize> {
    let mut seen = vec![false; order.len()];
    let mut done = Vec::new();
    for start in order {
        if std::mem::replace(&mut seen[*start], true) {
            continue;
        }
        let mut stack = vec![(*start, 0)];
        while let Some((block, place)) = stack.pop() {
            match neighbours.out[block].get(place) {
                Some(next) => {
                    stack.push((block, place + 1));
                    if !std::mem::replace(&mut seen[*next], true) {
                        stack.push((*next, 0));
                    }
                }
                None => done.push(block),
            }
        }
    }
    done.reverse();
    done
}

/// Sorts each column by the positions of the neighbours.
fn put_in_order(columns: &mut [Vec<usize>], neighbours: &Neighbours) {
    let count = neighbours.out.len();
    let mut places = vec![0.0_f64; count];
    let note = |column: &[usize], places: &mut Vec<f64>| {
        let size = column.len() as f64;
        for (place, block) in column.iter().enumerate() {
            places[*block] = (place as f64 + 0.5) / size;
        }
    };
    columns.iter().for_each(|column| note(column, &mut places));
    for sweep in 0..SWEEPS {
        let mut column_numbers: Vec<usize> = (0..columns.len()).collect();
        if sweep % 2 == 1 {
            column_numbers.reverse();
        }
        for number in column_numbers {
            let column = &mut columns[number];
            let mut keyed: Vec<(f64, usize)> = column
                .iter()
                .map(|block| {
                    let around = neighbours.into[*block].iter().chain(&neighbours.out[*block]);
                    let (mut sum, mut known) = (0.0, 0.0);
                    for other in around {
                        sum += places[*other];
                        known += 1.0;
                    }
                    (if known > 0.0 { sum / known } else { 0.5 }, *block)
                })
                .collect();
            keyed.sort_by(|(one, block), (other, next)| one.total_cmp(other).then(block.cmp(next)));
            *column = keyed.into_iter().map(|(_, block)| block).collect();
            note(column, &mut places);
        }
    }
}
