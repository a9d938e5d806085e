//! What does the model compute for a batch of rows?
//!
//! One decoder for every family: what differs between them is data (biases, norms, windows, rotations, experts). A batch
//! is the new rows of one or several sequences; their matrix products run together, their attention apart.

mod feed_forward;

use std::ops::Range;
use std::time::{Duration, Instant};

use inertiakv_kernels::attention::{GroupPooling, Mass};
use inertiakv_kernels::ops::{Activation, RopeAngles, RopeStyle, all_finite};

use crate::Error;
use crate::backend::{Attention, Backend, HeadShape, MassRequest};

use feed_forward::ExpertRows;
pub(crate) use feed_forward::{Experts, FeedForward, Gated};

/// Weights of a model and what it takes to run them.
pub(crate) struct Decoder<B: Backend> {
    pub shape: HeadShape,
    pub hidden: usize,
    pub vocabulary: usize,
    pub norm_epsilon: f32,
    pub activation: Activation,
    /// What embeddings are multiplied by.
    pub embedding_scale: f32,
    pub rope_style: RopeStyle,
    /// Angle per position of each rotated pair, for each way of rotating that layers have.
    pub rotations: Vec<Vec<f64>>,
    pub embedding: B::Linear,
    pub layers: Vec<Layer<B>>,
    pub output_norm: B::Vector,
    /// `None`: the embedding is the output weight too.
    pub output: Option<B::Linear>,
}

/// Weights of one decoder layer.
pub(crate) struct Layer<B: Backend> {
    pub attention_norm: B::Vector,
    pub query: Projection<B>,
    pub key: Projection<B>,
    pub value: Projection<B>,
    /// Norms of the heads of queries and keys, before their rotation.
    pub head_norms: Option<HeadNorms<B>>,
    pub attention_output: Projection<B>,
    /// Norm of what attention adds.
    pub attention_post_norm: Option<B::Vector>,
    pub feed_forward_norm: B::Vector,
    pub feed_forward: FeedForward<B>,
    /// Norm of what the feed-forward network adds.
    pub feed_forward_post_norm: Option<B::Vector>,
    /// Its place in [`Decoder::rotations`].
    pub rotation: usize,
    /// Entries that a row sees at most. Such layers are not shown to observers: nothing is evicted there.
    pub window: Option<usize>,
}

/// Norm weights as long as a head.
pub(crate) struct HeadNorms<B: Backend> {
    pub query: B::Vector,
    pub key: B::Vector,
}

/// A weight with an optional bias.
pub(crate) struct Projection<B: Backend> {
    pub weight: B::Linear,
    pub bias: Option<B::Vector>,
}

/// The new rows of one sequence.
pub(crate) struct Sequence<'a, B: Backend> {
    pub tokens: &'a [u32],
    /// Position of the first of them.
    pub position: usize,
    pub cache: &'a mut B::Cache,
    pub observer: Option<&'a mut dyn Observer<B>>,
}

/// Whoever watches the layers while a batch runs.
pub(crate) trait Observer<B: Backend> {
    /// What to capture in this layer; not asked for layers with a window.
    fn wants(&self, layer: usize) -> Option<Capture>;
    /// Called with the queries of the sequence's new rows, `[rows][heads][head_dim]`, before their rotation, where
    /// [`Observer::wants`] asked for them.
    fn plain_queries(&mut self, _layer: usize, _queries: &B::Rows, _range: Range<usize>) {}
    /// Called after the attention of a layer for which [`Observer::wants`] asked, and before the next one.
    fn observe(&mut self, layer: usize, seen: &Seen<'_, B>) -> Result<(), Error>;
}

/// One layer of one sequence, right after its attention.
pub(crate) struct Seen<'a, B: Backend> {
    pub cache: &'a B::Cache,
    /// The queries of the batch, rotated, of which `range` is the sequence's: `[rows][heads][head_dim]`.
    pub queries: &'a B::Rows,
    pub range: Range<usize>,
    /// What was asked for of it.
    pub mass: &'a Mass,
}

/// What an [`Observer`] needs of one layer.
#[derive(Clone, Copy, Default)]
pub(crate) struct Capture {
    /// How the heads of a group are pooled, and how many of the last queries count; `None`: no attention mass is needed.
    pub mass: Option<(GroupPooling, usize)>,
    /// The queries before their rotation.
    pub plain_queries: bool,
    /// The observer does not use the backend, and so may look while the device goes on.
    pub beside: bool,
}

