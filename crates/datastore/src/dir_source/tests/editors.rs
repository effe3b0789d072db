//! Real files, replaced as programs do it: objects that are in both versions are never lost, and
//! the new version takes effect soon.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::thread::{self, sleep};

use super::*;

const OLD: &str = "a.yaml";

fn both(order: u32) -> String {
    format!("{}---\n{}", tier("a", order), tier("b", 2))
}

/// Lets `edit` give `a.yaml` another order of `a`, while `b` must stay. Returns the time from the
/// end of the edit until the source reported the change; 0 if it did so before.
fn replaced(dir: &TempDir, edit: impl FnOnce(&Path, &str) + Send) -> Duration {
    let mut watched = Watched::new(dir);
    watched.until(&[("a", 1.0), ("b", 2.0)]);
    thread::scope(|scope| {
        let editing = scope.spawn(|| {
            edit(dir.path(), &both(7));
            Instant::now()
        });
        let received = loop {
            let event = watched.next();
            assert!(!matches!(&event, Event::Problems(problems) if !problems.is_empty()), "{event:?}");
            assert!(watched.tiers.contains_key("a") && watched.tiers.contains_key("b"), "{:?}", watched.tiers);
            if watched.tiers["a"] != 1.0 {
                break Instant::now();
            }
        };
        assert_eq!((watched.tiers["a"], watched.tiers["b"]), (7.0, 2.0));
        received.saturating_duration_since(editing.join().unwrap())
    })
}

fn edited(edit: impl FnOnce(&Path, &str) + Send) -> Duration {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join(OLD), both(1)).unwrap();
    replaced(&dir, edit)
}

/// Lets a shell do the edit; `new` in it is a file with the new version.
fn edited_by(script: &str) -> Duration {
    edited(|dir, new| {
        let other = TempDir::new().unwrap();
        fs::write(other.path().join("new"), new).unwrap();
        let script = script.replace("new", &other.path().join("new").display().to_string());
        let status = Command::new("sh").args(["-ec", &script]).current_dir(dir).status().unwrap();
        assert!(status.success(), "{script}");
    })
}

/// An edit that takes no longer than this was not delayed by settling.
const AT_ONCE: Duration = Duration::from_millis(700);
const SOON: Duration = Duration::from_millis(1800);

#[test]
fn emptied_and_filled_again() {
    let took = edited_by(": > a.yaml; sleep 0.3; cat new > a.yaml");
    assert!(took < SOON, "{took:?}");
}

#[test]
fn removed_and_recreated() {
    let took = edited_by("rm a.yaml; sleep 0.02; cat new > a.yaml");
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn written_in_pieces() {
    let took = edited(|dir, new| {
        let mut file = File::create(dir.join(OLD)).unwrap();
        for piece in new.as_bytes().chunks(30) {
            file.write_all(piece).unwrap();
            sleep(Duration::from_millis(150));
        }
    });
    assert!(took < AT_ONCE, "{took:?}");
    let took = edited(|dir, new| {
        fs::write(dir.join(OLD), "").unwrap();
        for piece in new.as_bytes().chunks(30) {
            sleep(Duration::from_millis(150));
            OpenOptions::new().append(true).open(dir.join(OLD)).unwrap().write_all(piece).unwrap();
        }
    });
    assert!(took < SOON, "{took:?}");
}

/// `vim`, which renames the file to a backup and writes a new one.
#[test]
fn backed_up_and_written() {
    let took = edited_by("mv a.yaml a.yaml~; cat new > a.yaml; chmod 600 a.yaml; rm a.yaml~");
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn sed_in_place() {
    let took = edited_by("sed -i 's/order: 1/order: 7/' a.yaml");
    assert!(took < AT_ONCE, "{took:?}");
}

/// `kubectl cp`, which is `tar`: it removes the file, makes it, writes it and sets its times.
#[test]
fn copied_by_tar() {
    let took = edited_by(
        "cp new /tmp/$$.yaml; mkdir /tmp/$$; mv /tmp/$$.yaml /tmp/$$/a.yaml; tar -C /tmp/$$ -cf - a.yaml | tar -xf - ; rm -r /tmp/$$",
    );
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn copied_over() {
    let took = edited_by("cp -p new a.yaml");
    assert!(took < AT_ONCE, "{took:?}");
}

/// `rsync`, which writes a hidden file and renames it, with its old times.
#[test]
fn renamed_with_old_times() {
    let took = edited_by("cp new .a.yaml.X1; touch -d '2 hours ago' .a.yaml.X1; mv .a.yaml.X1 a.yaml");
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn checked_out_by_git() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let git = |line: &str| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=x", "-c", "user.email=x@y", "-c", "init.defaultBranch=main"]);
        let output = git.args(line.split(' ')).current_dir(dir.path()).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    git("init -q");
    fs::write(at(OLD), both(7)).unwrap();
    git("add .");
    git("commit -qm new");
    fs::write(at(OLD), both(1)).unwrap();
    git("commit -qam old");
    let took = replaced(&dir, |_, _| git("checkout -q HEAD^"));
    assert!(took < AT_ONCE, "{took:?}");
}

/// Versions of a `ConfigMap`, between which an object moves to another file, and to one that is
/// new.
#[test]
fn versions_of_a_config_map() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let version = |name: &str, files: &[(&str, String)]| {
        fs::create_dir(at(name)).unwrap();
        for (file, text) in files {
            fs::write(at(name).join(file), text).unwrap();
        }
        symlink(name, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    };
    let empty = || "# nothing\n".to_owned();
    version("..v1", &[("m.yaml", tier("a", 1)), ("z.yaml", tier("b", 2)), ("e.yaml", empty())]);
    for file in ["m.yaml", "z.yaml", "e.yaml"] {
        symlink(format!("..data/{file}"), at(file)).unwrap();
    }
    let took = replaced(&dir, |_, _| {
        // `b` moves to a file that sorts first, `a` to a new one; the old file is removed.
        version("..v2", &[("e.yaml", tier("b", 2)), ("n.yaml", tier("a", 7)), ("z.yaml", tier("c", 3))]);
        symlink("..data/n.yaml", at("n.yaml")).unwrap();
        fs::remove_file(at("m.yaml")).unwrap();
        fs::remove_dir_all(at("..v1")).unwrap();
    });
    assert!(took < AT_ONCE, "{took:?}");
}
