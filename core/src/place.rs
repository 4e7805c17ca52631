//! An `Option` whose `None` is zero bytes.
//!
//! The compiler gives `Option<T>` a `None` of any bytes that no `T` has. A table of those can't lie in `.bss`,
//! which a loader clears for nothing; firmware would carry every empty place of it in flash.

/// `Option<T>` with a discriminant of its own, 0 for [`Place::Empty`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place<T> {
    Empty = 0,
    Full(T) = 1,
}

impl<T> Place<T> {
    #[inline]
    pub(crate) const fn as_ref(&self) -> Option<&T> {
        match self {
            Self::Empty => None,
            Self::Full(value) => Some(value),
        }
    }

    #[inline]
    pub(crate) const fn as_mut(&mut self) -> Option<&mut T> {
        match self {
            Self::Empty => None,
            Self::Full(value) => Some(value),
        }
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<T> {
        match core::mem::replace(self, Self::Empty) {
            Self::Empty => None,
            Self::Full(value) => Some(value),
        }
    }
}

impl<'a, T> IntoIterator for &'a Place<T> {
    type Item = &'a T;
    type IntoIter = core::option::IntoIter<&'a T>;
    fn into_iter(self) -> Self::IntoIter {
        self.as_ref().into_iter()
    }
}

impl<'a, T> IntoIterator for &'a mut Place<T> {
    type Item = &'a mut T;
    type IntoIter = core::option::IntoIter<&'a mut T>;
    fn into_iter(self) -> Self::IntoIter {
        self.as_mut().into_iter()
    }
}
