//! Our server.
