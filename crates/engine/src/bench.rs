//! How fast does a model run on this machine, and where does the time go?
//!
//! Every measurement prefills random tokens once per round and lets each method decode from a copy of that cache. The
//! methods take turns of some steps, so that a machine that slows down for a while slows all of them. Speed does not
//! depend on what the tokens say.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use inertiakv_policy::Method;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Serialize;

use crate::decoder::Profile;
use crate::{Engine, Error, RunReport, Session, memory};

/// Steps after the first one that do not count: caches and branch predictors get used to the shorter cache.
const WARM_UP_STEPS: usize = 2;

/// Steps of one method that count before the next one's turn: a small part of a second.
const TURN: usize = 32;

/// Steps before them that do not count: the processor's caches are full of another method's entries, and it takes about
/// so many steps until they hold this one's again.
const STEPS_TO_CHANGE: usize = 8;

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Tokens of the prefill; one set of rows for each.
    pub contexts: Vec<usize>,
    /// Methods to decode under.
    pub methods: Vec<Method>,
    /// Decode steps that are timed in each round.
    pub tokens: usize,
    /// Rounds; what is reported is their median.
    pub rounds: usize,
    /// Sequences that decode together, each with a prompt of its own.
    pub sequences: usize,
}

/// Speed at one context under one method. Field names are the keys of the JSON output.
#[derive(Clone, Debug, Serialize)]
pub struct BenchRow {
    /// Tokens of the prefill.
    pub context: usize,
    /// Method in its textual form.
    pub method: String,
    /// Sequences that decoded together.
    pub sequences: usize,
    /// Prompt tokens per second, compressing the prompt included; the median of the rounds. The prefill is shared, so that
    /// remembering what methods of the prompt need is a part of it for all.
    pub prefill_tokens_per_second: f64,
    /// Slowest and fastest round.
    pub prefill_spread: [f64; 2],
    /// Tokens per second of all sequences together, after the step that evicts what exceeds the budget; the median of the
    /// rounds.
    pub decode_tokens_per_second: f64,
    /// Slowest and fastest round.
    pub decode_spread: [f64; 2],
    /// Milliseconds of a step, the median of all.
    pub step_milliseconds: f64,
    /// Milliseconds of the first step, which scores the whole prompt and evicts what exceeds the budget; median.
    pub first_step_milliseconds: f64,
    /// Where the time of the timed steps went.
    pub share: Share,
    /// Entries per layer and head after the last step.
    pub retained: usize,
    /// Bytes of the cache of one sequence after the last step, from the allocator.
    pub kv_bytes: usize,
    /// Most resident memory of the process from the start of the context's first prefill to its end, the copies for the
    /// methods not included; `None` where the system does not tell.
    pub peak_rss_bytes: Option<usize>,
}

/// Shares of the decode time; they add up to 1.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Share {
    /// Linear layers.
    pub matmul: f64,
    /// Attention, the capture of its mass included.
    pub attention: f64,
    /// From mass to scores and utilities.
    pub scoring: f64,
    /// Choosing what leaves, and taking it out.
    pub eviction: f64,
    /// Norms, rotations, sums, embedding, copies: the rest.
    pub other: f64,
}

/// What a machine can do, and what that means for a model. Field names are the keys of the JSON output.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ModelLimits {
    /// Bytes per second that all threads together read from a buffer as large as the weights of a decode step.
    pub read_bytes_per_second: f64,
    /// Additions and multiplications of `f32` per second, as attention needs them.
    pub float_operations_per_second: f64,
    /// Additions and multiplications of bytes per second, as linear layers need them.
    pub byte_operations_per_second: f64,
    /// Decode steps per second if they did nothing but read the weights.
    pub decode_tokens_per_second: f64,
    /// Prompt tokens per second if they did nothing but the byte operations of the layers' weights.
    pub prefill_tokens_per_second: f64,
}

/// What was measured as shares of what [`ModelLimits`] allow: 1 is as fast as the machine can be. Field names are the keys
/// of the JSON output.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Achieved {
    /// Prompt tokens per second against byte operations alone. Attention grows with the context and is no byte operation.
    pub prefill: f64,
    /// Decode steps per second against reading the weights alone.
    pub decode: f64,
    /// Linear layers of a decode step, against reading their weights once however many sequences there are.
    pub matmul: f64,
    /// Attention of a decode step, against reading the caches of all sequences once. Caches small enough to stay in the
    /// processor's are read faster than memory.
    pub attention: f64,
}

