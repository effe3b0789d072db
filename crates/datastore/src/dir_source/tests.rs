mod editors;
mod limits;
mod replaced;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::mpsc::RecvTimeoutError;

use tempfile::TempDir;
use tortie_model::SyncStatus;
use tortie_resources::stored::built_in_tier;

use super::*;
use crate::Fallback;
use crate::built_in::COUNT as BUILT_IN;
use crate::{Event, Watching, channel, watch};

const INTERVAL: Duration = Duration::from_millis(500);
/// Interval between scans with which changes are noticed by their events only.
const NEVER: Duration = Duration::from_secs(3600);

fn tier(name: &str, order: u32) -> String {
    format!("apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {{name: {name}}}\nspec: {{order: {order}}}\n")
}

struct Watched {
    watching: Watching,
    /// Names and orders of the tiers of files, as a consumer sees them.
    tiers: BTreeMap<String, f64>,
}

impl Watched {
    fn new(dir: &TempDir) -> Self {
        Self::within(dir.path(), DirAccess::default())
    }

    fn within(dir: &Path, access: DirAccess) -> Self {
        await_events(dir);
        let source = DirSource::new(dir, Options::default()).read_within(access).rescan_every(NEVER);
        let mut watched = Self { watching: watch(source).unwrap(), tiers: BTreeMap::new() };
        while !matches!(watched.next(), Event::Status(SyncStatus::InSync)) {}
        watched
    }

    fn next(&mut self) -> Event {
        let event = self.watching.events.recv_timeout(Duration::from_secs(20)).unwrap();
        if let Event::Updates { updates, .. } = &event {
            for update in updates {
                let Update::Tier(name, tier) = update else { continue };
                if built_in_tier(name.as_str()).is_some() {
                    continue;
                }
                match tier {
                    Some(tier) => self.tiers.insert(name.to_string(), tier.order.unwrap().get()),
                    None => self.tiers.remove(name.as_str()),
                };
            }
        }
        event
    }

    fn until(&mut self, expected: &[(&str, f64)]) {
        let expected: BTreeMap<String, f64> = expected.iter().map(|(n, o)| ((*n).to_owned(), *o)).collect();
        while self.tiers != expected {
            self.next();
        }
    }
}

/// Waits until the kernel provides events of a directory. The number of watchers is limited for
/// all processes of a user together, and without events the tests would wait for the next scan.
fn await_events(dir: &Path) {
    let end = Instant::now() + Duration::from_secs(20);
    let ignore = |_: notify::Result<notify::Event>| {};
    let watch = || notify::recommended_watcher(ignore)?.watch(dir, RecursiveMode::Recursive);
    while let Err(error) = watch() {
        assert!(Instant::now() < end, "no file events for tests: {error}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn files_come_change_and_go() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("a.yaml"), tier("a", 1)).unwrap();
    fs::write(dir.path().join("notes.txt"), "not a manifest").unwrap();
    let mut watched = Watched::new(&dir);
    watched.until(&[("a", 1.0)]);
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("sub/b.yml"), tier("b", 2)).unwrap();
    watched.until(&[("a", 1.0), ("b", 2.0)]);
    // A write-rename, as editors do.
    fs::write(dir.path().join(".a.tmp"), tier("a", 3)).unwrap();
    fs::rename(dir.path().join(".a.tmp"), dir.path().join("a.yaml")).unwrap();
    watched.until(&[("a", 3.0), ("b", 2.0)]);
    fs::remove_dir_all(dir.path().join("sub")).unwrap();
    watched.until(&[("a", 3.0)]);
}

#[test]
fn quick_rewrites_of_equal_length_are_all_seen() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, tier("a", 1)).unwrap();
    let mut watched = Watched::new(&dir);
    for order in [2, 3, 4, 5] {
        fs::write(&path, tier("a", order)).unwrap();
        watched.until(&[("a", f64::from(order))]);
    }
}

