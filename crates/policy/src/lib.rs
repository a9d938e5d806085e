//! Which entries of a KV cache stay?
//!
//! Eviction without tensors: a [`Method`] says for the prompt and for decoding how entries are scored, how scores become a
//! running utility, who shares a ranking and how much stays; a [`PolicyState`] follows one sequence and turns observations
//! into an [`EvictionPlan`]. Nothing here knows models, caches, threads or files, so an engine of any kind can embed it.
//!
//! The method is that of "What Matters for Aggressive Decoding-Time KV Eviction?" (sections 3 and Appendix E there; the
//! documentation of each axis names its equation), widened on every axis. What the paper leaves open is decided here and
//! said to be ours: [`Protect::reserve`], [`Protect::rescue`], the formulas of [`Aggregation::Adaptive`] and
//! [`Policy::reactive`], and every [`Coupling`] but the sequential one. Methods for the prompt are those of their own
//! publications ([`Preset::source`]).
//!
//! # One sequence
//!
//! ```
//! use inertiakv_policy::{HeadObservation, Method, PolicyState, Shape};
//!
//! let method: Method = "inertia:ratio=0.5,alpha=0.9".parse()?;
//! let shape = Shape::uniform(2, 1, 1); // layers, KV heads, query heads per KV head
//! let mut state = PolicyState::new(&method.decode.policy, &shape, 4)?; // after a prefill of 4 tokens
//!
//! // One decode step: the cache of every layer and head has appended one row.
//! let needs = state.begin_step(1);
//! for layer in 0..shape.layers {
//!     if needs.needs(layer) {
//!         // The softmax row of the step's query, summed over the query heads of each KV head.
//!         let mass = [0.1, 0.4, 0.1, 0.2, 0.2];
//!         state.observe(layer, 1, &[HeadObservation { mass: &mass, ..Default::default() }])?;
//!     }
//! }
//! let plan = state.finish_step()?;
//! for layer in 0..shape.layers {
//!     if let Some(rows) = plan.for_head(layer, 0) {
//!         assert_eq!(rows.rows, 2); // copy rows.moves in order, then cut the head to rows.rows
//!     }
//! }
//! assert_eq!(state.retained(0, 0), [1, 4]); // of the equals 3 and 4 the later one stays
//! # Ok::<(), inertiakv_policy::PolicyError>(())
//! ```
//!
//! # A compressed prompt
//!
//! The prompt is a step of its own, or several, of a state that begins empty; decoding goes on with what it left.
//!
//! ```
//! use inertiakv_policy::{HeadObservation, Method, PolicyState, Shape};
//!
//! let method: Method = "keydiff:ratio=0.5+inertia:tokens=1".parse()?;
//! let shape = Shape::uniform(1, 2, 1);
//! let prefill = method.prefill.expect("a method for the prompt");
//! let mut prompt = PolicyState::of_prompt(&prefill.policy, &shape, 4)?;
//! if prompt.begin_step(4).needs(0) {
//!     let heads = [[0.1, 0.9, 0.2, 0.8], [0.3, 0.9, 0.1, 0.8]];
//!     let heads = heads.each_ref().map(|cosines| HeadObservation { key_similarity: cosines, ..Default::default() });
//!     prompt.observe(0, 1, &heads)?;
//! }
//! let plan = prompt.finish_step()?; // to be applied as after any step
//! assert_eq!((plan.for_head(0, 0).map(|rows| rows.rows), prompt.retained(0, 1)), (Some(2), vec![0, 2]));
//! let mut state = prompt.decode(&method.decode.policy)?;
//! # state.begin_step(1);
//! # Ok::<(), inertiakv_policy::PolicyError>(())
//! ```
//!
//! # Rules that hold for every method
//!
//! - B is exact: an eviction leaves B entries in every head, or B times their number in the heads that share a budget
//!   ([`Share`]), whatever is protected. It is measured at the end of a step, so within a step of q new tokens B + q are
//!   held. A head that a compressed prompt left with fewer fills up first.
//! - A ranking may be shared by heads of which a compressed prompt left different entries. A position then leaves all of
//!   them at once, so that they keep at most B entries in the mean, and less than one entry fewer.
//! - Positions are never renumbered and an evicted entry never comes back.
//! - Ranking is by utility; among equals the later position stays. NaN and infinity are errors, not ranks.
//! - Rows are not in the order of positions: few freed rows are filled from the tail, many are closed by a compaction that
//!   keeps the order ([`RowPlan`]).
//! - The same observations give the same plans; nothing is drawn at random, [`Scorer::Random`] included.

#![forbid(unsafe_code)]

mod adaptive;
mod aggregation;
mod agreement;
mod budget;
mod coupling;
mod error;
mod method;
mod plan;
mod policy;
mod pooling;
mod preset;
mod protect;
mod ragged;
mod ranking;
mod ratio;
mod refresh;
mod scorer;
mod selection;
mod shape;
mod smoothing;
mod state;
mod text;

pub use adaptive::AdaptiveReport;
pub use aggregation::Aggregation;
pub use agreement::{spearman, top_jaccard};
pub use budget::Budget;
pub use coupling::{Across, Coupling, Share};
pub use error::PolicyError;
pub use method::{Method, Rule, Stage};
pub use plan::{EvictionPlan, RowPlan};
pub use policy::Policy;
pub use pooling::{GroupPooling, HeadPooling};
pub use preset::Preset;
pub use protect::Protect;
pub use ratio::Ratio;
pub use refresh::Refresh;
pub use scorer::{Features, HeadObservation, Scorer};
pub use shape::{LayerRange, Shape};
pub use smoothing::Smoothing;
pub use state::{PolicyState, StepNeeds};
pub use text::Setting;
