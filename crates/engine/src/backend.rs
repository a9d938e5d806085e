//! What must a device be able to do for the decoder?
//!
//! The forward pass ([`crate::decoder`]) is written once against [`Backend`]; [`CpuBackend`] is the CPU. A GPU becomes
//! another implementation, with its own rows, weights and cache.

use inertiakv_kernels::attention::{
    AttentionTask, Gaussian, GroupPooling, Mass, QueryStatistics, Reconstruction, attend, expected_attention,
    reconstruct,
};
use inertiakv_kernels::cache::{CacheError, HeadPlan, KvCache, NewRows, append_each};
use inertiakv_kernels::limits::{self, Limits};
use inertiakv_kernels::linear::{Activations, Linear, LinearError, WeightType, matmul_beside};
use inertiakv_kernels::ops::{self, Activation, RopeAngles, RopeStyle};
use inertiakv_kernels::threads::ThreadPool;

use crate::Error;

/// Several weights that multiply the same rows, each with its result.
pub(crate) type LinearJobs<'a, 'b, B> = &'a mut [(&'b <B as Backend>::Linear, &'b mut <B as Backend>::Rows)];

/// The queries of one sequence in a batch, and the cache they look at.
pub(crate) struct Attention<'a, C> {
    pub cache: &'a C,
    /// Rows of this sequence in the batch: `[first, first + rows)`.
    pub first: usize,
    pub rows: usize,
    /// Entries that a row sees at most; `None` for all.
    pub window: Option<usize>,
    pub mass: Option<MassRequest<'a>>,
}

/// The softmax mass that the last `window` queries of a sequence put on each entry.
pub(crate) struct MassRequest<'a> {
    pub mass: &'a mut Mass,
    pub pooling: GroupPooling,
    pub window: usize,
}

/// Shape of the attention heads of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadShape {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// What multiplies the dot products of queries and keys.
    pub scale: f32,
}

/// The operations of a decoder layer on rows that stay on the device.
pub(crate) trait Backend: Send + Sync {
    /// Rows of `f32`; the width is known to the caller.
    type Rows: Default + Send;
    /// A norm weight or a bias.
    type Vector: Send + Sync;
    /// A weight matrix, quantised or not.
    type Linear: Send + Sync;
    /// Keys and values of one sequence.
    type Cache;
    /// What is reused between calls: quantised activations on the CPU.
    type Scratch: Default + Send;

    fn vector(&self, values: Vec<f32>) -> Self::Vector;
    fn weight(
        &self,
        weight_type: WeightType,
        out_features: usize,
        in_features: usize,
        data: &[u8],
    ) -> Result<Self::Linear, LinearError>;

    fn resize(&self, rows: &mut Self::Rows, values: usize);
    fn embed(&self, table: &Self::Linear, tokens: &[u32], out: &mut Self::Rows);
    fn rms_norm(&self, x: &Self::Rows, weight: &Self::Vector, epsilon: f32, out: &mut Self::Rows);
    /// Rows, or parts of rows, as long as `weight`.
    fn rms_norm_in_place(&self, x: &mut Self::Rows, weight: &Self::Vector, epsilon: f32);
    fn out_features(weight: &Self::Linear) -> usize;
    fn linear(
        &self,
        scratch: &mut Self::Scratch,
        x: &Self::Rows,
        rows: std::ops::Range<usize>,
        jobs: LinearJobs<'_, '_, Self>,
    ) where
        Self: Sized,
    {
        self.linear_beside(scratch, x, rows, jobs, &mut || ());
    }
    /// [`Backend::linear`], but the calling thread does something else first that does not use the backend, while the
    /// device begins.
    fn linear_beside(
        &self,
        scratch: &mut Self::Scratch,
        x: &Self::Rows,
        rows: std::ops::Range<usize>,
        jobs: LinearJobs<'_, '_, Self>,
        beside: &mut dyn FnMut(),
    ) where
        Self: Sized;
    fn add(&self, x: &mut Self::Rows, y: &Self::Rows);
    fn add_bias(&self, x: &mut Self::Rows, bias: &Self::Vector);
    /// Adds to rows of `width`: row `i` of `y`, times the weight, to the row that `targets[i]` names with it.
    fn add_weighted(&self, x: &mut Self::Rows, width: usize, y: &Self::Rows, targets: &[(usize, f32)]);
    fn scale(&self, x: &mut Self::Rows, factor: f32);
    fn clear(&self, x: &mut Self::Rows);
    fn gate_mul(&self, activation: Activation, gate: &mut Self::Rows, up: &Self::Rows);
    fn rope(&self, x: &mut Self::Rows, heads: usize, head_dim: usize, style: RopeStyle, angles: &RopeAngles);
    /// Appends the rows of `keys` and `values`, so many for each cache and in order, to one layer of the caches.
    fn append(
        &self,
        caches: Vec<(&mut Self::Cache, usize)>,
        layer: usize,
        shape: HeadShape,
        keys: &Self::Rows,
        values: &Self::Rows,
    ) -> Result<(), CacheError>;
    /// Takes entries out of a cache: one place per layer and KV head.
    fn evict(&self, cache: &mut Self::Cache, plans: &[Option<HeadPlan<'_>>]) -> Result<(), CacheError>;
    fn attend(
        &self,
        layer: usize,
        shape: HeadShape,
        queries: &Self::Rows,
        sequences: Vec<Attention<'_, Self::Cache>>,
        out: &mut Self::Rows,
    );
    /// Copies the rows of these indices, one after the other.
    fn gather(&self, rows: &Self::Rows, width: usize, indices: &[usize], out: &mut Self::Rows);
    /// Moves rows of `width` to the host, one to each vector; says whether all of their numbers are finite. What `rows` has
    /// afterwards is of no use.
    fn take_rows(&self, rows: &mut Self::Rows, width: usize, out: &mut [&mut Vec<f32>]) -> bool;
    /// Copies numbers to the host.
    fn read(&self, rows: &Self::Rows, range: std::ops::Range<usize>, out: &mut Vec<f32>);
}

/// The CPU: rows are vectors, and every operation runs on one thread pool.
pub(crate) struct CpuBackend {
    pool: ThreadPool,
}

impl CpuBackend {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            pool: ThreadPool::new(threads),
        }
    }

