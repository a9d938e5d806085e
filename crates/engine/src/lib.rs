//! How does a model answer under a KV budget?
