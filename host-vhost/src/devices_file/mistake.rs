//! Mistakes in a devices file: where they are, what is wrong, what to do.

use std::ops::Range;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong and what to do.
    pub text: String,
}

/// Why a devices file can't be used.
#[derive(Debug, Error)]
pub enum DevicesFileError {
    /// The file can't be read.
    #[error("{path}: {what}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        what: String,
    },
    /// It has mistakes.
    #[error("{}", list(path, mistakes))]
    Mistakes {
        /// The file.
        path: PathBuf,
        /// All that were found, by place.
        mistakes: Vec<Mistake>,
    },
}

/// `FILE:LINE:COLUMN: text` for each; more than one are counted first.
fn list(path: &Path, mistakes: &[Mistake]) -> String {
    let path = path.display();
    let line = |Mistake { line, column, text }: &Mistake| format!("{path}:{line}:{column}: {text}");
    match mistakes {
        [one] => line(one),
        many => {
            let lines: Vec<String> = many.iter().map(|mistake| format!("\n  {}", line(mistake))).collect();
            format!("{path} has {} mistakes:{}", many.len(), lines.concat())
        }
    }
}

/// Collects mistakes by their place in the text.
#[derive(Debug)]
pub(super) struct Mistakes<'t> {
    text: &'t str,
    found: Vec<(usize, String)>,
}

impl<'t> Mistakes<'t> {
    pub(super) const fn new(text: &'t str) -> Self {
        Self { text, found: Vec::new() }
    }

    pub(super) fn add(&mut self, place: &Range<usize>, text: impl Into<String>) {
        self.found.push((place.start, text.into()));
    }

    /// The line of a place, from 1.
    pub(super) fn line(&self, place: &Range<usize>) -> usize {
        position(self.text, place.start).0
    }

    /// In the order of the text; none if all is well.
    pub(super) fn into_list(mut self) -> Vec<Mistake> {
        self.found.sort_by_key(|(at, _)| *at);
        let locate = |(at, text)| {
            let (line, column) = position(self.text, at);
            Mistake { line, column, text }
        };
        self.found.into_iter().map(locate).collect()
    }
}

/// Line and column, from 1, of a byte of the text.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