    pub(crate) fn limits(&self, bytes: usize) -> Result<Limits, Error> {
        limits::measure(&self.pool, bytes).map_err(Error::Measurement)
    }

    pub(crate) fn threads(&self) -> usize {
        self.pool.threads()
    }
}

/// What methods that compress a prompt compute besides the forward pass.
impl CpuBackend {
    pub(crate) fn add_to_statistics(&self, statistics: &mut QueryStatistics, queries: &[f32]) {
        statistics.add(&self.pool, queries);
    }

    pub(crate) fn expected_attention(
        &self,
        cache: &KvCache,
        layer: usize,
        shape: HeadShape,
        gaussian: &Gaussian,
        skipped: usize,
        out: &mut Vec<Vec<f32>>,
    ) {
        expected_attention(&self.pool, cache, layer, shape.heads, gaussian, skipped, out);
    }

    pub(crate) fn reconstruct(&self, shape: HeadShape, task: &mut Reconstruction<'_>) {
        reconstruct(&self.pool, shape.heads, shape.scale, task);
    }
}

impl Backend for CpuBackend {
    type Rows = Vec<f32>;
    type Vector = Vec<f32>;
    type Linear = Linear;
    type Cache = KvCache;
    type Scratch = Activations;

    fn vector(&self, values: Vec<f32>) -> Vec<f32> {
        values
    }

    fn weight(
        &self,
        weight_type: WeightType,
        out_features: usize,
        in_features: usize,
        data: &[u8],
    ) -> Result<Linear, LinearError> {
        Linear::from_gguf(weight_type, out_features, in_features, data)
    }

    fn resize(&self, rows: &mut Vec<f32>, values: usize) {
        rows.resize(values, 0.0);
    }

    fn embed(&self, table: &Linear, tokens: &[u32], out: &mut Vec<f32>) {
        let width = table.in_features();
        for (token, row) in tokens.iter().zip(out.chunks_exact_mut(width)) {
            table.row(*token as usize, row);
        }
    }

    fn rms_norm(&self, x: &Vec<f32>, weight: &Vec<f32>, epsilon: f32, out: &mut Vec<f32>) {
        ops::rms_norm(&self.pool, x, weight, epsilon, out);
    }

    fn rms_norm_in_place(&self, x: &mut Vec<f32>, weight: &Vec<f32>, epsilon: f32) {
        ops::rms_norm_in_place(&self.pool, x, weight, epsilon);
    }

    fn out_features(weight: &Linear) -> usize {
        weight.out_features()
    }

