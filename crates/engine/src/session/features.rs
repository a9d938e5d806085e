//! What do the entries of a layer look like, besides the attention they get?

use inertiakv_kernels::attention::{GroupPooling, Mass};
use inertiakv_kernels::cache::KvCache;
use inertiakv_policy::{self as policy, Features, HeadObservation};

/// What the policy wants of a query group, in the words of the kernels.
pub(crate) fn group_pooling(pooling: policy::GroupPooling) -> GroupPooling {
    match pooling {
        policy::GroupPooling::Sum => GroupPooling::Sum,
        policy::GroupPooling::Max => GroupPooling::Max,
    }
}

/// Numbers per entry of one layer, one vector per KV head; reused from layer to layer.
#[derive(Default)]
pub(crate) struct EntryFeatures {
    value_norms: Vec<Vec<f32>>,
    key_norms: Vec<Vec<f32>>,
    key_similarities: Vec<Vec<f32>>,
    /// What only this scorer has; filled by whoever computes it.
    pub(crate) relevance: Vec<Vec<f32>>,
}

impl EntryFeatures {
    /// Reads from the cache what is wanted of it.
    pub(crate) fn read(&mut self, cache: &KvCache, layer: usize, wanted: Features) {
        let heads = cache.pool().config().kv_heads;
        let fill = |buffers: &mut Vec<Vec<f32>>, wanted: bool, read: &dyn Fn(usize, &mut Vec<f32>)| {
            buffers.resize_with(heads, Vec::new);
            if wanted {
                let heads = buffers.iter_mut().enumerate();
                heads.for_each(|(head, buffer)| read(head, buffer));
            }
        };
        fill(&mut self.value_norms, wanted.value_norm, &|head, out| {
            cache.value_norms(layer, head, out);
        });
        fill(&mut self.key_norms, wanted.key_norm, &|head, out| {
            cache.key_norms(layer, head, out);
        });
        fill(&mut self.key_similarities, wanted.key_similarity, &|head, out| {
            cache.key_similarity(layer, head, out);
        });
        self.relevance.resize_with(heads, Vec::new);
    }

    /// All heads of the layer as the policy takes them.
    pub(crate) fn observations<'a>(&'a self, mass: Option<&'a Mass>) -> Vec<HeadObservation<'a>> {
        (0..self.value_norms.len())
            .map(|head| HeadObservation {
                mass: mass.map_or(&[], |mass| &mass.heads[head]),
                value_norm: &self.value_norms[head],
                key_norm: &self.key_norms[head],
                key_similarity: &self.key_similarities[head],
                relevance: &self.relevance[head],
            })
            .collect()
    }
}