/// Where the time of a forward pass went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Profile {
    /// Linear layers.
    pub matmul: Duration,
    /// Attention, the capture of its mass included.
    pub attention: Duration,
    /// Turning mass and norms into scores and utilities: the calling thread's time, in which the others have begun with the
    /// next linear layer.
    pub scoring: Duration,
    /// Choosing what to evict, and evicting it.
    pub eviction: Duration,
    /// Everything, the four above included.
    pub total: Duration,
}

impl std::ops::AddAssign for Profile {
    fn add_assign(&mut self, other: Self) {
        self.matmul += other.matmul;
        self.attention += other.attention;
        self.scoring += other.scoring;
        self.eviction += other.eviction;
        self.total += other.total;
    }
}

/// Rows that live only during a forward pass, kept to be reused by the next.
pub(crate) struct Workspace<B: Backend> {
    hidden: B::Rows,
    normed: B::Rows,
    queries: B::Rows,
    keys: B::Rows,
    values: B::Rows,
    attended: B::Rows,
    projected: B::Rows,
    gate: B::Rows,
    up: B::Rows,
    experts: ExpertRows<B>,
    logits: B::Rows,
    scratch: B::Scratch,
    angles: Vec<RopeAngles>,
    masses: Vec<Mass>,
    /// On the host: final rows, or logits.
    last_rows: Vec<f32>,
}

impl<B: Backend> Default for Workspace<B> {
    fn default() -> Self {
        Self {
            hidden: B::Rows::default(),
            normed: B::Rows::default(),
            queries: B::Rows::default(),
            keys: B::Rows::default(),
            values: B::Rows::default(),
            attended: B::Rows::default(),
            projected: B::Rows::default(),
            gate: B::Rows::default(),
            up: B::Rows::default(),
            experts: ExpertRows::default(),
            logits: B::Rows::default(),
            scratch: B::Scratch::default(),
            angles: Vec::new(),
            masses: Vec::new(),
            last_rows: Vec::new(),
        }
    }
}

