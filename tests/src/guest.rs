//! A Linux guest.
