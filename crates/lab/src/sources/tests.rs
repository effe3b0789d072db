use std::time::Duration;

use tortie_datastore::DirSource;
use tortie_resources::manifest::Options;

use super::*;

impl SourceUnderTest for Folder {
    fn source(&mut self) -> Box<dyn Source> {
        Box::new(DirSource::new(self.path(), Options::default()).rescan_every(Duration::from_millis(100)))
    }

    fn edit(&mut self, edits: &[Edit]) {
        Folder::edit(self, edits).expect("files are written");
    }

    fn lacks(&self) -> Vec<(Need, &'static str)> {
        vec![
            (Need::Cut, "there is no connection to a directory"),
            (Need::Partition, "there is no connection to a directory"),
            (Need::Compact, "a directory has no history"),
        ]
    }

    fn stop(&mut self) {
        self.hide().expect("the directory exists");
    }

    fn start(&mut self) {
        self.show().expect("the directory was moved away");
    }
}

#[test]
fn a_directory_passes() {
    let report = run(|| Folder::new().expect("a directory"));
    assert!(report.passed.len() >= 15 && !report.not_supported.is_empty(), "{report}");
}
