//! What can go wrong, and what to do about it.

use crate::method::Stage;
use crate::preset::Preset;
use crate::text;

/// Everything this crate refuses. Each message is one sentence that says what to do next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The name before the colon is no preset.
    #[error("`{name}` is not a method; use one of: {}", Preset::names())]
    UnknownMethod {
        /// The name as written.
        name: String,
    },
    /// A method asked for at a stage it does not have.
    #[error("`{name}` does not work at {stage}; use it at {}, or another method", name.stages()[0])]
    WrongStage {
        /// The method.
        name: Preset,
        /// The stage asked for.
        stage: Stage,
    },
    /// More than one prefill and one decode-time method.
    #[error("`{text}` joins more than two methods; write prefill+decode, such as `snapkv:ratio=0.5+inertia:ratio=0.9`")]
    TooManyStages {
        /// The text.
        text: String,
    },
    /// A key that no method has.
    #[error("`{key}` is not a key of a method; use one of: {}", text::key_names())]
    UnknownKey {
        /// The key as written.
        key: String,
    },
    /// A key given twice.
    #[error("`{key}` is given twice; keep one of the two")]
    DuplicateKey {
        /// The key.
        key: &'static str,
    },
    /// Something between the commas that is not `key=value`.
    #[error("`{pair}` is not of the form key=value; write for example `inertia:ratio=0.9,refresh=4`")]
    MalformedPair {
        /// The text between two commas.
        pair: String,
    },
    /// A value of the wrong kind or out of range.
    #[error("`{key}={value}` is not possible; {key} is {expected}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// The value as written or as set.
        value: String,
        /// The kind and range of values.
        expected: &'static str,
    },
    /// Two settings that contradict each other or of which one would have no effect.
    #[error("`{key}` does not go with the rest of the method: {reason}")]
    Conflict {
        /// The key to change or drop.
        key: &'static str,
        /// Why, and what would work.
        reason: &'static str,
    },
    /// Text that is no decimal fraction between 0 and 1.
    #[error("`{text}` is not a fraction; write a decimal from 0 to 1 with at most 12 places, such as 0.9")]
    BadRatio {
        /// The text.
        text: String,
    },
    /// A shape without layers, heads or query heads, or with a wrong number of evictable flags.
    #[error("the shape is not usable ({reason}); give the model's layers, KV heads and query group")]
    BadShape {
        /// What is wrong.
        reason: &'static str,
    },
    /// Every layer of the model is a sliding-window layer.
    #[error("no layer of this model can be evicted (all have a sliding window); use the method `full`")]
    NoEvictableLayer,
    /// `layers` names layers the model does not have or that are never scored.
    #[error(
        "`layers={first}-{last}` names no range of scorable layers of a model with {layers} layers (numbered from 0); choose another range"
    )]
    BadLayers {
        /// First layer of the range.
        first: usize,
        /// Last layer of the range.
        last: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// Positions are 32-bit numbers.
    #[error(
        "the sequence would pass {} tokens, the most a policy can number; start a new sequence",
        u32::MAX
    )]
    TooManyTokens,
    /// A call that does not fit the order begin, observe, finish.
    #[error("`{call}` was called {when}; call begin_step, then observe for each needed layer, then finish_step")]
    OutOfOrder {
        /// The method called.
        call: &'static str,
        /// When.
        when: &'static str,
    },
    /// Layers must be observed in ascending order.
    #[error("layer {found} was observed where layer {expected} was due; observe the needed layers in ascending order")]
    LayerOrder {
        /// The layer that was due.
        expected: usize,
        /// The layer observed.
        found: usize,
    },
    /// A refresh step ended before every needed layer was observed.
    #[error("layer {layer} was not observed in a refresh step; pass every layer that StepNeeds asks for")]
    MissingLayer {
        /// The first layer missing.
        layer: usize,
    },
    /// Another number of heads than the shape says.
    #[error(
        "layer {layer} was observed with {found} KV heads, but the shape has {expected}; pass one entry per KV head"
    )]
    HeadCount {
        /// The layer.
        layer: usize,
        /// KV heads of the shape.
        expected: usize,
        /// KV heads passed.
        found: usize,
    },
    /// A feature with another number of values than the head has rows.
    #[error(
        "layer {layer}, KV head {head}: {feature} has {found} values for {expected} cached rows; pass one value per row"
    )]
    RowCount {
        /// The layer.
        layer: usize,
        /// The KV head.
        head: usize,
        /// Which feature.
        feature: &'static str,
        /// Rows held.
        expected: usize,
        /// Values passed.
        found: usize,
    },
    /// A mass over no query.
    #[error("layer {layer} was observed with no query; pass the number of queries summed in the mass, at least 1")]
    NoQueries {
        /// The layer.
        layer: usize,
    },
    /// NaN or infinity among the observations.
    #[error(
        "layer {layer}, KV head {head}: a score is NaN or infinite, so entries cannot be ranked; check the model's weights and the attention of this layer"
    )]
    NotFinite {
        /// The layer.
        layer: usize,
        /// The KV head.
        head: usize,
    },
}
