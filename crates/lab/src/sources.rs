//! One suite that every source of updates passes: same edits, same states, whatever happens to the datastore.
//!
//! Who has a source writes a [`SourceUnderTest`]: a datastore with an editor, and ways to disturb the connection between
//! it and the source. Then [`run`] does the rest:
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

/// A datastore, and a source that reads it over a connection which can be disturbed.
///
/// The editor is not disturbed: it reaches the datastore whenever that runs. The suite never edits while the datastore is
/// [down](SourceUnderTest::stop).
pub trait SourceUnderTest {
    /// A source that has not read anything yet. It should look for what it cannot reach again after milliseconds rather
    /// than seconds. Only one is in use at a time.
    fn source(&mut self) -> Box<dyn Source>;

    /// Changes the datastore, in this order; returns when it is done. The source may see any of the states between.
    fn edit(&mut self, edits: &[Edit]);

    /// What cannot be done here, and why. All of it is reported; cases that need it are not run.
    fn lacks(&self) -> Vec<(Need, &'static str)>;

    /// Whether this key is there, or may be, without the suite's doing; such are not looked at.
    fn is_background(&self, key: &Key) -> bool {
        let _ = key;
        false
    }

    /// Kills the datastore without any farewell; it answers nobody until [`SourceUnderTest::start`].
    fn stop(&mut self) {
        unsupported(Need::Stop)
    }

    /// Starts the datastore that was killed, with all that was written to it.
    fn start(&mut self) {
        unsupported(Need::Stop)
    }

    /// Breaks the source's connections, once. New ones can be made.
    fn cut(&mut self) {
        unsupported(Need::Cut)
    }

    /// Lets nothing pass between datastore and source, without breaking connections or refusing new ones.
    fn partition(&mut self) {
        unsupported(Need::Partition)
    }

    /// Lets everything pass again.
    fn heal(&mut self) {
        unsupported(Need::Partition)
    }

    /// Makes the datastore forget its history: who was not connected since the last edit cannot hear of what was missed.
    /// May break the source's connections.
    fn compact(&mut self) {
        unsupported(Need::Compact)
    }
}

fn unsupported(need: Need) -> ! {
    panic!("{need} is neither done nor among what the source lacks")
}

/// What a case of the suite takes.
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
    /// Objects that are not valid can be written, and the last good version of one is remembered by what reads it.
    BadObjects,
    /// Objects that are not valid are told as problems by the source itself.
    Problems,
    /// That the datastore cannot be read is told.
    Unavailable,
}

impl fmt::Display for Need {
    /// `stop`, `cut` and so on.
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
    /// Creates or replaces an object: the whole of it, `apiVersion` and `kind` included, as people write it. Its kind is
    /// one of `projectcalico.org/v3`.
    Put(ObjectId, Value),
    /// Deletes an object that exists.
    Delete(ObjectId),
}

/// What became of the cases.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The cases that were run.
    pub passed: Vec<&'static str>,
    /// The cases that could not be run, each with what it needs and why that cannot be done.
    pub not_supported: Vec<(&'static str, Need, &'static str)>,
}

impl fmt::Display for Report {
    /// A line for each case.
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

/// Runs every case, each with a datastore of its own that is empty.
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