impl BenchRow {
    /// How near a measurement comes to the limits of its model and machine.
    #[must_use]
    pub fn achieved(&self, limits: &ModelLimits) -> Achieved {
        let steps_per_second = self.decode_tokens_per_second / self.sequences as f64;
        let cache_seconds = (self.kv_bytes * self.sequences) as f64 / limits.read_bytes_per_second;
        let decode = steps_per_second / limits.decode_tokens_per_second;
        Achieved {
            prefill: self.prefill_tokens_per_second / limits.prefill_tokens_per_second,
            decode,
            matmul: decode / self.share.matmul,
            attention: steps_per_second * cache_seconds / self.share.attention,
        }
    }
}

/// Where a benchmark is.
#[derive(Clone, Copy, Debug)]
pub struct BenchProgress {
    /// Context of the current measurement.
    pub context: usize,
    /// Parts done: the prefills of a round, or a turn of every method.
    pub done: usize,
    /// Parts in all.
    pub total: usize,
}

impl Engine {
    /// Measures all contexts and methods; `progress` is called after every part, and `Break` ends with
    /// [`Error::Cancelled`].
    pub fn bench(
        &self,
        options: &BenchOptions,
        progress: &mut dyn FnMut(BenchProgress) -> ControlFlow<()>,
    ) -> Result<Vec<BenchRow>, Error> {
        self.check_bench(options)?;
        let parts = 1 + options.tokens.div_ceil(TURN);
        let total = (options.contexts.len() * parts).saturating_mul(options.rounds);
        let mut done = 0;
        let mut rows = Vec::new();
        self.warm_up()?;
        for &context in &options.contexts {
            let mut part_done = || {
                done += 1;
                match progress(BenchProgress { context, done, total }) {
                    ControlFlow::Continue(()) => Ok(()),
                    ControlFlow::Break(()) => Err(Error::Cancelled),
                }
            };
            let mut peak = None;
            let mut figures: Vec<Figures> = options.methods.iter().map(|_| Figures::default()).collect();
            let mut order = Order::new(options.methods.len());
            for round in 0..options.rounds {
                let prompts: Vec<Session> = (0..options.sequences)
                    .map(|sequence| {
                        let measured = round == 0 && sequence == 0;
                        if measured {
                            memory::reset_peak();
                        }
                        let seed = (round * options.sequences + sequence) as u64;
                        let session = self.prefilled(context, seed, &options.methods)?;
                        if measured {
                            peak = memory::peak_resident();
                        }
                        Ok(session)
                    })
                    .collect::<Result<_, Error>>()?;
                part_done()?;
                let mut races = options
                    .methods
                    .iter()
                    .zip(&mut figures)
                    .map(|(method, figures)| Race::start(&prompts, method, figures))
                    .collect::<Result<Vec<_>, Error>>()?;
                for first in (0..options.tokens).step_by(TURN) {
                    let steps = TURN.min(options.tokens - first);
                    for race in order.turn() {
                        races[race].turn(steps)?;
                    }
                    part_done()?;
                }
                for race in races {
                    race.finish(options.tokens);
                }
            }
            for (method, figures) in options.methods.iter().zip(figures) {
                rows.push(figures.row(context, method, options.sequences, peak));
            }
        }
        Ok(rows)
    }

    fn check_bench(&self, options: &BenchOptions) -> Result<(), Error> {
        if options.methods.is_empty() || options.tokens == 0 || options.rounds == 0 || options.sequences == 0 {
            return Err(Error::NothingToMeasure);
        }
        let turns = options.tokens.div_ceil(TURN);
        let uncounted = turns.saturating_mul(STEPS_TO_CHANGE).saturating_add(1 + WARM_UP_STEPS);
        let steps = options.tokens.saturating_add(uncounted);
        for &context in &options.contexts {
            if context == 0 {
                return Err(Error::NoTokens);
            }
            let needed = context.saturating_add(steps);
            if needed > self.context() {
                return Err(Error::BenchContext {
                    prompt: context,
                    steps,
                    context: self.context(),
                });
            }
            // The prompts, and a copy of each for every method.
            let copies = 1 + options.methods.len();
            let entries = needed.saturating_mul(options.sequences).saturating_mul(copies);
            let bytes = entries.saturating_mul(self.info().kv_bytes_per_token);
            if memory::physical().is_some_and(|memory| bytes > memory) {
                return Err(Error::BenchMemory {
                    mebibytes: bytes >> 20,
                    sequences: options.sequences,
                    context,
                });
            }
        }
        options.methods.iter().try_for_each(|method| {
            self.check_method(method)?;
            if method.needs_own_prefill() {
                // All methods decode from copies of one prefill.
                return Err(Error::OwnPrefill {
                    method: method.to_string(),
                });
            }
            Ok(())
        })
    }

