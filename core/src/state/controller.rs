//! Layout of a controller's state.
