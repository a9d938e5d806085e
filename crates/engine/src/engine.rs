//! What is shared by all sessions of a model: weights, tokenizer, memory, threads?

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use inertiakv_kernels::attention::{GroupPooling, Mass, QueryStatistics, Reconstruction};
use inertiakv_kernels::cache::{CacheError, HeadPlan, KvCache, KvPool, KvType};
use inertiakv_kernels::isa::Isa;
use inertiakv_kernels::linear::WeightType;
use inertiakv_policy::{Method, PolicyState, Scorer, Shape};

use crate::Error;
use crate::backend::{Attention, Backend, CpuBackend, MassRequest};
use crate::bench::ModelLimits;
use crate::chat_template::ChatTemplate;
use crate::config::ModelConfig;
use crate::decoder::{Decoder, Profile, Sequence, Workspace};
use crate::hugging_face::open_model;
use crate::info::{ModelInfo, ModelShape};
use crate::learned::{LearnedScorer, ScorerError};
use crate::plan;
use crate::session::{CHUNK, Session};
use crate::tokenizer::Tokenizer;
use crate::weights::{self, Sizes};

/// Rows whose logits are computed at once, which bounds the memory of a long perplexity window.
const LOGIT_ROWS: usize = 32;

/// More threads than this are a mistake.
const MOST_THREADS: usize = 1024;

/// How to run a model. The default is every core, an f16 cache without bound, and the model's own context.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Threads; `None` for one per core.
    pub threads: Option<usize>,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Most bytes of KV cache over all sessions; `None` for no bound.
    pub kv_memory: Option<usize>,
    /// Most tokens of a session; `None` for what the model was made for.
    pub context: Option<usize>,
    /// What weights that a file holds as floats become when they are loaded; `None` leaves them as they are.
    pub quantise: Option<WeightType>,
    /// A trained scorer of this model, for methods that rank by [`Scorer::Learned`].
    pub scorer: Option<PathBuf>,
}

/// A loaded model. Clones share everything.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
    scorer: Option<Arc<LearnedScorer>>,
}

struct Inner {
    name: String,
    config: ModelConfig,
    quantisation: String,
    fingerprint: String,
    sizes: Sizes,
    tokenizer: Tokenizer,
    chat_template: Option<ChatTemplate>,
    decoder: Decoder<CpuBackend>,
    backend: CpuBackend,
    kv_pool: KvPool,
    context: usize,
    /// One forward pass runs at a time; it has all threads.
    workspace: Mutex<Workspace<CpuBackend>>,
}

impl Engine {
    /// Loads a GGUF file or a Hugging Face folder.
    pub fn open(path: &Path, options: &EngineOptions) -> Result<Self, Error> {
        // Small, and so wrong at once rather than after the weights are loaded.
        Isa::chosen()?;
        let scorer = options.scorer.as_deref().map(LearnedScorer::load).transpose()?;
        let file = open_model(path)?;
        let config = ModelConfig::from_gguf(&file)?;
        let context = options.context.unwrap_or(config.context_length);
        if context == 0 || context > config.context_length {
            return Err(Error::ContextOption {
                asked: context,
                limit: config.context_length,
            });
        }
        let kv_pool = plan::pool(&config, options.kv_type, options.kv_memory)?;
        let tokenizer = Tokenizer::from_gguf(&file)?;
        if tokenizer.vocabulary() > config.vocabulary {
            return Err(Error::Vocabulary {
                tokenizer: tokenizer.vocabulary(),
                model: config.vocabulary,
            });
        }
        let chat_template = ChatTemplate::from_gguf(&file, &tokenizer)?;
        let threads = options
            .threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
        if threads == 0 || threads > MOST_THREADS {
            return Err(Error::Threads {
                asked: threads,
                limit: MOST_THREADS,
            });
        }
        let backend = CpuBackend::new(threads);
        let decoder = weights::load(&file, &config, &backend, threads, options.quantise)?;
        let inner = Inner {
            name: name_of(path),
            quantisation: weights::quantisation(&file, options.quantise),
            fingerprint: weights::fingerprint(&file, options.quantise)?,
            sizes: weights::sizes(&decoder),
            config,
            tokenizer,
            chat_template,
            decoder,
            backend,
            kv_pool,
            context,
            workspace: Mutex::default(),
        };
        let engine = Self {
            inner: Arc::new(inner),
            scorer: None,
        };
        match scorer {
            Some(scorer) => engine.with_scorer(scorer),
            None => Ok(engine),
        }
    }