impl<B: Backend> Decoder<B> {
    /// Runs the new rows of all `sequences` and leaves their final hidden states in the workspace, in order.
    ///
    /// Every layer appends to its cache before it attends, so a row sees itself and everything before it.
    pub(crate) fn forward(
        &self,
        backend: &B,
        work: &mut Workspace<B>,
        sequences: &mut [Sequence<'_, B>],
        profile: &mut Profile,
    ) -> Result<(), Error> {
        let start = Instant::now();
        let mut tokens = Vec::new();
        let mut positions = Vec::new();
        for sequence in sequences.iter() {
            tokens.extend_from_slice(sequence.tokens);
            positions.extend((sequence.position..).take(sequence.tokens.len()).map(|at| at as u32));
        }
        let rows = tokens.len();
        self.size(backend, work, rows);
        work.masses.resize_with(sequences.len(), Mass::default);
        work.angles.resize_with(self.rotations.len(), RopeAngles::default);
        for (angles, frequencies) in work.angles.iter_mut().zip(&self.rotations) {
            angles.set(&positions, frequencies);
        }
        backend.embed(&self.embedding, &tokens, &mut work.hidden);
        if self.embedding_scale != 1.0 {
            backend.scale(&mut work.hidden, self.embedding_scale);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            self.attention(backend, work, index, layer, sequences, profile)?;
            self.add(backend, work, layer.attention_post_norm.as_ref());
            let norm = &layer.feed_forward_norm;
            backend.rms_norm(&work.hidden, norm, self.norm_epsilon, &mut work.normed);
            self.feed_forward(backend, work, &layer.feed_forward, rows, profile);
            self.add(backend, work, layer.feed_forward_post_norm.as_ref());
            self.check_rows(backend, work, index, sequences)?;
        }
        backend.rms_norm(&work.hidden, &self.output_norm, self.norm_epsilon, &mut work.normed);
        profile.total += start.elapsed();
        Ok(())
    }

    /// Hands the logits of `rows` of the last [`Decoder::forward`] to `take`, with the number of the row.
    pub(crate) fn logits(
        &self,
        backend: &B,
        work: &mut Workspace<B>,
        rows: Range<usize>,
        take: &mut dyn FnMut(usize, &[f32]),
        profile: &mut Profile,
    ) -> Result<(), Error> {
        let start = Instant::now();
        self.project(backend, work, rows.clone());
        profile.matmul += start.elapsed();
        let mut out = std::mem::take(&mut work.last_rows);
        for (index, row) in rows.enumerate() {
            let range = index * self.vocabulary..(index + 1) * self.vocabulary;
            backend.read(&work.logits, range, &mut out);
            require_finite(all_finite(&out), format_args!("the output layer"))?;
            take(row, &out);
        }
        work.last_rows = out;
        profile.total += start.elapsed();
        Ok(())
    }

    /// Logits of the last row of every sequence of the last [`Decoder::forward`], which had `rows` rows of each.
    pub(crate) fn last_logits(
        &self,
        backend: &B,
        work: &mut Workspace<B>,
        rows: &[usize],
        out: &mut [&mut Vec<f32>],
        profile: &mut Profile,
    ) -> Result<(), Error> {
        let start = Instant::now();
        let mut end = 0;
        let lasts: Vec<usize> = rows
            .iter()
            .map(|rows| {
                end += rows;
                end - 1
            })
            .collect();
        // The projected rows are free after the last layer.
        backend.resize(&mut work.projected, lasts.len() * self.hidden);
        backend.gather(&work.normed, self.hidden, &lasts, &mut work.projected);
        std::mem::swap(&mut work.normed, &mut work.projected);
        let product = Instant::now();
        self.project(backend, work, 0..lasts.len());
        profile.matmul += product.elapsed();
        let finite = backend.take_rows(&mut work.logits, self.vocabulary, out);
        profile.total += start.elapsed();
        require_finite(finite, format_args!("the output layer"))
    }

    fn project(&self, backend: &B, work: &mut Workspace<B>, rows: Range<usize>) {
        backend.resize(&mut work.logits, rows.len() * self.vocabulary);
        let weight = self.output.as_ref().unwrap_or(&self.embedding);
        backend.linear(&mut work.scratch, &work.normed, rows, &mut [(weight, &mut work.logits)]);
    }

    /// The last row of a sequence tells of all: what is not finite spreads through attention to every later row.
    fn check_rows(
        &self,
        backend: &B,
        work: &mut Workspace<B>,
        layer: usize,
        sequences: &[Sequence<'_, B>],
    ) -> Result<(), Error> {
        let mut end = 0;
        for sequence in sequences {
            end += sequence.tokens.len();
            backend.read(
                &work.hidden,
                (end - 1) * self.hidden..end * self.hidden,
                &mut work.last_rows,
            );
            require_finite(all_finite(&work.last_rows), format_args!("layer {layer}"))?;
        }
        Ok(())
    }

    /// Adds the projected rows, normed if there is a norm for them, to the residual stream.
    fn add(&self, backend: &B, work: &mut Workspace<B>, norm: Option<&B::Vector>) {
        if let Some(norm) = norm {
            backend.rms_norm_in_place(&mut work.projected, norm, self.norm_epsilon);
        }
        backend.add(&mut work.hidden, &work.projected);
    }

    fn size(&self, backend: &B, work: &mut Workspace<B>, rows: usize) {
        let (queries, keys) = (
            self.shape.heads * self.shape.head_dim,
            self.shape.kv_heads * self.shape.head_dim,
        );
        for (buffer, width) in [
            (&mut work.hidden, self.hidden),
            (&mut work.normed, self.hidden),
            (&mut work.projected, self.hidden),
            (&mut work.queries, queries),
            (&mut work.attended, queries),
            (&mut work.keys, keys),
            (&mut work.values, keys),
        ] {
            backend.resize(buffer, rows * width);
        }
    }

    fn attention(
        &self,
        backend: &B,
        work: &mut Workspace<B>,
        index: usize,
        layer: &Layer<B>,
        sequences: &mut [Sequence<'_, B>],
        profile: &mut Profile,
    ) -> Result<(), Error> {
        let rows = sequences.iter().map(|sequence| sequence.tokens.len()).sum();
        backend.rms_norm(&work.hidden, &layer.attention_norm, self.norm_epsilon, &mut work.normed);
        let start = Instant::now();
        backend.linear(
            &mut work.scratch,
            &work.normed,
            0..rows,
            &mut [
                (&layer.query.weight, &mut work.queries),
                (&layer.key.weight, &mut work.keys),
                (&layer.value.weight, &mut work.values),
            ],
        );
        profile.matmul += start.elapsed();
        for (rows, projection) in [
            (&mut work.queries, &layer.query),
            (&mut work.keys, &layer.key),
            (&mut work.values, &layer.value),
        ] {
            if let Some(bias) = &projection.bias {
                backend.add_bias(rows, bias);
            }
        }
        let HeadShape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        if let Some(norms) = &layer.head_norms {
            backend.rms_norm_in_place(&mut work.queries, &norms.query, self.norm_epsilon);
            backend.rms_norm_in_place(&mut work.keys, &norms.key, self.norm_epsilon);
        }
        let is_shown = layer.window.is_none();
        if is_shown {
            show_queries(index, &work.queries, heads * head_dim, sequences);
        }
        let angles = &work.angles[layer.rotation];
        backend.rope(&mut work.queries, heads, head_dim, self.rope_style, angles);
        backend.rope(&mut work.keys, kv_heads, head_dim, self.rope_style, angles);

        let start = Instant::now();
        let caches = sequences
            .iter_mut()
            .map(|sequence| (&mut *sequence.cache, sequence.tokens.len()))
            .collect();
        backend.append(caches, index, self.shape, &work.keys, &work.values)?;
        let mut first = 0;
        let tasks = sequences
            .iter()
            .zip(&mut work.masses)
            .map(|(sequence, mass)| {
                let task = Attention {
                    cache: &*sequence.cache,
                    first,
                    rows: sequence.tokens.len(),
                    window: layer.window,
                    mass: sequence
                        .observer
                        .as_ref()
                        .filter(|_| is_shown)
                        .and_then(|observer| observer.wants(index)?.mass)
                        .map(|(pooling, window)| MassRequest { mass, pooling, window }),
                };
                first += sequence.tokens.len();
                task
            })
            .collect();
        backend.attend(index, self.shape, &work.queries, tasks, &mut work.attended);
        profile.attention += start.elapsed();

        let mut shown = Ok(());
        let mut show = |beside| {
            let start = Instant::now();
            if is_shown && shown.is_ok() {
                shown = show_layer(index, beside, &work.queries, heads * head_dim, &work.masses, sequences);
            }
            start.elapsed()
        };
        profile.scoring += show(false);
        let start = Instant::now();
        let mut scoring = Duration::ZERO;
        backend.linear_beside(
            &mut work.scratch,
            &work.attended,
            0..rows,
            &mut [(&layer.attention_output.weight, &mut work.projected)],
            &mut || scoring = show(true),
        );
        profile.matmul += start.elapsed().saturating_sub(scoring);
        profile.scoring += scoring;
        shown?;
        if let Some(bias) = &layer.attention_output.bias {
            backend.add_bias(&mut work.projected, bias);
        }
        Ok(())
    }
}

/// Shows every sequence's observer its part of the queries before their rotation, if it wants them.
fn show_queries<B: Backend>(layer: usize, queries: &B::Rows, width: usize, sequences: &mut [Sequence<'_, B>]) {
    let mut first = 0;
    for sequence in sequences {
        let range = first..first + sequence.tokens.len() * width;
        first = range.end;
        if let Some(observer) = &mut sequence.observer
            && observer.wants(layer).is_some_and(|capture| capture.plain_queries)
        {
            observer.plain_queries(layer, queries, range);
        }
    }
}

/// Shows the layer to every sequence's observer that wants it, of those that can look beside the device or the others.
fn show_layer<B: Backend>(
    layer: usize,
    beside: bool,
    queries: &B::Rows,
    width: usize,
    masses: &[Mass],
    sequences: &mut [Sequence<'_, B>],
) -> Result<(), Error> {
    let mut first = 0;
    for (sequence, mass) in sequences.iter_mut().zip(masses) {
        let range = first..first + sequence.tokens.len() * width;
        first = range.end;
        if let Some(observer) = &mut sequence.observer
            && observer.wants(layer).is_some_and(|capture| capture.beside == beside)
        {
            let seen = Seen {
                cache: &*sequence.cache,
                queries,
                range,
                mass,
            };
            observer.observe(layer, &seen)?;
        }
    }
    Ok(())
}

fn require_finite(finite: bool, place: std::fmt::Arguments<'_>) -> Result<(), Error> {
    if finite {
        Ok(())
    } else {
        Err(Error::NotFinite {
            place: place.to_string(),
        })
    }
}
