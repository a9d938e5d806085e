//! How fast are we next to llama.cpp, and do we reach the targets?
//!
//! Both sides run the same file with the same threads and an f16 cache, round by round and at each point back to back,
//! and what counts is the ratio within a round: a machine that slows down slows down both. See BENCHMARKING.md.

mod llama;
mod machine;
mod options;
mod ours;
mod points;
mod process;
mod report;
mod source;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use llama::{Llama, Measured, Test};
use machine::Machine;
use options::Options;
use ours::Inertiakv;
use points::{Against, Point, Quantity};
use report::{Outcome, Pair, Report};

/// Decoded after a prompt whose prefill is what is measured.
const TOKENS_AFTER_PREFILL: usize = 8;
/// Rounds in which two methods of ours take turns.
const TURNS: usize = 2;

/// At this depth and beyond, decoding with flash attention in llama.cpp is far slower than without on CPUs; a quick run
/// does not try it.
const SLOW_FLASH_ATTENTION: usize = 2048;

/// Measures and prints.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let options = Options::parse(arguments)?;
    let machine = Machine::look();
    let ours = Inertiakv::new(options.inertiakv.as_deref(), options.threads)?;
    let models = options
        .models
        .iter()
        .map(|&name| Ok((name, ours.model_path(name)?)))
        .collect::<Result<HashMap<_, _>>>()?;
    let paths: Vec<&Path> = models.values().map(PathBuf::as_path).collect();
    let llama = Llama::find(options.llama_bench.as_deref(), options.threads, &paths)?;
    let mut outcomes: Vec<Outcome> = Point::of(&options.models, options.quick)
        .into_iter()
        .map(Outcome::new)
        .collect();
    let mut race = Race {
        models,
        ours,
        llama,
        quick: options.quick,
        flash_attention: HashMap::new(),
    };
    for round in 0..options.rounds {
        race.round(round, options.rounds, &mut outcomes);
    }
    let report = Report {
        machine: &machine,
        llama: &race.llama.about,
        threads: options.threads,
        rounds: options.rounds,
        quick: options.quick,
        outcomes: &outcomes,
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report.json())?);
    } else {
        print!("{}", report.page());
    }
    let failures = outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
    if failures > 0 {
        bail!("{failures} points could not be measured; the reasons are above");
    }
    Ok(())
}

struct Race {
    models: HashMap<&'static str, PathBuf>,
    ours: Inertiakv,
    llama: Llama,
    quick: bool,
    /// The better setting of llama.cpp for each of its measurements, once it is known.
    flash_attention: HashMap<Key, bool>,
}

