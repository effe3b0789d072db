//! Blocks in columns: each to the right of those that reach it, as far as that can be.

use super::Rect;

/// Something passes from a block to another.
pub(super) struct Arrow {
    pub(super) from: usize,
    pub(super) to: usize,
    /// How wide its label is.
    pub(super) room: f64,
}

/// Blocks with their places.
pub(super) struct Placed {
    pub(super) rects: Vec<Rect>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Between columns that nothing connects.
const COLUMN_GAP: f64 = 24.0;
const MAX_COLUMN_GAP: f64 = 190.0;
/// How wide a picture is, by its height.
const ASPECT: f64 = 1.7;
/// More columns than a few are put together while all is so much wider than high.
const FEW_COLUMNS: usize = 3;
const MAX_ASPECT: f64 = 2.6;
const SWEEPS: usize = 4;

pub(super) fn in_columns(sizes: &[Rect], arrows: &[Arrow], gap: f64) -> Placed {
    let mut neighbours = Neighbours::new(sizes.len(), arrows);
    let ranks = ranks(&neighbours);
    neighbours.ignore_loops();
    let connected = |block: &usize| neighbours.count(*block) > 0;
    let columns = ranks.iter().enumerate().filter(|(block, _)| connected(block)).map(|(_, rank)| rank + 1).max();
    let mut columns: Vec<Vec<usize>> = vec![Vec::new(); columns.unwrap_or(0)];
    for (block, rank) in ranks.iter().enumerate().filter(|(block, _)| connected(block)) {
        if let Some(column) = columns.get_mut(*rank) {
            column.push(block);
        }
    }
    let ranks = merge(&mut columns, sizes, gap, ranks);
    let alone: Vec<usize> = (0..sizes.len()).filter(|block| !connected(block)).collect();
    put_in_order(&mut columns, &neighbours);

    let height = |blocks: &[usize]| {
        blocks.iter().filter_map(|block| sizes.get(*block)).map(|size| size.height + gap).sum::<f64>()
    };
    let area: f64 = sizes.iter().map(|size| (size.width + gap) * (size.height + gap)).sum();
    let target =
        (area / ASPECT).sqrt().max(columns.iter().map(|column| height(column)).fold(0.0, f64::max).min(1200.0));
    let mut placed = Placed { rects: sizes.to_vec(), width: 0.0, height: 0.0 };
    let mut spans: Vec<(Vec<Vec<usize>>, f64)> = Vec::new();
    for (rank, column) in columns.iter().enumerate() {
        let room = arrows.iter().filter(|arrow| {
            ranks
                .get(arrow.from)
                .zip(ranks.get(arrow.to))
                .is_some_and(|(from, to)| from.min(to) <= &rank && from.max(to) == &(rank + 1))
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
                let Some(rect) = placed.rects.get_mut(*block) else { continue };
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

/// Has neighbouring columns be one, those that are shortest together first, until all is not too wide for its height.
fn merge(columns: &mut Vec<Vec<usize>>, sizes: &[Rect], gap: f64, mut ranks: Vec<usize>) -> Vec<usize> {
    let of = |column: &[usize]| column.iter().filter_map(|block| sizes.get(*block)).copied().collect::<Vec<Rect>>();
    let height = |column: &[usize]| of(column).iter().map(|size| size.height + gap).sum::<f64>();
    let width = |column: &[usize]| of(column).iter().map(|size| size.width + MAX_COLUMN_GAP * 0.7).fold(0.0, f64::max);
    loop {
        let tallest = columns.iter().map(|column| height(column)).fold(0.0, f64::max);
        let wide: f64 = columns.iter().map(|column| width(column)).sum();
        if columns.len() <= FEW_COLUMNS || wide < tallest * MAX_ASPECT {
            return ranks;
        }
        let together = |at: &usize| columns.iter().skip(*at).take(2).map(|column| height(column)).sum::<f64>();
        let best = (0..columns.len() - 1).min_by(|one, other| together(one).total_cmp(&together(other)));
        let Some(best) = best else { return ranks };
        let next = columns.remove(best + 1);
        columns.iter_mut().skip(best).take(1).for_each(|column| column.extend(&next));
        ranks.iter_mut().filter(|rank| **rank > best).for_each(|rank| *rank -= 1);
    }
}

/// What nothing connects, in rows below the rest.
fn rows(placed: &mut Placed, alone: &[usize], area: f64, gap: f64) {
    let width = placed.width.max((area * ASPECT).sqrt());
    let mut y = if placed.height > 0.0 { placed.height + gap } else { 0.0 };
    let (mut x, mut tallest) = (0.0, 0.0_f64);
    for block in alone {
        let Some(rect) = placed.rects.get_mut(*block) else { continue };
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

/// A column in as many as it takes.
fn cut(column: &[usize], target: f64, height: &impl Fn(&[usize]) -> f64, sizes: &[Rect], gap: f64) -> Vec<Vec<usize>> {
    let total = height(column);
    if total <= target {
        return vec![column.to_vec()];
    }
    let parts = (total / target).ceil();
    let (mut cut, mut reached) = (vec![Vec::new()], 0.0);
    for block in column {
        if reached > total / parts {
            cut.push(Vec::new());
            reached = 0.0;
        }
        reached += sizes.get(*block).map_or(0.0, |size| size.height + gap);
        if let Some(last) = cut.last_mut() {
            last.push(*block);
        }
    }
    cut
}

/// Who is connected to whom.
struct Neighbours {
    out: Vec<Vec<usize>>,
    into: Vec<Vec<usize>>,
}

impl Neighbours {
    fn new(count: usize, arrows: &[Arrow]) -> Self {
        let mut neighbours = Self { out: vec![Vec::new(); count], into: vec![Vec::new(); count] };
        for Arrow { from, to, .. } in arrows {
            if let Some(out) = neighbours.out.get_mut(*from) {
                out.push(*to);
            }
            if let Some(into) = neighbours.into.get_mut(*to) {
                into.push(*from);
            }
        }
        for list in neighbours.out.iter_mut().chain(&mut neighbours.into) {
            list.sort_unstable();
            list.dedup();
        }
        neighbours
    }

    fn ignore_loops(&mut self) {
        for list in [&mut self.out, &mut self.into] {
            list.iter_mut().enumerate().for_each(|(block, list)| list.retain(|other| *other != block));
        }
    }

    fn of(list: &[Vec<usize>], block: usize) -> &[usize] {
        list.get(block).map_or(&[], |list| list)
    }

    fn count(&self, block: usize) -> usize {
        Self::of(&self.out, block).len() + Self::of(&self.into, block).len()
    }
}

/// The column of each block: the longest way to it, without what leads back.
fn ranks(neighbours: &Neighbours) -> Vec<usize> {
    let count = neighbours.out.len();
    let mut order: Vec<usize> = (0..count).collect();
    // Who reaches more than reaches it is further to the left.
    order.sort_by_key(|block| {
        let (out, into) =
            (Neighbours::of(&neighbours.out, *block).len(), Neighbours::of(&neighbours.into, *block).len());
        (into.min(1), into.saturating_sub(out), std::cmp::Reverse(out), *block)
    });
    let order = finished(&order, neighbours);
    let mut position = vec![0; count];
    order.iter().enumerate().for_each(|(at, block)| position.iter_mut().skip(*block).take(1).for_each(|own| *own = at));
    let mut ranks = vec![0_usize; count];
    for block in order {
        let own = ranks.get(block).copied().unwrap_or_default();
        for next in Neighbours::of(&neighbours.out, block) {
            let is_forward = position.get(*next) > position.get(block);
            if let Some(rank) = ranks.get_mut(*next).filter(|rank| is_forward && **rank <= own) {
                *rank = own + 1;
            }
        }
    }
    // What only reaches others is straight before them.
    for block in 0..count {
        if Neighbours::of(&neighbours.into, block).is_empty() {
            let next = Neighbours::of(&neighbours.out, block).iter().filter_map(|next| ranks.get(*next)).min();
            let rank = next.copied().unwrap_or_default().saturating_sub(1);
            ranks.iter_mut().skip(block).take(1).for_each(|own| *own = rank);
        }
    }
    ranks
}

/// In depth-first order, each before those that it leads to but for those that lead back to it.
fn finished(order: &[usize], neighbours: &Neighbours) -> Vec<usize> {
    let mut seen = vec![false; order.len()];
    let mut done = Vec::new();
    for start in order {
        let mut stack = vec![(*start, 0)];
        if seen.get(*start) == Some(&true) {
            continue;
        }
        seen.iter_mut().skip(*start).take(1).for_each(|seen| *seen = true);
        while let Some((block, place)) = stack.pop() {
            match Neighbours::of(&neighbours.out, block).get(place) {
                Some(next) => {
                    stack.push((block, place + 1));
                    if let Some(seen) = seen.get_mut(*next).filter(|seen| !**seen) {
                        *seen = true;
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

/// Orders each column by where the neighbours are.
fn put_in_order(columns: &mut [Vec<usize>], neighbours: &Neighbours) {
    let count = neighbours.out.len();
    let mut places = vec![0.0_f64; count];
    let note = |column: &[usize], places: &mut Vec<f64>| {
        let size = f64::from(u32::try_from(column.len().max(1)).unwrap_or(u32::MAX));
        for (place, block) in (0_u32..).zip(column) {
            places.iter_mut().skip(*block).take(1).for_each(|own| *own = (f64::from(place) + 0.5) / size);
        }
    };
    columns.iter().for_each(|column| note(column, &mut places));
    for sweep in 0..SWEEPS {
        let mut column_numbers: Vec<usize> = (0..columns.len()).collect();
        if sweep % 2 == 1 {
            column_numbers.reverse();
        }
        for number in column_numbers {
            let Some(column) = columns.get_mut(number) else { continue };
            let mut keyed: Vec<(f64, usize)> = column
                .iter()
                .map(|block| {
                    let around =
                        Neighbours::of(&neighbours.into, *block).iter().chain(Neighbours::of(&neighbours.out, *block));
                    let (mut sum, mut known) = (0.0, 0.0);
                    for place in around.filter_map(|other| places.get(*other)) {
                        sum += place;
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
