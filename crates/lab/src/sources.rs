//! A test suite for all sources of updates: equal edits must give equal states, despite failures of
//! the datastore.
//!
//! To test a source, implement [`SourceUnderTest`]: a datastore with an editor, and ways to disturb
//! the connection between it and the source. [`run`] then executes the suite:
//!
//! ```no_run
//! use tortie_datastore::Source;
//! use tortie_lab::sources::{self, Edit, Need, SourceUnderTest};
//!
//! struct MyDatastore;
//!
//! impl SourceUnderTest for MyDatastore {
//!     fn source(&mut self) -> Box<dyn Source> {
//!         unreachable!("here goes a source that has not read anything yet")
//!     }
//!     fn edit(&mut self, edits: &[Edit]) {
//!         unreachable!("here the edits go into the datastore")
//!     }
//!     fn lacks(&self) -> Vec<(Need, &'static str)> {
//!         vec![(Need::Compact, "it keeps no history")]
//!     }
//! }
//!
//! println!("{}", sources::run(|| MyDatastore));
//! ```

mod cases;
mod consumer;
mod folder;
mod objects;
mod world;

use std::fmt;

use serde_json::Value;
use tortie_datastore::Source;
use tortie_model::Key;
use tortie_resources::manifest::ObjectId;

pub use folder::Folder;
use world::World;

/// A datastore, and a source that reads it over a connection that can be disturbed.
///
/// The editor is not disturbed: it reaches the datastore whenever the datastore runs. The suite
/// never edits while the datastore is [stopped](SourceUnderTest::stop).
pub trait SourceUnderTest {
    /// Returns a source that has not read anything yet. It should retry an unreachable datastore
    /// after milliseconds rather than seconds. Only one source is in use at a time.
    fn source(&mut self) -> Box<dyn Source>;

    /// Applies the edits in this order, and returns afterwards. The source may observe any
    /// intermediate state.
    fn edit(&mut self, edits: &[Edit]);

    /// Returns the unsupported operations with reasons. The report lists them, and cases that need
    /// them are not run.
    fn lacks(&self) -> Vec<(Need, &'static str)>;

    /// Reports whether this key exists, or may exist, independently of the suite. The suite ignores
    /// such keys.
    fn is_background(&self, key: &Key) -> bool {
        let _ = key;
        false
    }

    /// Kills the datastore without closing connections properly; it does not answer until
    /// [`SourceUnderTest::start`].
    fn stop(&mut self) {
        unsupported(Need::Stop)
    }

    /// Restarts the stopped datastore with all data written to it.
    fn start(&mut self) {
        unsupported(Need::Stop)
    }

    /// Breaks the source's connections once. It can reconnect.
    fn cut(&mut self) {
        unsupported(Need::Cut)
    }

    /// Holds back all data between datastore and source, without breaking connections or refusing
    /// new ones.
    fn partition(&mut self) {
        unsupported(Need::Partition)
    }

    /// Ends the partition.
    fn heal(&mut self) {
        unsupported(Need::Partition)
    }

    /// Makes the datastore discard its history: a client that was not connected since the last edit
    /// cannot receive the missed changes. May break the source's connections.
    fn compact(&mut self) {
        unsupported(Need::Compact)
    }
}

fn unsupported(need: Need) -> ! {
    panic!("{need} is neither supported nor listed as unsupported by the source")
}

/// Requirement of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// [`SourceUnderTest::stop`] and [`SourceUnderTest::start`].
    Stop,
    /// [`SourceUnderTest::cut`].
    Cut,
    /// [`SourceUnderTest::partition`] and [`SourceUnderTest::heal`].
    Partition,
    /// [`SourceUnderTest::compact`].
    Compact,
    /// Invalid objects can be written, and the reader keeps the last valid version of an object.
    BadObjects,
    /// The source itself reports invalid objects as problems.
    Problems,
    /// The source reports that the datastore cannot be read.
    Unavailable,
}

impl fmt::Display for Need {
    /// Writes `stop`, `cut` and so on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stop => "stop",
            Self::Cut => "cut",
            Self::Partition => "partition",
            Self::Compact => "compact",
            Self::BadObjects => "bad objects",
            Self::Problems => "problems",
            Self::Unavailable => "unavailable",
        })
    }
}

/// A change of the datastore.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// Creates or replaces an object, given completely with `apiVersion` and `kind`. Its kind is
    /// one of `projectcalico.org/v3`.
    Put(ObjectId, Value),
    /// Deletes an object that exists.
    Delete(ObjectId),
}

/// Results of the cases.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Cases that were run.
    pub passed: Vec<&'static str>,
    /// Cases that were not run, each with its unsupported requirement and the reason.
    pub not_supported: Vec<(&'static str, Need, &'static str)>,
}

impl fmt::Display for Report {
    /// Writes a line for each case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.passed {
            writeln!(f, "passed         {case}")?;
        }
        for (case, need, why) in &self.not_supported {
            writeln!(f, "not supported  {case}: {need}: {why}")?;
        }
        Ok(())
    }
}

/// Runs every case, each with a new, empty datastore.
///
/// # Panics
/// If the source does not pass.
pub fn run<S: SourceUnderTest>(mut fresh: impl FnMut() -> S) -> Report {
    let mut report = Report::default();
    for case in cases::CASES {
        let mut datastore = fresh();
        let lacks = datastore.lacks();
        if let Some((need, why)) = lacks.iter().find(|(need, _)| case.needs.contains(need)) {
            eprintln!("not supported: {}: {need}: {why}", case.name);
            report.not_supported.push((case.name, *need, why));
            continue;
        }
        eprintln!("running: {}", case.name);
        let mut world = World::new(&mut datastore);
        (case.run)(&mut world);
        world.end();
        report.passed.push(case.name);
    }
    report
}

#[cfg(test)]
mod tests;