#[test]
fn a_mounted_config_map_swaps_its_versions() {
    let dir = TempDir::new().unwrap();
    let version = |name: &str, order| {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("a.yaml"), tier("a", order)).unwrap();
    };
    version("..v1", 1);
    symlink("..v1", dir.path().join("..data")).unwrap();
    symlink("..data/a.yaml", dir.path().join("a.yaml")).unwrap();
    let mut watched = Watched::new(&dir);
    watched.until(&[("a", 1.0)]);
    version("..v2", 2);
    symlink("..v2", dir.path().join("..data_tmp")).unwrap();
    fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
    fs::remove_dir_all(dir.path().join("..v1")).unwrap();
    watched.until(&[("a", 2.0)]);
}

#[test]
fn events_of_any_names_lead_to_the_changed_files() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/a.yaml"), tier("a", 1)).unwrap();
    fs::write(at("b.yaml"), tier("b", 1)).unwrap();
    let mut watched = Watched::new(&dir);
    fs::write(at("sub/a.yaml"), tier("a", 2)).unwrap();
    watched.until(&[("a", 2.0), ("b", 1.0)]);
    fs::rename(at("sub"), at("other")).unwrap();
    fs::write(at("other/a.yaml"), tier("a", 3)).unwrap();
    watched.until(&[("a", 3.0), ("b", 1.0)]);
    fs::hard_link(at("b.yaml"), at(".hidden")).unwrap();
    fs::write(at(".hidden"), tier("b", 2)).unwrap();
    watched.until(&[("a", 3.0), ("b", 2.0)]);
    symlink(".deep/c", at("c.yaml")).unwrap();
    fs::create_dir(at(".deep")).unwrap();
    fs::write(at(".deep/c"), tier("c", 1)).unwrap();
    watched.until(&[("a", 3.0), ("b", 2.0), ("c", 1.0)]);
    fs::write(at(".deep/c"), tier("c", 2)).unwrap();
    watched.until(&[("a", 3.0), ("b", 2.0), ("c", 2.0)]);
    fs::create_dir_all(at("new/sub")).unwrap();
    fs::write(at("new/sub/d.yaml"), tier("d", 1)).unwrap();
    fs::remove_dir_all(at("other")).unwrap();
    watched.until(&[("b", 2.0), ("c", 2.0), ("d", 1.0)]);
}

#[test]
fn links_to_a_directory_hide_no_event_and_leave_it_watched() {
    for follow_links in [false, true] {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("sub/a.yaml"), tier("a", 1)).unwrap();
        // The last name that is watched is the one of events, and the order is arbitrary.
        let links = [".cur", ".last", "..data", ".x", "visible"];
        links.iter().for_each(|link| symlink("sub", at(link)).unwrap());
        let mut watched = Watched::within(dir.path(), DirAccess { follow_links, ..DirAccess::default() });
        let mut order = 1;
        let mut edit = || {
            order += 1;
            fs::write(at("sub/a.yaml"), tier("a", order)).unwrap();
            watched.until(&[("a", f64::from(order))]);
            // The files are not young any more.
            thread::sleep(INTERVAL);
        };
        edit();
        for link in links.iter().rev() {
            fs::remove_file(at(link)).unwrap();
            edit();
            edit();
        }
    }
}

#[test]
fn a_link_that_leads_to_another_directory_leaves_the_former_one_watched() {
    for follow_links in [false, true] {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        fs::create_dir(at(".v1")).unwrap();
        fs::write(at("sub/a.yaml"), tier("a", 1)).unwrap();
        let links = [".cur", ".last", "..data", ".x"];
        links.iter().for_each(|link| symlink("sub", at(link)).unwrap());
        let mut watched = Watched::within(dir.path(), DirAccess { follow_links, ..DirAccess::default() });
        watched.until(&[("a", 1.0)]);
        for link in links {
            symlink(".v1", at(".new")).unwrap();
            fs::rename(at(".new"), at(link)).unwrap();
        }
        thread::sleep(INTERVAL);
        for order in 2..4 {
            fs::write(at("sub/a.yaml"), tier("a", order)).unwrap();
            watched.until(&[("a", f64::from(order))]);
            thread::sleep(INTERVAL);
        }
    }
}

