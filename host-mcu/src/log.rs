//! Log lines: defmt's where the feature is on, else nothing. Macros, because defmt's format strings must be
//! literals.

macro_rules! info {
    ($($argument:tt)*) => {{
        #[cfg(feature = "defmt")]
        defmt::info!($($argument)*);
    }};
}

macro_rules! debug {
    ($($argument:tt)*) => {{
        #[cfg(feature = "defmt")]
        defmt::debug!($($argument)*);
    }};
}

macro_rules! trace {
    ($($argument:tt)*) => {{
        #[cfg(feature = "defmt")]
        defmt::trace!($($argument)*);
    }};
}

macro_rules! warning {
    ($($argument:tt)*) => {{
        #[cfg(feature = "defmt")]
        defmt::warn!($($argument)*);
    }};
}

pub(crate) use {debug, info, trace, warning};