    /// The same loaded model with another trained scorer.
    ///
    /// # Errors
    /// If the scorer was trained on a model of other sizes.
    pub fn with_scorer(mut self, scorer: LearnedScorer) -> Result<Self, Error> {
        scorer.check(self.config())?;
        self.scorer = Some(Arc::new(scorer));
        Ok(self)
    }

    /// The trained scorer, if there is one.
    #[must_use]
    pub fn scorer(&self) -> Option<&LearnedScorer> {
        self.scorer.as_deref()
    }

    /// The trained scorer, without which `what` cannot run.
    pub(crate) fn learned(&self, what: &dyn std::fmt::Display) -> Result<&LearnedScorer, ScorerError> {
        self.scorer()
            .ok_or_else(|| ScorerError::Missing { what: what.to_string() })
    }

    /// What reports call the model: the stem of its file, which for a model of the catalog is its name there. What the
    /// file itself says is in [`ModelShape::name`]; several files may say the same.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Shape of the model.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.inner.config
    }

    /// The model's tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    /// The model's chat template, if it has one.
    #[must_use]
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.inner.chat_template.as_ref()
    }

    /// The memory that holds the caches of all sessions.
    #[must_use]
    pub fn kv_pool(&self) -> &KvPool {
        &self.inner.kv_pool
    }

    /// Most bytes of a cache that has taken a step and holds `kept` entries in every head where entries may leave; layers
    /// with a window hold what that needs of the `whole` sequence. Where heads compete, blocks are less full, and the same
    /// number of entries takes more.
    #[must_use]
    pub fn settled_kv_bytes(&self, kept: usize, whole: usize) -> usize {
        plan::settled_bytes(self.config(), self.kv_pool(), kept, whole)
    }

    /// Most tokens of a session.
    #[must_use]
    pub fn context(&self) -> usize {
        self.inner.context
    }

    /// Threads that compute.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.inner.backend.threads()
    }

    /// Whether both are the same loaded model.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// What this machine could do at best with this model.
    pub fn limits(&self) -> Result<ModelLimits, Error> {
        let sizes = self.inner.sizes;
        let limits = self.inner.backend.limits(sizes.bytes_per_step)?;
        Ok(ModelLimits {
            read_bytes_per_second: limits.read_bytes_per_second,
            float_operations_per_second: limits.float_operations_per_second,
            byte_operations_per_second: limits.byte_operations_per_second,
            decode_tokens_per_second: limits.read_bytes_per_second / sizes.bytes_per_step as f64,
            prefill_tokens_per_second: limits.byte_operations_per_second / (2 * sizes.products_per_row) as f64,
        })
    }

    /// The model in numbers.
    #[must_use]
    pub fn info(&self) -> ModelInfo {
        let config = self.config();
        ModelInfo {
            shape: ModelShape::from(config),
            quantisation: self.inner.quantisation.clone(),
            fingerprint: self.inner.fingerprint.clone(),
            weight_bytes: self.inner.sizes.bytes,
            kv_bytes_per_token: self.kv_pool().bytes_per_row() * config.layers * config.kv_heads,
        }
    }

    /// A new, empty session under `method`.
    pub fn session(&self, method: &Method) -> Result<Session, Error> {
        self.check_method(method)?;
        Ok(Session::new(self.clone(), method.clone()))
    }

    /// Refuses a method that cannot run on this model, before any work is done.
    pub fn check_method(&self, method: &Method) -> Result<(), Error> {
        method.validate()?;
        let prefill = method.prefill.as_ref().map(|rule| &rule.policy);
        if let Some(prefill) = prefill {
            PolicyState::of_prompt(prefill, &self.policy_shape(), 0)?;
        }
        let decode = &method.decode.policy;
        PolicyState::new(decode, &self.policy_shape(), 0)?;
        if prefill
            .into_iter()
            .chain([decode])
            .any(|policy| policy.scorer == Scorer::Learned)
        {
            self.learned(method)?;
        }
        // The queries of earlier chunks are gone when the last chunk of a step is scored.
        match prefill.into_iter().chain([decode]).map(|policy| policy.window).max() {
            Some(asked) if asked > CHUNK => Err(Error::ScoringWindow { asked, limit: CHUNK }),
            _ => Ok(()),
        }
    }

    /// Takes rows out of a cache, on all threads.
    pub(crate) fn evict(&self, cache: &mut KvCache, plans: &[Option<HeadPlan<'_>>]) -> Result<(), CacheError> {
        self.inner.backend.evict(cache, plans)
    }

    /// Adds un-rotated query rows to statistics over them.
    pub(crate) fn add_to_statistics(&self, statistics: &mut QueryStatistics, queries: &[f32]) {
        self.inner.backend.add_to_statistics(statistics, queries);
    }

    /// The attention that the queries at `positions` are expected to pay to the entries of a layer, if they are as those
    /// in `statistics`; per KV head, 0 for the first `skipped` rows.
    pub(crate) fn expected_attention(
        &self,
        cache: &KvCache,
        layer: usize,
        statistics: &QueryStatistics,
        positions: std::ops::Range<usize>,
        skipped: usize,
        out: &mut Vec<Vec<f32>>,
    ) {
        let Inner { backend, decoder, .. } = &*self.inner;
        if statistics.rows() == 0 {
            // A prompt of outliers alone expects nothing.
            out.iter_mut().enumerate().for_each(|(head, out)| {
                out.clear();
                out.resize(cache.rows(layer, head), 0.0);
            });
            return;
        }
        let (first, count) = (positions.start, positions.len());
        let frequencies = &decoder.rotations[decoder.layers[layer].rotation];
        let gaussian = statistics.rotated(decoder.rope_style, frequencies, first, count);
        backend.expected_attention(cache, layer, decoder.shape, &gaussian, skipped, out);
    }

    /// The softmax mass that `queries`, rotated and those of the newest entries, put on each entry of a layer.
    pub(crate) fn attention_mass(&self, cache: &KvCache, layer: usize, queries: &[f32], pooling: GroupPooling) -> Mass {
        let Inner { backend, decoder, .. } = &*self.inner;
        let mut mass = Mass::default();
        let rows = queries.len() / (decoder.shape.heads * decoder.shape.head_dim);
        let request = MassRequest {
            mass: &mut mass,
            pooling,
            window: rows,
        };
        let task = Attention {
            cache,
            first: 0,
            rows,
            window: None,
            mass: Some(request),
        };
        let queries = queries.to_vec();
        let mut attended = vec![0.0; queries.len()];
        backend.attend(layer, decoder.shape, &queries, vec![task], &mut attended);
        mass
    }

    /// Raises scores to the greatest attention that queries pay to a part of the prompt that they repeat.
    pub(crate) fn reconstruct(&self, task: &mut Reconstruction<'_>) {
        let Inner { backend, decoder, .. } = &*self.inner;
        backend.reconstruct(decoder.shape, task);
    }

    /// What the policy must know of the model.
    pub(crate) fn policy_shape(&self) -> Shape {
        let config = self.config();
        Shape {
            layers: config.layers,
            kv_heads: config.kv_heads,
            group: config.group(),
            evictable: (0..config.layers).map(|layer| config.window(layer).is_none()).collect(),
        }
    }

    /// One forward pass, and the logits that are asked for: both under one lock, so no other session comes between.
    pub(crate) fn forward(
        &self,
        batch: &mut [Sequence<'_, CpuBackend>],
        logits: Logits<'_>,
        profile: &mut Profile,
    ) -> Result<(), Error> {
        let Inner {
            decoder,
            backend,
            workspace,
            ..
        } = &*self.inner;
        let mut work = workspace.lock().unwrap_or_else(PoisonError::into_inner);
        decoder.forward(backend, &mut work, batch, profile)?;
        match logits {
            Logits::Nothing => {}
            Logits::Last(out) => {
                let rows: Vec<usize> = batch.iter().map(|sequence| sequence.tokens.len()).collect();
                decoder.last_logits(backend, &mut work, &rows, out, profile)?;
            }
            Logits::Rows(rows, take) => {
                for first in rows.clone().step_by(LOGIT_ROWS) {
                    let part = first..(first + LOGIT_ROWS).min(rows.end);
                    decoder.logits(backend, &mut work, part, take, profile)?;
                }
            }
        }
        Ok(())
    }
}

/// The stem of a file, or the name of a folder, which may have points in it.
fn name_of(path: &Path) -> String {
    let name = if path.is_dir() {
        path.file_name()
    } else {
        path.file_stem()
    };
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// Which rows of a batch need logits.
pub(crate) enum Logits<'a> {
    /// None of them.
    Nothing,
    /// The last one of each sequence; its logits replace the vector's content.
    Last(&'a mut [&'a mut Vec<f32>]),
    /// These, handed over one by one with the number of the row.
    Rows(std::ops::Range<usize>, &'a mut dyn FnMut(usize, &[f32])),
}
