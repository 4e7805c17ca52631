//! States of version 1 that load for ever.