    /// The first pass through the weights pays for page faults and sleeping threads.
    fn warm_up(&self) -> Result<(), Error> {
        let mut session = self.prefilled(16.min(self.context() - 1), 0, &[])?;
        session.step(&[0])?;
        Ok(())
    }

    fn prefilled(&self, tokens: usize, seed: u64, methods: &[Method]) -> Result<Session, Error> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let prompt: Vec<u32> = (0..tokens).map(|_| self.random_token(&mut random)).collect();
        let mut session = self.session(&Method::full())?;
        session.remember_for(methods)?;
        session.prefill(&prompt, &mut |_, _| ControlFlow::Continue(()))?;
        Ok(session)
    }

    fn random_token(&self, random: &mut ChaCha8Rng) -> u32 {
        random.next_u32() % self.config().vocabulary as u32
    }
}

/// Who runs when: a method starts with another's data in the caches, so each has to follow each of the others as often
/// as the rest do. Two rounds of the circle are balanced so (Williams, "Experimental designs balanced for the estimation
/// of residual effects of treatments", 1949).
struct Order {
    methods: usize,
    turns: usize,
}

impl Order {
    fn new(methods: usize) -> Self {
        Self { methods, turns: 0 }
    }

    /// All methods in the order of the next turn.
    fn turn(&mut self) -> Vec<usize> {
        let methods = self.methods;
        // 0, 1, n - 1, 2, n - 2, ...: every distance once.
        let zigzag = (0..methods).map(|place| match place % 2 {
            0 => methods - place / 2,
            _ => place.div_ceil(2),
        });
        let mut order: Vec<usize> = zigzag.map(|method| (method + self.turns) % methods).collect();
        if (self.turns / methods) % 2 == 1 {
            order.reverse();
        }
        self.turns += 1;
        order
    }
}

/// What the rounds of one method gave.
#[derive(Default)]
struct Figures {
    prefill: Vec<f64>,
    speeds: Vec<f64>,
    steps: Vec<f64>,
    first_steps: Vec<f64>,
    profile: Profile,
    retained: usize,
    kv_bytes: usize,
}

/// One method in one round.
struct Race<'a> {
    sessions: Vec<Session>,
    random: ChaCha8Rng,
    /// Of the steps that count.
    time: Duration,
    figures: &'a mut Figures,
}

impl<'a> Race<'a> {
    /// Copies the prompts, takes the first step and warms up.
    fn start(prompts: &[Session], method: &Method, figures: &'a mut Figures) -> Result<Self, Error> {
        let sessions = prompts
            .iter()
            .map(|prompt| prompt.copy(method))
            .collect::<Result<Vec<_>, Error>>()?;
        let seconds = |report: RunReport| report.prefill_seconds + report.compression_seconds;
        let prefill: f64 = sessions.iter().map(|session| seconds(session.report())).sum();
        let prompt_tokens: usize = sessions.iter().map(Session::position).sum();
        figures.prefill.push(prompt_tokens as f64 / prefill);
        let mut race = Self {
            sessions,
            random: ChaCha8Rng::seed_from_u64(0),
            time: Duration::ZERO,
            figures,
        };
        let first = race.step()?.total;
        race.figures.first_steps.push(milliseconds(first));
        for _ in 0..WARM_UP_STEPS {
            race.step()?;
        }
        Ok(race)
    }

    /// The steps of a change, and as many as `count` that count.
    fn turn(&mut self, count: usize) -> Result<(), Error> {
        for _ in 0..STEPS_TO_CHANGE {
            self.step()?;
        }
        for _ in 0..count {
            let profile = self.step()?;
            self.time += profile.total;
            self.figures.steps.push(milliseconds(profile.total));
            self.figures.profile += profile;
        }
        Ok(())
    }

    /// One step of all sequences.
    fn step(&mut self) -> Result<Profile, Error> {
        let engine = self.sessions[0].engine().clone();
        let tokens: Vec<[u32; 1]> = (self.sessions.iter())
            .map(|_| [engine.random_token(&mut self.random)])
            .collect();
        let tokens: Vec<&[u32]> = tokens.iter().map(<[u32; 1]>::as_slice).collect();
        let start = Instant::now();
        let mut sessions: Vec<&mut Session> = self.sessions.iter_mut().collect();
        let reports = Session::step_together(&mut sessions, &tokens)?;
        // The forward pass, scores included, is in every session's profile; evictions are each session's own.
        let mut profile = reports[0].profile;
        for report in &reports[1..] {
            profile.eviction += report.profile.eviction;
        }
        profile.total = start.elapsed();
        Ok(profile)
    }

