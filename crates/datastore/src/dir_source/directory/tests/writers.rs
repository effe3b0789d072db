//! Writers of any style, in any order, and the resulting state.

use proptest::prelude::*;

use super::*;

/// Ways to replace a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Style {
    /// `cat new >a.yaml`
    InPlace,
    /// `: >a.yaml; cat new >a.yaml`
    EmptyFirst,
    /// `rm a.yaml; cat new >a.yaml`
    RemoveFirst,
    /// `: >a.yaml`, and each piece by `>>a.yaml`
    Append,
    /// The first piece by `>a.yaml`, the others by `>>a.yaml`
    AppendToFirst,
    /// `cat new >.new; mv .new a.yaml`
    Rename,
    /// `mv a.yaml a.yaml~; cat new >a.yaml`
    BackUp,
}

#[derive(Clone, Debug)]
pub(super) struct Edit {
    pub(super) style: Style,
    pub(super) cuts: Vec<prop::sample::Index>,
    /// Pause of the writer after each step in milliseconds, and whether the reader scans before and
    /// after it.
    pub(super) pauses: Vec<(u64, bool, bool)>,
    pub(super) new: Vec<(char, u32)>,
}

/// Does an edit step by step; `look` is called where the reader scans.
pub(super) fn edit(world: &World, edit: &Edit, look: &dyn Fn()) {
    let whole = text(&edit.new);
    let mut cuts: Vec<usize> = edit.cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
    if matches!(edit.style, Style::AppendToFirst) {
        // A piece that ends where a whole file could end is indistinguishable from one: the change
        // of the first piece takes effect.
        let document = |at: &usize| *at == whole.len() || whole[*at..].starts_with("---");
        cuts.retain(document);
    }
    cuts.extend([0, whole.len()]);
    cuts.sort_unstable();
    cuts.dedup();
    let pieces: Vec<&str> = cuts.windows(2).map(|cut| &whole[cut[0]..cut[1]]).collect();
    let pauses = RefCell::new(edit.pauses.iter().cycle());
    let pause = || {
        let (pause, before, after) = *pauses.borrow_mut().next().unwrap();
        if before {
            look();
        }
        world.pass(millis(pause));
        if after {
            look();
        }
    };
    let fill = |path: &str, closes: bool| {
        for piece in &pieces {
            world.change(path, |all| all.push_str(piece));
            if closes {
                world.close(path);
            }
            pause();
        }
        if !closes {
            world.close(path);
        }
    };
    match edit.style {
        Style::InPlace => {
            world.change(FILE, String::clear);
            pause();
            fill(FILE, false);
        }
        Style::EmptyFirst => {
            world.change(FILE, String::clear);
            world.close(FILE);
            pause();
            fill(FILE, false);
        }
        Style::Append => {
            world.change(FILE, String::clear);
            world.close(FILE);
            pause();
            fill(FILE, true);
        }
        Style::AppendToFirst => {
            world.change(FILE, String::clear);
            fill(FILE, true);
        }
        Style::RemoveFirst => {
            world.remove(FILE);
            pause();
            world.create(FILE);
            pause();
            fill(FILE, false);
        }
        Style::Rename => {
            world.create(".new");
            fill(".new", false);
            world.rename(".new", FILE);
        }
        Style::BackUp => {
            world.rename(FILE, "a.yaml~");
            pause();
            world.create(FILE);
            fill(FILE, false);
        }
    }
    pause();
}

pub(super) fn tiers() -> impl Strategy<Value = Vec<(char, u32)>> {
    prop::sample::subsequence(vec!['a', 'b', 'c', 'd', 'e'], 1..=5)
        .prop_flat_map(|names| names.into_iter().map(|name| (Just(name), 1..30_u32)).collect::<Vec<_>>())
}

pub(super) fn an_edit() -> impl Strategy<Value = Edit> {
    use Style::{Append, AppendToFirst, BackUp, EmptyFirst, InPlace, RemoveFirst, Rename};
    let style = prop::sample::select(vec![InPlace, EmptyFirst, RemoveFirst, Append, AppendToFirst, Rename, BackUp]);
    let cuts = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
    let pause = (0..990_u64, any::<bool>(), any::<bool>());
    (style, cuts, prop::collection::vec(pause, 1..6), tiers()).prop_map(|(style, cuts, pauses, new)| Edit {
        style,
        cuts,
        pauses,
        new,
    })
}

