//! Caches with something in them, in the shapes of the two small models of the catalog.

#![allow(dead_code, reason = "each bench uses a part of it")]

use inertiakv_kernels::cache::{KvCache, KvConfig, KvPool, KvType};

/// The attention of a model.
pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) kv_heads: usize,
    /// Query heads per KV head.
    pub(crate) group: usize,
    pub(crate) head_dim: usize,
}

impl Model {
    /// Query heads.
    pub(crate) fn heads(&self) -> usize {
        self.kv_heads * self.group
    }
}

pub(crate) const SMOLLM2: Model = Model {
    name: "SmolLM2-135M",
    kv_heads: 3,
    group: 3,
    head_dim: 64,
};

pub(crate) const QWEN: Model = Model {
    name: "Qwen2.5-0.5B",
    kv_heads: 2,
    group: 7,
    head_dim: 64,
};

/// `count` numbers between -1 and 1, always the same.
pub(crate) fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919) % 211) as f32 / 105.0 - 1.0).collect()
}

/// A cache of some layers with `entries` rows in every head.
pub(crate) fn filled(model: &Model, kv_type: KvType, layers: usize, entries: usize) -> KvCache {
    let config = KvConfig {
        layers,
        kv_heads: model.kv_heads,
        head_dim: model.head_dim,
        kv_type,
    };
    let pool = KvPool::new(config, None).expect("a valid shape");
    let mut cache = KvCache::new(&pool);
    let row = model.kv_heads * model.head_dim;
    let rows = numbers(entries * row);
    for chunk in rows.chunks(512 * row) {
        for layer in 0..layers {
            cache.append(layer, chunk, chunk).expect("no limit");
        }
    }
    cache
}

/// The moves of a plan that keeps `kept` of `entries` rows in their order, spread as evenly as their numbers allow.
pub(crate) fn compaction(entries: usize, kept: usize) -> Vec<(u32, u32)> {
    (0..kept)
        .map(|to| ((to * entries / kept) as u32, to as u32))
        .filter(|(from, to)| from > to)
        .collect()
}
