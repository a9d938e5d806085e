//! How much memory does a model take, and what fits beside it?

use inertiakv_kernels::cache::{KvConfig, KvPool, KvType};
use serde::Serialize;

use crate::Error;
use crate::config::ModelConfig;
use crate::memory;

/// Shares of a prompt's entries that a plan looks at, in percent.
const KEPT: [usize; 4] = [100, 50, 20, 10];
/// Prompt that a plan is about, unless the context is shorter.
const PROMPT: usize = 8192;

/// Memory of a model before it is loaded.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryPlan {
    /// Bytes of weights.
    pub weight_bytes: usize,
    /// Element type of the KV cache.
    pub kv_type: String,
    /// Bytes that 1,000 tokens take in the layers that see everything.
    pub kv_bytes_per_1000_tokens: usize,
    /// Most bytes of layers with a window while decoding; they are not evicted from.
    pub window_bytes: usize,
    /// Bytes of memory of this machine, if it tells.
    pub machine_bytes: Option<usize>,
    /// Tokens of the prompt in `budgets`.
    pub prompt_tokens: usize,
    /// Bytes while that prompt is read, before anything is evicted.
    pub prefill_bytes: usize,
    /// What is left of it under several budgets.
    pub budgets: Vec<BudgetPlan>,
}

/// A conversation whose prompt has been cut down to its budget.
#[derive(Clone, Debug, Serialize)]
pub struct BudgetPlan {
    /// Share of the prompt's entries that stays, in percent.
    pub kept_percent: usize,
    /// Bytes of KV cache.
    pub kv_bytes: usize,
    /// How many such conversations this machine holds beside the weights, one more prompt being read.
    pub conversations: Option<usize>,
}

impl MemoryPlan {
    /// Plans for a model whose weights take `weight_bytes`.
    ///
    /// # Errors
    /// If no cache can be made for its heads.
    pub fn new(config: &ModelConfig, weight_bytes: usize, kv_type: KvType) -> Result<Self, Error> {
        let pool = pool(config, kv_type, None)?;
        let machine_bytes = memory::physical();
        let prompt_tokens = PROMPT.min(config.context_length);
        let prefill_bytes = pool.bytes_for(prompt_tokens);
        let free = machine_bytes.map(|bytes| bytes.saturating_sub(weight_bytes + prefill_bytes));
        let budgets = KEPT.map(|kept_percent| {
            let kv_bytes = settled_bytes(config, &pool, prompt_tokens * kept_percent / 100, prompt_tokens);
            BudgetPlan {
                kept_percent,
                kv_bytes,
                conversations: free.map(|free| free / kv_bytes.max(1)),
            }
        });
        Ok(Self {
            weight_bytes,
            kv_type: kv_type.to_string(),
            kv_bytes_per_1000_tokens: pool.bytes_per_row() * full_layers(config) * config.kv_heads * 1000,
            window_bytes: settled_bytes(config, &pool, 0, config.context_length),
            machine_bytes,
            prompt_tokens,
            prefill_bytes,
            budgets: budgets.into(),
        })
    }
}

/// The memory that caches of a model come from.
pub(crate) fn pool(config: &ModelConfig, kv_type: KvType, limit: Option<usize>) -> Result<KvPool, Error> {
    let kv_config = KvConfig {
        layers: config.layers,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        kv_type,
    };
    Ok(KvPool::new(kv_config, limit)?)
}

/// Most bytes of a cache that has taken a step: `kept` entries in layers that see everything, and in the others what
/// their window needs of `whole`.
pub(crate) fn settled_bytes(config: &ModelConfig, pool: &KvPool, kept: usize, whole: usize) -> usize {
    let full = full_layers(config);
    let window = config.sliding.as_ref().map_or(0, |sliding| sliding.window);
    // A block more for the row of a step and for what begins within one.
    let windowed = pool.bytes_for(whole.min(window)) + pool.bytes_for(1);
    (pool.bytes_for(kept) * full + windowed * (config.layers - full)) / config.layers
}

fn full_layers(config: &ModelConfig) -> usize {
    (0..config.layers)
        .filter(|&layer| config.window(layer).is_none())
        .count()
}
