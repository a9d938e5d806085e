//! What happens to each row between two attentions?
//!
//! A gated network, or several of them to choose from: the router rates the experts for each row, and the row goes
//! through the best ones, weighted by how they were rated. Rows of one expert run together. A row's sum runs over its
//! experts in rising order, so it is the same whatever other rows there are.

use std::time::Instant;

use super::{Decoder, Profile, Workspace};
use crate::backend::Backend;

/// The feed-forward network of a layer.
pub(crate) enum FeedForward<B: Backend> {
    Dense(Gated<B>),
    Experts(Experts<B>),
}

/// `down(activation(gate(x)) · up(x))`.
pub(crate) struct Gated<B: Backend> {
    pub gate: B::Linear,
    pub up: B::Linear,
    pub down: B::Linear,
}

/// Networks to choose from.
pub(crate) struct Experts<B: Backend> {
    pub router: B::Linear,
    pub networks: Vec<Gated<B>>,
    /// How many a row goes through.
    pub used: usize,
    /// Their weights are made to sum to one.
    pub normalised: bool,
}

impl<B: Backend> FeedForward<B> {
    /// All networks.
    pub(crate) fn networks(&self) -> &[Gated<B>] {
        match self {
            Self::Dense(network) => std::slice::from_ref(network),
            Self::Experts(experts) => &experts.networks,
        }
    }
}

/// Rows on their way through experts.
pub(super) struct ExpertRows<B: Backend> {
    ratings: B::Rows,
    picked: B::Rows,
    mixed: B::Rows,
    /// On the host.
    read: Vec<f32>,
}

impl<B: Backend> Default for ExpertRows<B> {
    fn default() -> Self {
        Self {
            ratings: B::Rows::default(),
            picked: B::Rows::default(),
            mixed: B::Rows::default(),
            read: Vec::new(),
        }
    }
}

impl<B: Backend> Decoder<B> {
    /// Leaves in the projected rows what the network makes of the normed ones.
    pub(super) fn feed_forward(
        &self,
        backend: &B,
        work: &mut Workspace<B>,
        feed_forward: &FeedForward<B>,
        rows: usize,
        profile: &mut Profile,
    ) {
        match feed_forward {
            FeedForward::Dense(network) => {
                backend.resize(&mut work.projected, rows * self.hidden);
                let (from, to) = (&work.normed, &mut work.projected);
                let scratch = (&mut work.scratch, &mut work.gate, &mut work.up);
                self.gated(backend, network, from, to, rows, scratch, profile);
            }
            FeedForward::Experts(experts) => self.experts(backend, work, experts, rows, profile),
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "parts of a workspace that is borrowed in parts"
    )]
    fn gated(
        &self,
        backend: &B,
        network: &Gated<B>,
        from: &B::Rows,
        to: &mut B::Rows,
        rows: usize,
        (scratch, gate, up): (&mut B::Scratch, &mut B::Rows, &mut B::Rows),
        profile: &mut Profile,
    ) {
        let width = B::out_features(&network.gate);
        backend.resize(gate, rows * width);
        backend.resize(up, rows * width);
        let start = Instant::now();
        let mut jobs = [(&network.gate, &mut *gate), (&network.up, &mut *up)];
        backend.linear(scratch, from, 0..rows, &mut jobs);
        profile.matmul += start.elapsed();
        backend.gate_mul(self.activation, gate, up);
        let start = Instant::now();
        backend.linear(scratch, gate, 0..rows, &mut [(&network.down, to)]);
        profile.matmul += start.elapsed();
    }

    fn experts(&self, backend: &B, work: &mut Workspace<B>, experts: &Experts<B>, rows: usize, profile: &mut Profile) {
        let count = experts.networks.len();
        let ExpertRows {
            ratings,
            picked,
            mixed,
            read,
        } = &mut work.experts;
        let start = Instant::now();
        backend.resize(ratings, rows * count);
        let mut jobs = [(&experts.router, &mut *ratings)];
        backend.linear(&mut work.scratch, &work.normed, 0..rows, &mut jobs);
        backend.read(ratings, 0..rows * count, read);
        profile.matmul += start.elapsed();
        let mut chosen: Vec<Vec<(usize, f32)>> = vec![Vec::new(); count];
        for (row, ratings) in read.chunks_exact(count).enumerate() {
            for (expert, weight) in route(ratings, experts.used, experts.normalised) {
                chosen[expert].push((row, weight));
            }
        }
        backend.resize(&mut work.projected, rows * self.hidden);
        backend.clear(&mut work.projected);
        for (network, chosen) in experts.networks.iter().zip(&chosen) {
            if chosen.is_empty() {
                continue;
            }
            let indices: Vec<usize> = chosen.iter().map(|(row, _)| *row).collect();
            backend.resize(picked, chosen.len() * self.hidden);
            backend.gather(&work.normed, self.hidden, &indices, picked);
            backend.resize(mixed, chosen.len() * self.hidden);
            let scratch = (&mut work.scratch, &mut work.gate, &mut work.up);
            self.gated(backend, network, picked, mixed, chosen.len(), scratch, profile);
            backend.add_weighted(&mut work.projected, self.hidden, mixed, chosen);
        }
    }
}

/// The experts of a row and their weights: the softmax of its ratings, of which the largest count.
fn route(ratings: &[f32], used: usize, normalised: bool) -> Vec<(usize, f32)> {
    let largest = ratings.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shares: Vec<f32> = ratings.iter().map(|rating| (rating - largest).exp()).collect();
    let total: f32 = shares.iter().sum();
    let mut order: Vec<usize> = (0..ratings.len()).collect();
    // Of equal ones the first.
    order.sort_by(|&a, &b| shares[b].total_cmp(&shares[a]));
    order.truncate(used);
    let total = if normalised {
        order.iter().map(|&expert| shares[expert]).sum()
    } else {
        total
    };
    order
        .into_iter()
        .map(|expert| (expert, shares[expert] / total))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::route;

    #[test]
    fn the_best_experts_are_chosen_and_weighted() {
        let ratings = [0.0, 2.0_f32.ln(), 5.0_f32.ln(), 0.0];
        let chosen = route(&ratings, 2, false);
        assert_eq!(chosen.iter().map(|(expert, _)| *expert).collect::<Vec<_>>(), [2, 1]);
        assert!((chosen[0].1 - 5.0 / 9.0).abs() < 1e-6 && (chosen[1].1 - 2.0 / 9.0).abs() < 1e-6);
        let chosen = route(&ratings, 2, true);
        assert!((chosen[0].1 - 5.0 / 7.0).abs() < 1e-6 && (chosen[1].1 - 2.0 / 7.0).abs() < 1e-6);
        assert_eq!(route(&[1.0, 1.0, 1.0], 1, true), [(0, 1.0)]);
    }
}
