//! Layout of a configuration space's state.
