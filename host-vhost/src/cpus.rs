//! Lists of processors, as people write them.

use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity};

/// Processors: `2,3` or `4-7`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let number = |text: &str| {
                text.trim().parse::<usize>().map_err(|_| format!("`{text}` is not a processor number"))
            };
            match part.split_once('-') {
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last || last - first > 4096 {
                        return Err(format!("`{part}` is not a range of processors"));
                    }
                    cpus.extend(first..=last);
                }
                None => cpus.push(number(part)?),
            }
        }
        Ok(Self(cpus))
    }
}

impl std::fmt::Display for CpuList {
    /// Neighbours as ranges.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut left = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = left.next() {
            let mut last = first;
            while let Some(next) = left.next_if(|next| *next == last + 1) {
                last = next;
            }
            match last {
                last if last == first => write!(f, "{separator}{first}")?,
                last => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

/// The processors that this process may run on.
///
/// # Errors
/// What the system says.
pub fn allowed() -> std::io::Result<CpuList> {
    let set = sched_getaffinity(None)?;
    Ok(CpuList((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_people_do() {
        let list: CpuList = "0, 2,4-7".parse().unwrap();
        assert_eq!(list.0, [0, 2, 4, 5, 6, 7]);
        assert_eq!(list.to_string(), "0,2,4-7");
        for text in ["", "x", "3-1", "1,,2", "0-99999"] {
            assert!(text.parse::<CpuList>().is_err(), "{text}");
        }
        assert!(!allowed().unwrap().0.is_empty());
    }
}
