//! Arguments of a benchmark.

/// `[--runs N] [--table] [--test] [NAME…]`.
#[derive(Debug)]
pub struct Arguments {
    /// Number of runs.
    pub runs: usize,
    /// Print only the columns of `README.md`.
    pub table: bool,
    /// Run small scenarios once.
    pub test: bool,
    names: Vec<String>,
}

impl Arguments {
    /// Parses the arguments and ignores invalid ones.
    #[must_use]
    pub fn read(args: impl Iterator<Item = String>, runs: usize) -> Self {
        let mut read = Self { runs, table: false, test: false, names: Vec::new() };
        let mut args = args.skip(1);
        while let Some(arg) = args.next() {
            match &*arg {
                "--bench" => {}
                "--test" => read.test = true,
                "--table" => read.table = true,
                "--runs" => read.runs = args.next().and_then(|n| n.parse().ok()).unwrap_or(runs),
                _ => read.names.push(arg),
            }
        }
        read
    }

    /// Reports whether this scenario is selected; all are if no name is given.
    #[must_use]
    pub fn selects(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(&**part))
    }
}