#[test]
fn a_directory_behind_a_link_is_watched() {
    let parent = TempDir::new().unwrap();
    let (dir, link) = (parent.path().join("dir"), parent.path().join("link"));
    fs::create_dir_all(dir.join("sub")).unwrap();
    symlink("dir", &link).unwrap();
    let mut watched = Watched::within(&link, DirAccess::default());
    fs::write(dir.join("a.yaml"), tier("a", 1)).unwrap();
    watched.until(&[("a", 1.0)]);
    fs::write(dir.join("sub/b.yaml"), tier("b", 1)).unwrap();
    watched.until(&[("a", 1.0), ("b", 1.0)]);
    fs::write(dir.join("a.yaml"), "kind: [").unwrap();
    let problems = loop {
        let Event::Problems(problems) = watched.next() else { continue };
        if !problems.is_empty() {
            break problems;
        }
    };
    let path = link.join("a.yaml").display().to_string();
    assert!(problems[0].to_string().starts_with(&format!("{path}:")), "{}", problems[0]);
}

#[test]
fn a_request_finds_changes_without_events() {
    let parent = TempDir::new().unwrap();
    let (dir, outside) = (parent.path().join("dir"), parent.path().join("outside"));
    fs::create_dir(&dir).unwrap();
    fs::write(&outside, tier("a", 1)).unwrap();
    symlink(&outside, dir.join("a.yaml")).unwrap();
    // Young files are read again, at any time of a busy machine.
    thread::sleep(INTERVAL);
    let mut watched = Watched::within(&dir, DirAccess { follow_links: true, ..DirAccess::default() });
    watched.until(&[("a", 1.0)]);
    while watched.watching.events.try_recv().is_ok() {}
    fs::write(&outside, tier("a", 2)).unwrap();
    let silence = watched.watching.events.recv_timeout(INTERVAL);
    assert!(silence.is_none(), "{silence:?}");
    watched.watching.resend.look_again();
    watched.until(&[("a", 2.0)]);
}

#[test]
fn a_directory_that_goes_away_deletes_nothing() {
    let parent = TempDir::new().unwrap();
    let (dir, away) = (parent.path().join("dir"), parent.path().join("away"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a.yaml"), tier("a", 1)).unwrap();
    let watching = watch(DirSource::new(&dir, Options::default()).rescan_every(INTERVAL)).unwrap();
    let mut watched = Watched { watching, tiers: BTreeMap::new() };
    watched.until(&[("a", 1.0)]);
    fs::rename(&dir, &away).unwrap();
    while !matches!(watched.next(), Event::Unavailable { .. }) {}
    assert_eq!(watched.tiers.len(), 1);
    fs::write(away.join("a.yaml"), tier("a", 2)).unwrap();
    fs::rename(&away, &dir).unwrap();
    watched.until(&[("a", 2.0)]);
}

#[test]
fn links_in_circles_end() {
    let dir = TempDir::new().unwrap();
    symlink(".", dir.path().join("loop")).unwrap();
    fs::write(dir.path().join("a.yaml"), tier("a", 1)).unwrap();
    let mut source = DirSource::new(dir.path(), Options::default());
    assert_eq!(source.read().unwrap().len(), BUILT_IN + 1);
}

#[test]
fn a_resend_includes_last_good_versions() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("a.yaml"), tier("a", 1)).unwrap();
    let mut watched = Watched::new(&dir);
    fs::write(dir.path().join("a.yaml"), tier("a", 1).replace("order: 1", "order: first")).unwrap();
    while !matches!(watched.next(), Event::Problems(problems) if !problems.is_empty()) {}
    watched.tiers.clear();
    watched.watching.resend.ask();
    while !matches!(watched.next(), Event::Status(SyncStatus::InSync)) {}
    watched.until(&[("a", 1.0)]);
}

/// Returns the problems as text, of a directory that is read step by step.
fn problems_of(source: &DirSource) -> Vec<String> {
    source.problems().map(|problem| problem.to_string()).collect()
}

fn keys(updates: &[Update]) -> Vec<(String, bool)> {
    updates.iter().map(|update| (format!("{:?}", update.key()), update.exists())).collect()
}

