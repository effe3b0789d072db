use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;
use tortie_model::Key;

use super::*;

const INTERVAL: Duration = Duration::from_millis(500);

fn tier(name: &str, order: u32) -> String {
    format!("apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {{name: {name}}}\nspec: {{order: {order}}}\n")
}

struct Watched {
    watching: Watching,
    /// Tier names and orders, as a consumer sees them.
    tiers: BTreeMap<String, f64>,
}

impl Watched {
    fn new(dir: &TempDir) -> Self {
        let watching = DirSource::new(dir.path(), Options::default()).watch(INTERVAL).unwrap();
        let mut watched = Self { watching, tiers: BTreeMap::new() };
        while !matches!(watched.next(), Event::Status(SyncStatus::InSync)) {}
        watched
    }

    fn next(&mut self) -> Event {
        let event = self.watching.events.recv_timeout(Duration::from_secs(20)).unwrap();
        if let Event::Updates { updates, .. } = &event {
            for update in updates {
                let Key::Tier(name) = &update.key else { continue };
                match &update.value {
                    Some(tortie_model::Value::Tier(tier)) => {
                        self.tiers.insert(name.to_string(), tier.order.unwrap().get());
                    }
                    _ => {
                        self.tiers.remove(name.as_str());
                    }
                }
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
fn a_directory_that_goes_away_deletes_nothing() {
    let parent = TempDir::new().unwrap();
    let (dir, away) = (parent.path().join("dir"), parent.path().join("away"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a.yaml"), tier("a", 1)).unwrap();
    let watching = DirSource::new(&dir, Options::default()).watch(INTERVAL).unwrap();
    let mut watched = Watched { watching, tiers: BTreeMap::new() };
    watched.until(&[("a", 1.0)]);
    fs::rename(&dir, &away).unwrap();
    while !matches!(watched.next(), Event::Unavailable(_)) {}
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
    assert_eq!(source.read().unwrap().len(), 1);
}

#[test]
fn everything_can_be_told_again_last_good_versions_included() {
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
