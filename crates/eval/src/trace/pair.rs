//! Which two tokens show best what smoothing does at the border of the budget?

use std::collections::BTreeMap;

use inertiakv::{Engine, GenerateOptions, Generator, Method};
use serde::{Deserialize, Serialize};

use super::{Ranking, Shadows, raw, running};
use crate::EvalError;

/// How far from the border a token may rank.
const NEAR: usize = 12;

/// Two tokens over some steps, one just inside the budget in the end and one just outside (the paper's Figure 4, there as
/// a drawing). Scores are shares of the larger of the two tokens' greatest scores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Position of the token inside.
    pub inside: u32,
    /// Position of the token outside.
    pub outside: u32,
    /// Scores of each step alone: inside, outside.
    pub raw: Vec<(f64, f64)>,
    /// The running estimate.
    pub ema: Vec<(f64, f64)>,
    /// How often the order of the two changes from a step to the next.
    pub raw_flips: usize,
    /// The same of the running estimate.
    pub ema_flips: usize,
}

/// Runs some steps of an answer with the full cache and looks for the pair near the border that the scores of single
/// steps confuse most and the running estimate least. `None` if the budget takes everything.
///
/// # Errors
///
/// As for [`rank_trace`](super::rank_trace).
pub fn boundary_pair(
    engine: &Engine,
    context: &[u32],
    question: &[u32],
    method: &Method,
    steps: usize,
) -> Result<Option<Pair>, EvalError> {
    let watched = [raw(method)?, running(method)?];
    let mut base = engine.session(&Method::full())?;
    base.prefill(context, &mut |_, _| std::ops::ControlFlow::Continue(()))?;
    let mut shadows = Shadows::new(&base, &watched)?;
    let mut generator = Generator::new(
        engine,
        &GenerateOptions {
            ignore_end: true,
            ..GenerateOptions::default()
        },
    )?;
    let mut tokens = question.to_vec();
    let mut seen: Vec<[Ranking; 2]> = Vec::new();
    while seen.len() < steps {
        if !tokens.is_empty() {
            // The base answers with the full cache; its drawn token has not run there yet.
            base.step(if seen.is_empty() && !question.is_empty() {
                &tokens
            } else {
                &[]
            })?;
            shadows.step(&tokens)?;
            let first = |index| -> Result<Ranking, EvalError> { Ok(shadows.rankings(index)?.swap_remove(0)) };
            seen.push([first(0)?, first(1)?]);
        }
        let Some(draw) = generator.draw(&mut base)? else { break };
        tokens = vec![draw.token];
    }
    let policy = &method.decode.policy;
    let budget = policy
        .budget
        .entries(context.len(), context.len())
        .unwrap_or(usize::MAX);
    Ok(best(&seen, budget))
}

fn best(seen: &[[Ranking; 2]], budget: usize) -> Option<Pair> {
    let [_, last] = seen.last()?;
    let order = last.order();
    if budget >= order.len() {
        return None;
    }
    let scores: Vec<[BTreeMap<u32, f32>; 2]> = seen
        .iter()
        .map(|rankings| rankings.each_ref().map(|ranking| ranking.0.iter().copied().collect()))
        .collect();
    let (scores, order) = (&scores, &order);
    // Only tokens that were there at every step.
    let is_old = |position: &&u32| scores.iter().all(|step| step[0].contains_key(position));
    let inside = order[budget.saturating_sub(NEAR)..budget].iter().filter(is_old);
    let outside: Vec<u32> = order[budget..].iter().take(NEAR).filter(is_old).copied().collect();
    let pairs = inside.flat_map(|&inside| outside.iter().map(move |&outside| pair(scores, inside, outside)));
    // Of equals the first, which is the farthest inside.
    pairs.reduce(|best, next| {
        let worth = |pair: &Pair| pair.raw_flips as isize - 4 * pair.ema_flips as isize;
        if worth(&next) > worth(&best) { next } else { best }
    })
}

fn pair(scores: &[[BTreeMap<u32, f32>; 2]], inside: u32, outside: u32) -> Pair {
    let series = |kind: usize| -> Vec<(f64, f64)> {
        let at = |step: &[BTreeMap<u32, f32>; 2]| (f64::from(step[kind][&inside]), f64::from(step[kind][&outside]));
        let values: Vec<(f64, f64)> = scores.iter().map(at).collect();
        let greatest = values.iter().map(|(a, b)| a.max(*b)).fold(f64::MIN_POSITIVE, f64::max);
        values.iter().map(|(a, b)| (a / greatest, b / greatest)).collect()
    };
    let is_flip = |pair: &[(f64, f64)]| (pair[0].0 < pair[0].1) != (pair[1].0 < pair[1].1);
    let flips = |series: &[(f64, f64)]| series.windows(2).filter(|pair| is_flip(pair)).count();
    let (raw, ema) = (series(0), series(1));
    Pair {
        inside,
        outside,
        raw_flips: flips(&raw),
        ema_flips: flips(&ema),
        raw,
        ema,
    }
}