/// Operations of arbitrary processes on files.
#[derive(Clone, Debug)]
pub(super) enum FileOperation {
    Create(&'static str),
    Append(&'static str, Vec<(char, u32)>),
    Close(&'static str),
    Remove(&'static str),
    Rename(&'static str, &'static str),
    Pass(u64),
    Look,
}

impl FileOperation {
    pub(super) fn do_in(&self, world: &World) {
        match self {
            Self::Create(file) => world.create(file),
            Self::Append(file, tiers) => world.change(file, |all| all.push_str(&format!("---\n{}", text(tiers)))),
            Self::Close(file) => world.close(file),
            Self::Remove(file) => world.remove(file),
            Self::Rename(from, to) => world.rename(from, to),
            Self::Pass(time) => world.pass(millis(*time)),
            Self::Look => drop(world.look()),
        }
    }
}

pub(super) fn a_file_operation() -> impl Strategy<Value = FileOperation> {
    let file = || prop::sample::select(vec![FILE, "b.yaml", "c.yaml", ".new"]);
    prop_oneof![
        file().prop_map(FileOperation::Create),
        (file(), tiers()).prop_map(|(file, tiers)| FileOperation::Append(file, tiers)),
        file().prop_map(FileOperation::Close),
        file().prop_map(FileOperation::Remove),
        (file(), file()).prop_map(|(from, to)| FileOperation::Rename(from, to)),
        prop::sample::select(vec![0_u64, 1, 9, 40, 110, 900, 1100, 9000]).prop_map(FileOperation::Pass),
        Just(FileOperation::Look),
        Just(FileOperation::Look),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn objects_in_both_versions_survive_and_the_last_version_wins(
        first in tiers(),
        edits in prop::collection::vec(an_edit(), 1..4),
        hears in any::<bool>(),
        by_name in any::<bool>(),
    ) {
        let world = World { by_name, ..World::with(hears, &text(&first)) };
        let mut old = first;
        for each in &edits {
            let look = || {
                world.look();
                for (name, order) in old.iter().filter(|(name, _)| each.new.iter().any(|(other, _)| other == name)) {
                    let reported = world.tiers.borrow().get(&name.to_string()).copied();
                    let possible = each.new.iter().filter(|(other, _)| other == name).map(|(_, order)| *order);
                    let possible: Vec<f64> = possible.chain([*order]).map(f64::from).collect();
                    assert!(reported.is_some_and(|order| possible.contains(&order)), "{name}: {reported:?}, not {possible:?}");
                }
            };
            edit(&world, each, &look);
            world.look_on(AFTER + millis(1));
            let expected: Vec<String> = each.new.iter().map(|(name, order)| format!("{name}{order}")).collect();
            prop_assert_eq!(world.tiers(), expected.join(" "));
            prop_assert_eq!(world.directory.borrow().state.problems().count(), 0);
            old.clone_from(&each.new);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

    #[test]
    fn the_final_files_win_after_any_changes(
        operations in prop::collection::vec(a_file_operation(), 0..40),
        hears in any::<bool>(),
        looks_alike in any::<bool>(),
        by_name in any::<bool>(),
    ) {
        let world = World { looks_alike, by_name, ..World::new(hears) };
        for operation in &operations {
            operation.do_in(&world);
        }
        world.look_on(EMPTY + AFTER + AFTER);
        let problems_of = |world: &World| {
            let directory = world.directory.borrow();
            directory.state.problems().map(|problem| problem.to_string()).collect::<Vec<_>>()
        };
        let fresh = World::new(false);
        fresh.files.replace(world.files.borrow().clone());
        fresh.now.set(world.now.get());
        fresh.look();
        prop_assert_eq!((world.tiers(), problems_of(&world)), (fresh.tiers(), problems_of(&fresh)));
        prop_assert_eq!(world.directory.borrow().next_look(world.now.get()), None);
    }
}