/// A measurement that several points may share: model, what, and at which length.
type Key = (&'static str, Quantity, usize);

impl Race {
    /// Measures every point that has not failed; an error is kept with its point and the others go on.
    fn round(&mut self, round: usize, rounds: usize, outcomes: &mut [Outcome]) {
        // What llama.cpp measured in this round, for the points that share it.
        let mut measured = HashMap::new();
        for outcome in outcomes {
            let point = outcome.point;
            if outcome.failure.is_some() || round >= point.rounds(rounds) {
                continue;
            }
            eprintln!("round {} of {rounds}: {}, {}", round + 1, point.model, point.name());
            match self.pair(&point, round, &mut measured) {
                Ok(pair) => outcome.pairs.push(pair),
                Err(error) => {
                    eprintln!("  failed: {error:#}");
                    outcome.failure = Some(format!("{error:#}"));
                }
            }
            if point.against == Against::LlamaCpp {
                outcome.flash_attention = self.flash_attention.get(&key(&point)).copied();
            }
        }
    }

    fn pair(&mut self, point: &Point, round: usize, measured: &mut HashMap<Key, Measured>) -> Result<Pair> {
        let Against::LlamaCpp = point.against else {
            return self.pair_of_ours(point);
        };
        // Who comes first alternates, so that neither always meets the warmer machine.
        let (ours, theirs) = if round.is_multiple_of(2) {
            let ours = self.ours(point)?;
            (ours, self.theirs(point, measured)?)
        } else {
            let theirs = self.theirs(point, measured)?;
            (self.ours(point)?, theirs)
        };
        let theirs = match point.quantity {
            Quantity::Prefill | Quantity::Decode => theirs.tokens_per_second,
            Quantity::PeakMemory => theirs
                .peak_rss_bytes
                .context("this system does not tell how much memory a process held")?
                as f64,
        };
        Ok(Pair { ours, theirs })
    }

    /// Two methods of ours in one process, which lets them take turns.
    fn pair_of_ours(&self, point: &Point) -> Result<Pair> {
        let Against::Ours(other) = point.against else {
            bail!("{} is measured against llama.cpp", point.name());
        };
        let methods = [point.method, other];
        let rows = self.ours.bench(
            self.model(point),
            point.context,
            &methods,
            point.decoded_tokens(),
            TURNS,
        )?;
        let [ours, theirs] = [0, 1].map(|row| rows[row].decode_tokens_per_second);
        eprintln!("  {} {ours:.1} tokens/s, {other} {theirs:.1} tokens/s", point.method);
        Ok(Pair { ours, theirs })
    }

    fn ours(&self, point: &Point) -> Result<f64> {
        let model = self.model(point);
        let bench = |tokens: usize| {
            let mut rows = self.ours.bench(model, point.context, &[point.method], tokens, 1)?;
            rows.pop().context("a row was checked to be there")
        };
        let speed = match point.quantity {
            Quantity::PeakMemory => {
                let bytes = self.ours.peak_memory(model, point.context, point.method)?;
                eprintln!("  ours    {} MiB", bytes >> 20);
                return Ok(bytes as f64);
            }
            Quantity::Prefill => bench(TOKENS_AFTER_PREFILL)?.prefill_tokens_per_second,
            Quantity::Decode => bench(point.decoded_tokens())?.decode_tokens_per_second,
        };
        eprintln!("  ours    {speed:.1} tokens/s");
        Ok(speed)
    }

    fn theirs(&mut self, point: &Point, measured: &mut HashMap<Key, Measured>) -> Result<Measured> {
        let key = key(point);
        if let Some(&known) = measured.get(&key) {
            return Ok(known);
        }
        let test = match point.quantity {
            Quantity::Decode => Test {
                prompt: 0,
                generated: point.decoded_tokens(),
                depth: point.context,
            },
            Quantity::Prefill | Quantity::PeakMemory => Test {
                prompt: point.context,
                generated: 0,
                depth: 0,
            },
        };
        let mut best: Option<(bool, Measured)> = None;
        for &flash_attention in self.settings_to_try(point) {
            let result = self.llama.bench(self.model(point), test, flash_attention)?;
            eprintln!(
                "  theirs  {:.1} tokens/s, -fa {}",
                result.tokens_per_second,
                u8::from(flash_attention)
            );
            let better = |best: Measured| match point.quantity {
                Quantity::PeakMemory => result.peak_rss_bytes < best.peak_rss_bytes,
                Quantity::Prefill | Quantity::Decode => result.tokens_per_second > best.tokens_per_second,
            };
            if best.is_none_or(|(_, best)| better(best)) {
                best = Some((flash_attention, result));
            }
        }
        let (flash_attention, result) = best.context("at least one setting is tried")?;
        self.flash_attention.insert(key, flash_attention);
        measured.insert(key, result);
        Ok(result)
    }

    /// Both at first, then the better one.
    fn settings_to_try(&self, point: &Point) -> &'static [bool] {
        const BOTH: &[bool] = &[false, true];
        let decodes_deep = point.quantity == Quantity::Decode && point.context >= SLOW_FLASH_ATTENTION;
        let chosen = if point.is_deep() {
            self.flash_attention.iter().find(|((model, quantity, context), _)| {
                *model == point.model && *quantity == Quantity::Decode && *context >= SLOW_FLASH_ATTENTION
            })
        } else {
            self.flash_attention.get_key_value(&key(point))
        };
        match chosen {
            Some((_, false)) => &BOTH[..1],
            Some((_, true)) => &BOTH[1..],
            None if decodes_deep && self.quick => &BOTH[..1],
            None => BOTH,
        }
    }

    fn model(&self, point: &Point) -> &PathBuf {
        &self.models[point.model]
    }
}

fn key(point: &Point) -> Key {
    (point.model, point.quantity, point.context)
}