    fn linear_beside(
        &self,
        scratch: &mut Activations,
        x: &Vec<f32>,
        rows: std::ops::Range<usize>,
        jobs: LinearJobs<'_, '_, Self>,
        beside: &mut dyn FnMut(),
    ) {
        let columns = jobs[0].0.in_features();
        let values = &x[rows.start * columns..rows.end * columns];
        if jobs.iter().any(|(weight, _)| weight.needs_floats()) {
            scratch.set(&self.pool, values, rows.len(), columns);
        } else {
            scratch.set_quantised(&self.pool, values, rows.len(), columns);
        }
        let mut jobs: Vec<(&Linear, &mut [f32])> = jobs
            .iter_mut()
            .map(|(weight, out)| (*weight, out.as_mut_slice()))
            .collect();
        matmul_beside(&self.pool, scratch, &mut jobs, beside);
    }

    fn add(&self, x: &mut Vec<f32>, y: &Vec<f32>) {
        ops::add(&self.pool, x, y);
    }

    fn add_bias(&self, x: &mut Vec<f32>, bias: &Vec<f32>) {
        ops::add_bias(&self.pool, x, bias);
    }

    fn add_weighted(&self, x: &mut Vec<f32>, width: usize, y: &Vec<f32>, targets: &[(usize, f32)]) {
        for (&(row, weight), y) in targets.iter().zip(y.chunks_exact(width)) {
            ops::add_scaled(&mut x[row * width..][..width], y, weight);
        }
    }

    fn scale(&self, x: &mut Vec<f32>, factor: f32) {
        ops::scale(&self.pool, x, factor);
    }

    fn clear(&self, x: &mut Vec<f32>) {
        x.fill(0.0);
    }

    fn gate_mul(&self, activation: Activation, gate: &mut Vec<f32>, up: &Vec<f32>) {
        ops::gate_mul(&self.pool, activation, gate, up);
    }

    fn rope(&self, x: &mut Vec<f32>, heads: usize, head_dim: usize, style: RopeStyle, angles: &RopeAngles) {
        ops::rope(&self.pool, x, heads, head_dim, style, angles);
    }

    fn append(
        &self,
        caches: Vec<(&mut KvCache, usize)>,
        layer: usize,
        shape: HeadShape,
        keys: &Vec<f32>,
        values: &Vec<f32>,
    ) -> Result<(), CacheError> {
        let width = shape.kv_heads * shape.head_dim;
        let (mut keys, mut values) = (keys.as_slice(), values.as_slice());
        let mut tasks: Vec<NewRows<'_>> = Vec::with_capacity(caches.len());
        for (cache, rows) in caches {
            let (own_keys, other_keys) = keys.split_at(rows * width);
            let (own_values, other_values) = values.split_at(rows * width);
            (keys, values) = (other_keys, other_values);
            tasks.push(NewRows {
                cache,
                keys: own_keys,
                values: own_values,
            });
        }
        append_each(&self.pool, layer, &mut tasks)
    }

    fn evict(&self, cache: &mut KvCache, plans: &[Option<HeadPlan<'_>>]) -> Result<(), CacheError> {
        cache.evict(&self.pool, plans)
    }

    fn attend(
        &self,
        layer: usize,
        shape: HeadShape,
        queries: &Vec<f32>,
        sequences: Vec<Attention<'_, KvCache>>,
        out: &mut Vec<f32>,
    ) {
        let width = shape.heads * shape.head_dim;
        let mut rest = out.as_mut_slice();
        let mut tasks: Vec<AttentionTask<'_>> = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            let (own, others) = rest.split_at_mut(sequence.rows * width);
            rest = others;
            tasks.push(AttentionTask {
                cache: sequence.cache,
                layer,
                queries: &queries[sequence.first * width..(sequence.first + sequence.rows) * width],
                rows: sequence.rows,
                window: sequence.window,
                out: own,
                mass: sequence
                    .mass
                    .map(|request| (request.mass, request.pooling, request.window)),
            });
        }
        attend(&self.pool, shape.heads, shape.scale, &mut tasks);
    }

    fn gather(&self, rows: &Vec<f32>, width: usize, indices: &[usize], out: &mut Vec<f32>) {
        for (&index, out) in indices.iter().zip(out.chunks_exact_mut(width)) {
            out.copy_from_slice(&rows[index * width..][..width]);
        }
    }

    fn take_rows(&self, rows: &mut Vec<f32>, width: usize, out: &mut [&mut Vec<f32>]) -> bool {
        if let [out] = out
            && rows.len() == width
            && rows.capacity() < 2 * width
        {
            // No copy; but nobody is to keep the memory of many rows for the sake of one.
            std::mem::swap(rows, out);
            return ops::all_finite(out);
        }
        ops::read_rows(&self.pool, rows, width, out)
    }

    fn read(&self, rows: &Vec<f32>, range: std::ops::Range<usize>, out: &mut Vec<f32>) {
        out.clear();
        out.extend_from_slice(&rows[range]);
    }
}
