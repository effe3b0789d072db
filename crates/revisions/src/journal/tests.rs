use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use proptest::prelude::*;
use serde::Deserialize;
use tempfile::TempDir;
use tortie_model::with_causes;

use super::*;
use crate::state_file::seal;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Note {
    id: u64,
    #[serde(alias = "author")]
    by: String,
    #[serde(skip)]
    words: Vec<(String, u64)>,
}

impl Entry for Note {
    const KIND: &'static str = "note";
    const MAX_BYTES: u64 = 1_000;
    const FORMER: (&'static str, &'static str) = ("tortie-note 1", "words");
    type Record = (String, u64);

    fn records(&self) -> &[(String, u64)] {
        &self.words
    }

    fn with_records(self, words: Vec<(String, u64)>) -> Self {
        Self { words, ..self }
    }
}

fn note(id: u64) -> Note {
    Note { id, by: "ada".into(), words: vec![("a\nsha256 b".into(), 1), ("c".into(), 2)] }
}

/// Returns a new folder, and a place in it.
fn place() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let place = folder.path().join("note");
    (folder, place)
}

fn refusal(place: &Path) -> String {
    let error = load::<Note>(place).unwrap_err().to_string();
    error.strip_prefix(&place.display().to_string()).expect("the file is named").to_owned()
}

/// Seals lines as a person could who edits a file and its digest.
fn sealed(lines: &str) -> String {
    format!("{lines}{SEAL}{}\n", hex_digest(lines.as_bytes()))
}

#[test]
fn one_line_each() {
    let (_folder, place) = place();
    assert_eq!(load::<Note>(&place).unwrap(), None);
    save(&place, &note(7)).unwrap();
    let lines =
        concat!("tortie-journal 1 note\n", "{\"id\":7,\"by\":\"ada\"}\n", "[\"a\\nsha256 b\",1]\n", "[\"c\",2]\n",);
    assert_eq!(fs::read_to_string(&place).unwrap(), sealed(lines));
    assert_eq!(load(&place).unwrap(), Some(note(7)));
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_torn_or_edited_file_is_refused_with_its_line() {
    let (_folder, place) = place();
    let bytes = encode(&note(7)).unwrap();
    let former = seal("tortie-note 1", r#"{"id":7,"by":"ada","words":[["c",2]]}"#);
    for bytes in [&bytes, &former] {
        for end in 0..bytes.len() {
            assert!(parse::<Note>(&bytes[..end]).is_err(), "{end} of {} bytes", bytes.len());
        }
        for at in 0..bytes.len() {
            let mut edited = bytes.clone();
            edited[at] ^= 1;
            assert!(parse::<Note>(&edited).is_err(), "byte {at}");
        }
    }
    let head = "tortie-journal 1 note\n{\"id\":7,\"by\":\"ada\"}\n";
    let digest = ":4: is not the digest of the file, which is torn or has been changed; the file is not used";
    for (text, error) in [
        (sealed(&format!("{head}[\"c\",2]\n")).replace("[\"c\",2]", "[\"c\",3]"), digest),
        (format!("{head}[\"c\",2]\n[\"c\""), digest),
        (sealed(&format!("{head}[\"c\"]\n")), ":3: invalid length 1, expected a tuple of size 2; the file is not used"),
        (sealed("tortie-journal 1 note\n{\"id\":7}\n"), ":2: missing field `by`; the file is not used"),
        (sealed("tortie-journal 1 note\n"), ":2: EOF while parsing a value; the file is not used"),
        (
            sealed("tortie-journal 1 other\n{}\n"),
            ":1: is not the first line of a note that this version knows; the file is not used",
        ),
        (
            sealed("tortie-journal 2 note\n{}\n"),
            ":1: is not the first line of a note that this version knows; the file is not used",
        ),
        (String::new(), ":1: is not the first line of a note that this version knows; the file is not used"),
        ("tortie-note 1\n00\n{}".to_owned(), ":2: is not the digest"),
        (String::from_utf8(seal("tortie-note 1", "{\"id\":7,\"by\":\"ada\"}")).unwrap(), ":3: invalid type: null"),
    ] {
        fs::write(&place, &text).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).unwrap();
        let refusal = refusal(&place);
        assert!(refusal.starts_with(error), "{refusal}\nof {text}");
        assert_eq!(fs::read_to_string(&place).unwrap(), text, "it is left for a person to see");
    }
}

#[test]
fn the_former_format_is_read_and_the_next_write_replaces_it() {
    let (_folder, place) = place();
    let body = r#"{"id":7,"author":"ada","words":[["a\nsha256 b",1],["c",2]]}"#;
    put(&place, &seal("tortie-note 1", body)).unwrap();
    assert_eq!(load(&place).unwrap(), Some(note(7)));
    assert!(is_former::<Note>(&place).unwrap());
    save(&place, &note(8)).unwrap();
    assert!(!is_former::<Note>(&place).unwrap());
    assert_eq!(load(&place).unwrap(), Some(note(8)));
}

#[test]
fn a_kill_between_two_writes_leaves_the_old_or_the_new_file() {
    let (_folder, place) = place();
    let draft = place.with_extension("tmp");
    save(&place, &note(1)).unwrap();
    let bytes = encode(&note(2)).unwrap();
    for end in 0..=bytes.len() {
        fs::write(&draft, &bytes[..end]).unwrap();
        assert_eq!(load(&place).unwrap(), Some(note(1)), "killed before the draft is renamed");
    }
    // The draft is longer than the next entry.
    fs::write(&draft, [&bytes[..], &bytes].concat()).unwrap();
    save(&place, &note(3)).unwrap();
    assert_eq!(load(&place).unwrap(), Some(note(3)));
    assert!(!draft.exists());
}

#[test]
fn several_writers_leave_one_whole_file() {
    let (_folder, place) = place();
    save(&place, &note(0)).unwrap();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let write = |writer: u64| {
            let mut written = 0;
            for id in 0..60 {
                match save(&place, &note(writer * 100 + id)) {
                    Ok(()) => written += 1,
                    Err(error) => {
                        assert!(with_causes(&error).ends_with("another program writes it at this moment"));
                    }
                }
            }
            written
        };
        let writers: Vec<_> = (1..5).map(|writer| scope.spawn(move || write(writer))).collect();
        let reader = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                load::<Note>(&place).unwrap().expect("a whole file");
            }
        });
        let written: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        is_done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        assert!(written > 0);
    });
    assert!(load::<Note>(&place).unwrap().is_some_and(|last| last.id >= 100));
}