    /// Notes the round, in which `steps` counted.
    fn finish(self, steps: usize) {
        let tokens = steps * self.sessions.len();
        self.figures.speeds.push(tokens as f64 / self.time.as_secs_f64());
        let report = self.sessions[0].report();
        self.figures.retained = report.retained;
        self.figures.kv_bytes = report.kv_bytes;
    }
}

impl Figures {
    fn row(self, context: usize, method: &Method, sequences: usize, peak_rss_bytes: Option<usize>) -> BenchRow {
        let total = self.profile.total.as_secs_f64();
        let share = |part: Duration| part.as_secs_f64() / total;
        let Profile {
            matmul,
            attention,
            scoring,
            eviction,
            ..
        } = self.profile;
        let [matmul, attention, scoring, eviction] = [matmul, attention, scoring, eviction].map(share);
        BenchRow {
            context,
            method: method.to_string(),
            sequences,
            prefill_tokens_per_second: median(&self.prefill),
            prefill_spread: spread(&self.prefill),
            decode_tokens_per_second: median(&self.speeds),
            decode_spread: spread(&self.speeds),
            step_milliseconds: median(&self.steps),
            first_step_milliseconds: median(&self.first_steps),
            share: Share {
                matmul,
                attention,
                scoring,
                eviction,
                other: (1.0 - matmul - attention - scoring - eviction).max(0.0),
            },
            retained: self.retained,
            kv_bytes: self.kv_bytes,
            peak_rss_bytes,
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The middle value; the mean of the two in the middle where their number is even.
fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[half - 1], values[half])
    } else {
        values[half]
    }
}

fn spread(values: &[f64]) -> [f64; 2] {
    [
        values.iter().copied().fold(f64::INFINITY, f64::min),
        values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    ]
}

#[cfg(test)]
mod tests {
    use super::{BenchRow, ModelLimits, Order, Share, median, spread};

    #[test]
    fn achieved_shares_are_those_of_what_each_part_must_do() {
        let row = BenchRow {
            context: 100,
            method: "full".to_owned(),
            sequences: 2,
            prefill_tokens_per_second: 500.0,
            prefill_spread: [500.0; 2],
            decode_tokens_per_second: 20.0,
            decode_spread: [20.0; 2],
            step_milliseconds: 100.0,
            first_step_milliseconds: 100.0,
            share: Share {
                matmul: 0.8,
                attention: 0.1,
                scoring: 0.0,
                eviction: 0.0,
                other: 0.1,
            },
            retained: 100,
            kv_bytes: 2_000,
            peak_rss_bytes: None,
        };
        let limits = ModelLimits {
            read_bytes_per_second: 1e6,
            float_operations_per_second: 1e9,
            byte_operations_per_second: 1e9,
            decode_tokens_per_second: 20.0,
            prefill_tokens_per_second: 1_000.0,
        };
        let achieved = row.achieved(&limits);
        // Ten steps a second of at most twenty; 80 ms of linear layers for 50 ms of reading; 10 ms of attention for 4 ms.
        let shares = [achieved.prefill, achieved.decode, achieved.matmul, achieved.attention];
        for (share, expected) in shares.into_iter().zip([0.5, 0.5, 0.625, 0.4]) {
            assert!((share - expected).abs() < 1e-12, "{achieved:?}");
        }
    }

    #[test]
    fn each_method_follows_each_other_as_often() {
        for methods in 1..8 {
            let mut order = Order::new(methods);
            let mut follows = vec![vec![0; methods]; methods];
            for _ in 0..2 * methods {
                let turn = order.turn();
                let mut sorted = turn.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..methods), "{turn:?}");
                for pair in turn.windows(2) {
                    follows[pair[0]][pair[1]] += 1;
                }
            }
            for (before, row) in follows.iter().enumerate() {
                let others = row.iter().enumerate().filter(|(after, _)| *after != before);
                assert!(others.into_iter().all(|(_, &count)| count == 2), "{follows:?}");
            }
        }
    }

    #[test]
    fn medians_and_spreads() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), [1.0, 3.0]);
    }
}
