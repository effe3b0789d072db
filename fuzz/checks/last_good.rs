//! Any record of a last valid version is rejected, or can be written again and restored.

use tortie_datastore::DirState;
use tortie_resources::manifest::Options;
use tortie_revisions::last_good::Record;

pub(crate) fn check(data: &[u8]) {
    try_record(data);
    // Without a correct checksum, parsing ends early.
    try_record(&Record::sealed(&String::from_utf8_lossy(data)));
}

fn try_record(bytes: &[u8]) {
    let Ok(record) = Record::parse(bytes) else { return };
    assert_eq!(Record::parse(&record.encode()).as_ref(), Ok(&record));
    let mut state = DirState::new(Options::default()).close_unknown();
    state.restore(&[(record.path.clone().into(), record)]);
    assert!(state.snapshot().windows(2).all(|pair| pair[0].key() < pair[1].key()));
}
