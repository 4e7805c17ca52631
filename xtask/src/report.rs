//! Times jobs, remembers how each ended, and prints the table that closes a run.

use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What ran so far.
#[derive(Debug)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    name: String,
    time: Duration,
    error: Option<anyhow::Error>,
}

impl Report {
    pub(crate) const fn new() -> Self {
        Self { rows: Vec::new() }
    }

    /// Runs one job. An error is printed at once and again at the end; the jobs after it still run, so
    /// that one run shows everything that is wrong.
    pub(crate) fn run(&mut self, name: &str, job: impl FnOnce() -> anyhow::Result<()>) {
        println!("\n==> {name}");
        let start = Instant::now();
        let error = job().err();
        if let Some(error) = &error {
            eprintln!("error: {name}: {error:#}");
        }
        self.rows.push(Row { name: name.to_owned(), time: start.elapsed(), error });
    }

    /// Prints the table and turns it into an exit code.
    pub(crate) fn finish(self) -> ExitCode {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(4);
        println!("\n{:width$}  {:>8}  result", "job", "seconds");
        for row in &self.rows {
            let result = if row.error.is_some() { "FAILED" } else { "ok" };
            println!("{:width$}  {:>8.1}  {result}", row.name, row.time.as_secs_f64());
        }
        let total: Duration = self.rows.iter().map(|row| row.time).sum();
        println!("{:width$}  {:>8.1}", "all", total.as_secs_f64());
        let mut code = ExitCode::SUCCESS;
        for row in &self.rows {
            if let Some(error) = &row.error {
                println!("FAILED {}: {error:#}", row.name);
                code = ExitCode::FAILURE;
            }
        }
        code
    }
}
