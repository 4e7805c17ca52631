//! Reading tables with a place for every mistake. A wrong entry is told once and doesn't hide the others.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::mistake::Mistakes;
use crate::storage::parse_size;

/// What was found under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    /// No such key.
    Missing,
    /// Something wrong, which has been told.
    Wrong,
    /// A value, and where it is.
    Value(T, Range<usize>),
}

impl<T> Found<T> {
    /// The value, or one in its stead.
    pub(super) fn or(self, default: T) -> T {
        self.value().unwrap_or(default)
    }

    pub(super) fn value(self) -> Option<T> {
        match self {
            Self::Value(value, _) => Some(value),
            Self::Missing | Self::Wrong => None,
        }
    }

    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }

    /// Turns the value into another; what `change` doesn't like is a mistake at its place.
    pub(super) fn then<U>(
        self,
        mistakes: &mut Mistakes<'_>,
        change: impl FnOnce(T) -> Result<U, String>,
    ) -> Found<U> {
        match self {
            Self::Missing => Found::Missing,
            Self::Wrong => Found::Wrong,
            Self::Value(value, place) => match change(value) {
                Ok(value) => Found::Value(value, place),
                Err(text) => {
                    mistakes.add(&place, text);
                    Found::Wrong
                }
            },
        }
    }
}

/// A table of the file.
#[derive(Debug)]
pub(super) struct Table<'a, 't> {
    entries: &'a DeTable<'t>,
    /// Of its header.
    pub(super) place: Range<usize>,
}

impl<'a, 't> Table<'a, 't> {
    /// `known` are the keys that such a table, `what`, may have; others are mistakes.
    pub(super) fn new(
        entries: &'a DeTable<'t>,
        place: Range<usize>,
        what: &str,
        known: &[&str],
        mistakes: &mut Mistakes<'_>,
    ) -> Self {
        for key in entries.keys() {
            let name = key.get_ref().as_ref();
            if !known.contains(&name) {
                mistakes.add(&key.span(), unknown(what, name, known));
            }
        }
        Self { entries, place }
    }

    fn entry(&self, key: &str) -> Option<&'a Spanned<DeValue<'t>>> {
        self.entries.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// Where a key stands, for mistakes about the key itself.
    pub(super) fn place_of(&self, key: &str) -> Option<Range<usize>> {
        self.entries.keys().find(|name| name.get_ref() == key).map(Spanned::span)
    }

    pub(super) fn string(&self, key: &str, example: &str, mistakes: &mut Mistakes<'_>) -> Found<String> {
        self.read(key, &format!("a string, such as {key} = \"{example}\""), mistakes, |value| match value {
            DeValue::String(text) => Some(Ok(text.to_string())),
            _ => None,
        })
    }

    pub(super) fn boolean(&self, key: &str, mistakes: &mut Mistakes<'_>) -> Found<bool> {
        self.read(key, "true or false, without quotes", mistakes, |value| match value {
            DeValue::Boolean(value) => Some(Ok(*value)),
            _ => None,
        })
    }

    /// A whole number of that range.
    pub(super) fn number(
        &self,
        key: &str,
        range: std::ops::RangeInclusive<u64>,
        mistakes: &mut Mistakes<'_>,
    ) -> Found<u64> {
        let (first, last) = (*range.start(), *range.end());
        let takes = format!("a whole number from {first} to {last}, without quotes");
        self.read(key, &takes, mistakes, |value| match value {
            DeValue::Integer(_) => Some(match integer(value).filter(|number| range.contains(number)) {
                Some(number) => Ok(number),
                None => Err(format!("`{key}` has to be between {first} and {last}")),
            }),
            _ => None,
        })
    }

    /// Bytes: a number, or a text such as "64M".
    pub(super) fn size(&self, key: &str, mistakes: &mut Mistakes<'_>) -> Found<u64> {
        let takes = format!("a size, such as {key} = \"512M\", or a number of bytes");
        self.read(key, &takes, mistakes, |value| match value {
            DeValue::String(text) => Some(parse_size(text).map_err(|error| format!("`{key}`: {error}"))),
            DeValue::Integer(_) => {
                Some(integer(value).ok_or_else(|| format!("`{key}` has to be a number of bytes, 0 or more")))
            }
            _ => None,
        })
    }

    /// A value of `takes`, a description: `read` says `None` to another type, and why not to a bad value.
    pub(super) fn read<T>(
        &self,
        key: &str,
        takes: &str,
        mistakes: &mut Mistakes<'_>,
        read: impl FnOnce(&DeValue<'t>) -> Option<Result<T, String>>,
    ) -> Found<T> {
        let Some(entry) = self.entry(key) else { return Found::Missing };
        let text = match read(entry.get_ref()) {
            Some(Ok(value)) => return Found::Value(value, entry.span()),
            Some(Err(text)) => text,
            None => format!("`{key}` takes {takes}, but this is {}", kind(entry.get_ref())),
        };
        mistakes.add(&entry.span(), text);
        Found::Wrong
    }

    /// The tables of `[[key]]`; `whole` is the header as it should be written.
    pub(super) fn tables(
        &self,
        key: &str,
        whole: &str,
        mistakes: &mut Mistakes<'_>,
    ) -> Vec<(&'a DeTable<'t>, Range<usize>)> {
        let Some(entry) = self.entry(key) else { return Vec::new() };
        let mut tables = Vec::new();
        let mut refuse = |place: &Range<usize>| {
            mistakes.add(place, format!("write this as a table of its own that begins with [[{whole}]]"));
        };
        match entry.get_ref() {
            DeValue::Array(array) => {
                for element in array.iter() {
                    match element.get_ref() {
                        DeValue::Table(table) => tables.push((table, element.span())),
                        _ => refuse(&element.span()),
                    }
                }
            }
            _ => refuse(&entry.span()),
        }
        tables
    }
}

/// The number of an integer, if it has 64 bits and no sign.
pub(super) fn integer(value: &DeValue<'_>) -> Option<u64> {
    let DeValue::Integer(integer) = value else { return None };
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// What a person calls such a value.
fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    // People also write `read_only`, or a name from the command line.
    let plain = name.to_lowercase().replace('_', "-");
    let near = known
        .iter()
        .map(|key| (strsim::damerau_levenshtein(&plain, key), key))
        .filter(|(distance, key)| *distance <= 1.max(key.len() / 3))
        .min();
    match near {
        Some((_, near)) => format!("{what} has no key `{name}`; did you mean `{near}`?"),
        None => format!("{what} has no key `{name}`; the keys are {}", known.join(", ")),
    }
}
