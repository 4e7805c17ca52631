//! namespaces
