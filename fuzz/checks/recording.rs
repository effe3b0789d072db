//! Any line of a recording is read or rejected with a reason, and its contents can be written
//! again.

use tortie_datastore::recording::{Line, read_line, write_update};
use tortie_model::Interner;
use tortie_resources::path::{self, Parsed};

pub(crate) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut labels = Interner::new();
    for line in text.lines() {
        let read = read_line(line, &mut labels);
        match &read {
            Ok(Line::Update(update)) => {
                // A namespaced policy may have been recorded without a namespace, which cannot be
                // written.
                if let Ok(written) = path::to_path(&update.key()) {
                    assert_eq!(path::parse(&written), Some(Parsed::Key(update.key().clone())));
                }
                let recorded = write_update(update).expect("an update that was read can be written");
                assert_eq!(read_line(&recorded, &mut Interner::new()).ok().as_ref(), read.as_ref().ok());
            }
            Ok(Line::Invalid(error)) => {
                assert!(!error.reason.is_empty());
                assert!(!error.deletion().exists());
            }
            Ok(Line::Nothing | Line::Status(_) | Line::Flush) => {}
            Err(error) => assert!(!error.to_string().contains('\n')),
        }
        // Neither earlier lines nor blanks around a line change its meaning.
        assert_eq!(read_line(&format!("\t{line} "), &mut Interner::new()).ok(), read.ok());
    }
}