#[test]
fn a_renamed_file_that_is_shorter_does_not_wait() {
    let dir = TempDir::new().unwrap();
    let (path, new) = (dir.path().join("a.yaml"), dir.path().join(".a.yaml"));
    fs::write(&path, format!("{}---\n{}", tier("a", 1), tier("b", 2))).unwrap();
    let mut source = DirSource::new(dir.path(), Options::default());
    source.read().unwrap();
    fs::write(&new, tier("a", 1)).unwrap();
    fs::rename(&new, &path).unwrap();
    assert_eq!(keys(&source.read().unwrap()), [(r#"Tier("b")"#.to_owned(), false)]);
}

#[test]
fn a_directory_that_is_not_there_is_waited_for() {
    let parent = TempDir::new().unwrap();
    let dir = parent.path().join("dir");
    let watching = watch(DirSource::new(&dir, Options::default()).rescan_every(INTERVAL)).unwrap();
    let mut watched = Watched { watching, tiers: BTreeMap::new() };
    assert!(matches!(watched.next(), Event::Status(SyncStatus::Resync)));
    let Event::Unavailable { why, .. } = watched.next() else { panic!("the directory cannot be there") };
    assert!(why.starts_with(&format!("{}: No such file or directory", dir.display())), "{why}");
    // No event is sent, in particular no end of the resync.
    let silence = watched.watching.events.recv_timeout(INTERVAL * 2);
    assert!(silence.is_none(), "{silence:?}");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a.yaml"), tier("a", 1)).unwrap();
    while !matches!(watched.next(), Event::Status(SyncStatus::InSync)) {}
    watched.until(&[("a", 1.0)]);
}

#[test]
fn events_come_from_the_current_directory() {
    let parent = TempDir::new().unwrap();
    let (dir, other) = (parent.path().join("dir"), parent.path().join("other"));
    for (path, order) in [(&dir, 1), (&other, 2)] {
        fs::create_dir(path).unwrap();
        fs::write(path.join("a.yaml"), tier("a", order)).unwrap();
    }
    let watching = watch(DirSource::new(&dir, Options::default()).rescan_every(NEVER)).unwrap();
    let mut watched = Watched { watching, tiers: BTreeMap::new() };
    watched.until(&[("a", 1.0)]);
    fs::rename(&dir, parent.path().join("away")).unwrap();
    while !matches!(watched.next(), Event::Unavailable { .. }) {}
    fs::rename(&other, &dir).unwrap();
    watched.until(&[("a", 2.0)]);
    fs::write(dir.join("a.yaml"), tier("a", 3)).unwrap();
    watched.until(&[("a", 3.0)]);
}

#[test]
fn an_unreadable_file_is_reported_and_keeps_its_last_good_version() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    for (number, name) in (1..).zip(["text.yaml", "huge.yaml", "link.yaml", "loop.yaml", "sub/deep.yaml"]) {
        fs::write(at(name), tier(&format!("t{number}"), number)).unwrap();
    }
    let mut source = DirSource::new(dir.path(), Options::default());
    assert_eq!(source.read().unwrap().len(), BUILT_IN + 5);
    fs::write(at("text.yaml"), [0xff; 200]).unwrap();
    // The whole file is a hole, which takes no space on disk.
    fs::OpenOptions::new().write(true).open(at("huge.yaml")).unwrap().set_len((1 << 30) + 1).unwrap();
    for (name, target) in [("link.yaml", "nowhere"), ("loop.yaml", "loop.yaml"), ("sub", "sub")] {
        fs::rename(at(name), at(&format!(".{name}"))).unwrap();
        symlink(target, at(name)).unwrap();
    }
    assert_eq!(source.read().unwrap(), []);
    let looped = "cannot be read: Too many levels of symbolic links (os error 40)";
    let expected = [
        ("huge.yaml", "is larger than 64 MiB (--max-file-mib)"),
        ("link.yaml", "is a link to nothing"),
        ("loop.yaml", looped),
        ("sub", looped),
        ("text.yaml", "is not UTF-8 text: invalid utf-8 sequence of 1 bytes from index 0"),
    ];
    assert_eq!(problems_of(&source), expected.map(|(name, problem)| format!("{}: {problem}", at(name).display())));
    let fallbacks: Vec<Fallback> = source.problems().map(|problem| problem.fallback).collect();
    assert_eq!(
        fallbacks,
        [Fallback::LastGood, Fallback::LastGood, Fallback::LastGood, Fallback::Nothing, Fallback::LastGood]
    );
    // A second scan finds no change.
    assert!(!source.look(None).unwrap().touched);
    for name in ["text.yaml", "huge.yaml", "link.yaml", "loop.yaml"] {
        fs::remove_file(at(name)).unwrap();
    }
    assert_eq!(source.read().unwrap().len(), 4);
    fs::remove_file(at("sub")).unwrap();
    fs::rename(at(".sub"), at("sub")).unwrap();
    assert_eq!(source.read().unwrap(), []);
    assert_eq!(problems_of(&source), [""; 0]);
}

#[test]
fn a_file_that_was_never_read_has_no_fallback() {
    let dir = TempDir::new().unwrap();
    symlink("nowhere", dir.path().join("a.yaml")).unwrap();
    symlink("nowhere", dir.path().join("README")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("b.json")).unwrap();
    let mut source = DirSource::new(dir.path(), Options::default());
    assert_eq!(source.read().unwrap().len(), BUILT_IN);
    let problems: Vec<_> = source.problems().map(|problem| (problem.problem.message, problem.fallback)).collect();
    let expected = ["is a link to nothing", "is neither a file nor a directory"];
    assert_eq!(problems, expected.map(|what| (what.to_owned(), Fallback::Nothing)));
}

#[test]
fn a_file_may_become_a_directory_and_a_file_again() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, tier("a", 1)).unwrap();
    let mut source = DirSource::new(dir.path(), Options::default());
    source.read().unwrap();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("b.yaml"), tier("a", 2)).unwrap();
    assert_eq!(keys(&source.read().unwrap()), [(r#"Tier("a")"#.to_owned(), true)]);
    fs::remove_dir_all(&path).unwrap();
    fs::write(&path, tier("a", 2)).unwrap();
    assert_eq!(source.read().unwrap(), []);
    assert_eq!(problems_of(&source), [""; 0]);
}

#[test]
fn the_default_allow_profile_exists_unless_a_manifest_defines_another() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.yaml");
    let mut source = DirSource::new(dir.path(), Options::default());
    let built_in = source.read().unwrap();
    assert_eq!(keys(&built_in).len(), BUILT_IN);
    let inbound = |updates: &[Update]| {
        updates.iter().find_map(|update| match update {
            Update::ProfileRules(name, Some(rules)) => {
                assert_eq!(name.as_str(), "projectcalico-default-allow");
                Some(rules.inbound.to_vec())
            }
            _ => None,
        })
    };
    assert_eq!(inbound(&built_in).unwrap(), [tortie_model::Rule::new(tortie_model::RuleAction::Allow)]);
    let own = "apiVersion: projectcalico.org/v3\nkind: Profile\nmetadata: {name: projectcalico-default-allow}\nspec: \
               {ingress: [{action: Deny}]}\n";
    fs::write(&path, own).unwrap();
    assert_eq!(inbound(&source.read().unwrap()).unwrap()[0].action, tortie_model::RuleAction::Deny);
    fs::remove_file(&path).unwrap();
    assert_eq!(inbound(&source.read().unwrap()), inbound(&built_in));
    // Defined from the beginning, and sent again in a resync.
    fs::write(&path, own).unwrap();
    let watching = watch(DirSource::new(dir.path(), Options::default()).rescan_every(INTERVAL)).unwrap();
    for expected in [tortie_model::RuleAction::Deny, tortie_model::RuleAction::Allow] {
        loop {
            let Event::Updates { updates, .. } = watching.events.recv_timeout(Duration::from_secs(20)).unwrap() else {
                continue;
            };
            assert_eq!(inbound(&updates).unwrap()[0].action, expected);
            break;
        }
        let _ = fs::remove_file(&path);
    }
    watching.resend.ask();
    loop {
        let Event::Updates { updates, .. } = watching.events.recv_timeout(Duration::from_secs(20)).unwrap() else {
            continue;
        };
        assert_eq!(updates, built_in);
        break;
    }
}

#[test]
fn reading_is_no_reason_to_read_again() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("a.yaml"), tier("a", 1)).unwrap();
    let (feed, _watching) = channel();
    let (hint, hints) = sync_channel(1);
    let source = DirSource::new(dir.path(), Options::default());
    let mut watch = Watch::new(source, &feed, hint);
    watch.keep_watching();
    assert!(watch.source.look(None).is_ok_and(|turn| turn.touched));
    assert_eq!(hints.recv_timeout(INTERVAL), Err(RecvTimeoutError::Timeout));
    fs::write(dir.path().join("a.yaml"), tier("a", 2)).unwrap();
    assert_eq!(hints.recv_timeout(Duration::from_secs(20)), Ok(()));
}

