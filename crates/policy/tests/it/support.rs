//! A stand-in for an engine: it invents observations and mirrors the cache from the plans alone.

use inertiakv_policy::{EvictionPlan, HeadObservation, Method, PolicyError, PolicyState, Shape};

/// The method written as `text`.
pub(crate) fn method(text: &str) -> Method {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A state for the method written as `text`.
pub(crate) fn state(text: &str, shape: &Shape, prompt: usize) -> PolicyState {
    PolicyState::new(&method(text).decode.policy, shape, prompt).expect("the method fits the shape")
}

/// A number in `0.0..1.0` that depends on nothing but its arguments.
pub(crate) fn noise(seed: u64, numbers: [usize; 4]) -> f32 {
    let mut state = seed;
    for number in numbers {
        state = (state ^ number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        state ^= state >> 29;
    }
    (state >> 40) as f32 / (1u32 << 24) as f32
}

/// What an engine would see: one value per feature for a layer, head and position.
pub(crate) type Source<'a> = &'a dyn Fn(usize, usize, u32) -> f32;

/// Observes every needed layer with `mass`, and made-up norms and cosines where they are asked for.
pub(crate) fn observe_all(
    state: &mut PolicyState,
    needs: &[bool],
    queries: usize,
    mass: Source<'_>,
) -> Result<(), PolicyError> {
    for layer in (0..needs.len()).filter(|&layer| needs[layer]) {
        let rows = |head: usize, feature: usize| -> Vec<f32> {
            let positions = state.positions(layer, head).iter();
            match feature {
                0 => positions.map(|&position| mass(layer, head, position)).collect(),
                _ => positions
                    .map(|&position| noise(9, [layer, head, position as usize, feature]) + 0.5)
                    .collect(),
            }
        };
        let heads: Vec<[Vec<f32>; 5]> = (0..state.shape().kv_heads)
            .map(|head| [0, 1, 2, 3, 4].map(|feature| rows(head, feature)))
            .collect();
        let observations: Vec<HeadObservation<'_>> = heads
            .iter()
            .map(
                |[mass, value_norm, key_norm, key_similarity, relevance]| HeadObservation {
                    mass,
                    value_norm,
                    key_norm,
                    key_similarity,
                    relevance,
                },
            )
            .collect();
        state.observe(layer, queries, &observations)?;
    }
    Ok(())
}

/// One decode step with `new_tokens` tokens and the given mass.
pub(crate) fn step(state: &mut PolicyState, new_tokens: usize, mass: Source<'_>) -> EvictionPlan {
    let needs = state.begin_step(new_tokens);
    observe_all(state, &needs.layers, needs.window, mass).expect("the observations are sound");
    state.finish_step().expect("the step is complete")
}

/// The utility of a position in a layer and head, which must be held.
pub(crate) fn utility_of(state: &PolicyState, layer: usize, head: usize, position: u32) -> f32 {
    let row = state
        .positions(layer, head)
        .iter()
        .position(|&held| held == position)
        .expect("the position is held");
    state.utility(layer, head)[row]
}

/// Asserts that two floats are equal but for rounding.
#[track_caller]
pub(crate) fn close(found: f32, expected: f32) {
    assert!(
        (found - expected).abs() <= 1e-6 * expected.abs().max(1.0),
        "{found} is not {expected}"
    );
}

/// The cache as an engine keeps it: the position of every row, changed by appends and plans only.
#[derive(Clone)]
pub(crate) struct CacheModel {
    pub(crate) rows: Vec<Vec<Vec<u32>>>,
    seen: u32,
}

impl CacheModel {
    pub(crate) fn new(shape: &Shape, prompt: usize) -> CacheModel {
        let head: Vec<u32> = (0..prompt as u32).collect();
        CacheModel {
            rows: vec![vec![head; shape.kv_heads]; shape.layers],
            seen: prompt as u32,
        }
    }

    pub(crate) fn append(&mut self, tokens: usize) {
        let end = self.seen + tokens as u32;
        for head in self.rows.iter_mut().flatten() {
            head.extend(self.seen..end);
        }
        self.seen = end;
    }

    /// Applies a plan by the letter of its contract, and checks that letter.
    pub(crate) fn apply(&mut self, plan: &EvictionPlan) {
        for (layer, heads) in self.rows.iter_mut().enumerate() {
            for (head, rows) in heads.iter_mut().enumerate() {
                let Some(plan) = plan.for_head(layer, head) else {
                    continue;
                };
                for &(from, to) in &plan.moves {
                    assert!(from > to, "a move goes up");
                    rows[to as usize] = rows[from as usize];
                }
                assert!(plan.rows <= rows.len(), "a plan makes rows");
                rows.truncate(plan.rows);
            }
        }
    }

    pub(crate) fn assert_mirrors(&self, state: &PolicyState) {
        for (layer, heads) in self.rows.iter().enumerate() {
            for (head, rows) in heads.iter().enumerate() {
                assert_eq!(rows, state.positions(layer, head), "layer {layer}, head {head}");
                assert_eq!(rows.len(), state.rows(layer, head));
            }
        }
    }
}

/// A prompt of `tokens` that the first stage of `text` compresses in steps of at most `chunk`, and the cache after it.
pub(crate) fn compressed(
    text: &str,
    shape: &Shape,
    tokens: usize,
    chunk: usize,
    mass: Source<'_>,
) -> (PolicyState, CacheModel) {
    let policy = method(text).prefill.expect("a prefill method").policy;
    let mut state = PolicyState::of_prompt(&policy, shape, tokens).expect("the method fits the shape");
    let mut cache = CacheModel::new(shape, 0);
    cache.assert_mirrors(&state);
    while state.seen_tokens() < tokens {
        let new_tokens = chunk.min(tokens - state.seen_tokens());
        cache.step(&mut state, new_tokens, mass);
    }
    (state, cache)
}

impl CacheModel {
    /// One step of the state and the cache together.
    pub(crate) fn step(&mut self, state: &mut PolicyState, new_tokens: usize, mass: Source<'_>) -> EvictionPlan {
        self.append(new_tokens);
        let plan = step(state, new_tokens, mass);
        self.apply(&plan);
        self.assert_mirrors(state);
        plan
    }
}
