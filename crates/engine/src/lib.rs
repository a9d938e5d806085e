//! How does a model answer under a KV budget?
//!
//! An [`Engine`] is a loaded model; a [`Session`] is one conversation under one eviction [`Method`]. The engine is the
//! only place where the policy (which entries stay) meets the kernels (how numbers are stored and computed), and the
//! only crate that reads model files.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use inertiakv::{Engine, EngineOptions, GenerateOptions, Method};
//!
//! let engine = Engine::open("model.gguf".as_ref(), &EngineOptions::default())?;
//! let method: Method = "inertia:ratio=0.9".parse()?;
//! let mut session = engine.session(&method)?;
//! let prompt = engine.tokenizer().encode("A long document, and a question about it.", false);
//! session.prefill(&prompt, &mut |_, _| ControlFlow::Continue(()))?;
//! let answer = session.generate(&GenerateOptions::default(), &mut |piece| {
//!     print!("{piece}");
//!     ControlFlow::Continue(())
//! })?;
//! println!("\n{} tokens, {} entries retained", answer.tokens.len(), session.retained_entries());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod backend;
mod bench;
pub mod catalog;
pub mod chat_template;
pub mod config;
mod correlation;
mod decoder;
mod engine;
mod error;
mod generate;
pub mod gguf;
mod hugging_face;
mod info;
mod learned;
pub mod memory;
mod perplexity;
mod plan;
mod report;
pub mod sampling;
mod session;
pub mod testing;
pub mod tokenizer;
mod weights;

pub use bench::{Achieved, BenchOptions, BenchProgress, BenchRow, ModelLimits, Share};
pub use correlation::{Correlation, CorrelationOptions, ScorerCorrelation, Summary};
pub use decoder::Profile;
pub use engine::{Engine, EngineOptions};
pub use error::Error;
pub use generate::{Draw, FinishReason, GenerateOptions, Generation, Generator};
pub use hugging_face::{FolderError, open_model};
pub use inertiakv_kernels::cache::KvType;
pub use inertiakv_kernels::linear::WeightType;
pub use inertiakv_policy as policy;
pub use inertiakv_policy::Method;
pub use info::{ModelInfo, ModelShape};
pub use learned::{LearnedScorer, Schedule, ScorerError, ScorerShape, Training, TrainingOptions, TrainingRecord};
pub use perplexity::{Perplexity, PerplexityOptions, PerplexityProgress, negative_log_likelihood};
pub use plan::{BudgetPlan, MemoryPlan};
pub use report::{RunReport, StepReport};
pub use sampling::Sampling;
pub use session::Session;
