//! Which entries of a KV cache stay?