#[test]
fn a_new_hidden_directory_leads_to_another_scan() {
    let dir = TempDir::new().unwrap();
    let (feed, _watching) = channel();
    let (hint, hints) = sync_channel(1);
    let source = DirSource::new(dir.path(), Options::default()).rescan_every(NEVER);
    let mut watch = Watch::new(source, &feed, hint);
    let mut look = || {
        let names = watch.changed_names(true);
        let is_scan = names.is_none();
        watch.source.look(names).unwrap();
        (is_scan, watch.source.directory.next_look(watch.source.begun.elapsed()))
    };
    assert_eq!(look(), (true, None));
    fs::create_dir(dir.path().join(".deep")).unwrap();
    hints.recv_timeout(Duration::from_secs(20)).unwrap();
    let (is_scan, next) = look();
    assert!(!is_scan);
    assert!(next.is_some_and(|next| next <= Duration::from_secs(1)), "{next:?}");
}

#[test]
fn a_restart_restores_last_good_versions() {
    let (dir, state) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let at = |name: &str| dir.path().join(name);
    for (name, order) in [("a", 1), ("b", 2), ("c", 3)] {
        fs::write(at(&format!("{name}.yaml")), tier(name, order)).unwrap();
    }
    let start = || {
        let source = DirSource::new(dir.path(), Options::default()).keep_last_good(state.path().join("s"), "n1");
        let mut watched = Watched { watching: watch(source).unwrap(), tiers: BTreeMap::new() };
        while !matches!(watched.next(), Event::Status(SyncStatus::InSync)) {}
        watched
    };
    let store = last_good::Store::open(&state.path().join("s"), dir.path(), "n1").unwrap();
    let records = || store.load(|path, why| panic!("{}: {why}", path.display())).unwrap();
    let until_recorded = |count: usize| {
        let end = Instant::now() + Duration::from_secs(20);
        while records().len() != count {
            assert!(Instant::now() < end, "{:?}", records());
            thread::sleep(Duration::from_millis(10));
        }
    };
    start().until(&[("a", 1.0), ("b", 2.0), ("c", 3.0)]);
    until_recorded(3);
    // One changes, one cannot be read, one is gone.
    fs::write(at("a.yaml"), tier("a", 4)).unwrap();
    fs::write(at("b.yaml"), "{]\n").unwrap();
    fs::remove_file(at("c.yaml")).unwrap();
    let mut watched = start();
    assert_eq!(watched.tiers["b"], 2.0);
    watched.until(&[("a", 4.0), ("b", 2.0)]);
    until_recorded(2);
    drop(watched);
    // Only the records are left.
    fs::remove_file(at("a.yaml")).unwrap();
    fs::remove_file(at("b.yaml")).unwrap();
    let watched = start();
    assert_eq!(watched.tiers.len(), 2, "an empty directory may not be mounted yet");
}

#[test]
fn a_source_that_waits_shows_life() {
    let dir = TempDir::new().unwrap();
    let watching = watch(DirSource::new(dir.path(), Options::default()).rescan_every(INTERVAL / 10)).unwrap();
    let (sign, signs) = sync_channel(1);
    watching.resend.on_life(move || {
        let _ = sign.try_send(());
    });
    for _ in 0..3 {
        assert_eq!(signs.recv_timeout(Duration::from_secs(20)), Ok(()));
    }
}