#[test]
fn only_files_of_this_user_and_of_a_bounded_size() {
    let (folder, place) = place();
    let large = Note { words: vec![("x".repeat(1_000), 1)], ..note(1) };
    let error = save(&place, &large).unwrap_err().to_string();
    assert!(error.ends_with("note is not a file of at most 1000 bytes") && !place.exists(), "{error}");
    put(&place, &encode(&large).unwrap()).unwrap();
    assert_eq!(refusal(&place), " is not a file of at most 1000 bytes");

    save(&place, &note(1)).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o620)).unwrap();
    assert_eq!(refusal(&place), " belongs to another user, or others may write into it");
    fs::rename(&place, folder.path().join("target")).unwrap();
    symlink(folder.path().join("target"), &place).unwrap();
    assert!(load::<Note>(&place).is_err(), "a link");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(make_folders(&[folder.path()]), Err(JournalError::Foreign(_))));
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let (folder, place) = place();
    let below = folder.path().join("file").join("note");
    fs::write(folder.path().join("file"), "").unwrap();
    let errors = [save(&below, &note(1)).unwrap_err(), make_folders(&[below.parent().unwrap()]).unwrap_err()];
    for error in errors {
        assert!(error.to_string().contains(&folder.path().join("file").display().to_string()), "{error}");
    }
    // The draft cannot be made, and the file stays.
    save(&place, &note(1)).unwrap();
    fs::create_dir(place.with_extension("tmp")).unwrap();
    assert!(matches!(save(&place, &note(2)), Err(JournalError::Io { .. })));
    assert_eq!(load(&place).unwrap(), Some(note(1)));
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(body: Vec<u8>, first in 0_usize..4) {
        let first: &[u8] = [&b""[..], b"tortie-note 1\n", b"tortie-journal 1 note\n", b"tortie-journal 1 note\n{}\n"][first];
        prop_assert!(parse::<Note>(&[first, &body].concat()).is_err());
    }
}
