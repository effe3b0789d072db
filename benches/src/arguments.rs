//! What a benchmark is asked to do.

/// `[--runs N] [--table] [--test] [NAME…]`.
#[derive(Debug)]
pub struct Arguments {
    /// How often everything is run.
    pub runs: usize,
    /// The columns of `README.md` alone.
    pub table: bool,
    /// Small scenarios, once.
    pub test: bool,
    names: Vec<String>,
}

impl Arguments {
    /// Reads them; what cannot be read is left as it is.
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

    /// Whether this scenario is meant: any is if none is named.
    #[must_use]
    pub fn want(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(&**part))
    }
}
