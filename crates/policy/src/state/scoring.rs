//! From observations to utilities.

use super::{Buffers, Layout, PolicyState};
use crate::adaptive::Adaptation;
use crate::aggregation::Aggregation;
use crate::coupling::Coupling;
use crate::error::PolicyError;
use crate::scorer::{HeadObservation, Scoring, first_not_finite};

/// Buffers for heads that hold different entries, kept between layers.
#[derive(Debug, Clone, Default)]
pub(super) struct RaggedScratch {
    /// One head's scores, then those of the rows in `held`.
    head: Vec<f32>,
    score: Vec<f32>,
    /// Heads of the layer that hold each row.
    counts: Vec<u32>,
    held: Vec<u32>,
    utility: Vec<f32>,
    /// Under layer-mean coupling: the sum of scores and the number of layers of each row.
    pub(super) means: Vec<(f32, u32)>,
}

impl PolicyState {
    pub(super) fn check_observation(
        &self,
        layer: usize,
        queries: usize,
        heads: &[HeadObservation<'_>],
    ) -> Result<(), PolicyError> {
        let expected = self.shape.kv_heads;
        if heads.len() != expected {
            return Err(PolicyError::HeadCount {
                layer,
                expected,
                found: heads.len(),
            });
        }
        if queries == 0 {
            return Err(PolicyError::NoQueries { layer });
        }
        let needed = self.policy.scorer.features();
        for (head, observation) in heads.iter().enumerate() {
            observation.check(needed, layer, head, self.rows(layer, head))?;
        }
        Ok(())
    }

    /// Scores one checked layer and folds it into its ranking, or into the mean over layers.
    pub(super) fn score(
        &mut self,
        layer: usize,
        queries: usize,
        heads: &[HeadObservation<'_>],
        noting: bool,
    ) -> Result<(), PolicyError> {
        let scoring = Scoring {
            scorer: self.policy.scorer,
            pooling: self.policy.head_pooling,
            group: self.shape.group,
            queries,
        };
        if self.layout == Layout::Head {
            for (head, observation) in heads.iter().enumerate() {
                let Some((index, _)) = self.place(layer, head) else {
                    continue;
                };
                let rows = self.rankings[index].rows();
                self.buffers.score.resize(rows, 0.0);
                if !scoring.head(observation, &mut self.buffers.score) {
                    return Err(PolicyError::NotFinite { layer, head });
                }
                self.fold(index, noting, 1);
            }
            return Ok(());
        }
        let Some((index, place)) = self.place(layer, 0) else {
            return Ok(());
        };
        let not_finite = || PolicyError::NotFinite {
            layer,
            head: first_not_finite(heads),
        };
        if self.rankings[index].ragged.is_some() {
            return self
                .score_ragged(index, place, scoring, heads)
                .map_err(|()| not_finite());
        }
        let rows = self.rankings[index].rows();
        self.buffers.score.resize(rows, 0.0);
        if !scoring.layer(heads, &mut self.buffers.score) {
            return Err(not_finite());
        }
        self.see_layer(index);
        let by_mean = self.policy.coupling == Coupling::LayerMean;
        if by_mean || self.policy.reactive {
            let share = 1.0 / self.scored.len() as f32;
            let mean = &mut self.buffers.layer_mean;
            mean.resize(rows, 0.0);
            for (mean, &score) in mean.iter_mut().zip(&self.buffers.score) {
                *mean += share * score;
            }
        }
        if by_mean {
            self.note(index, noting);
        } else {
            self.fold(index, noting, 1);
        }
        Ok(())
    }

    /// The same for heads that hold different entries, of which the first is head `place` of the ranking: the score of an
    /// entry is pooled over the heads that hold it, and one that no head of the layer holds keeps its utility.
    fn score_ragged(
        &mut self,
        index: usize,
        place: usize,
        scoring: Scoring,
        heads: &[HeadObservation<'_>],
    ) -> Result<(), ()> {
        let aggregation = self.aggregation();
        let ranking = &mut self.rankings[index];
        let Some(ragged) = &ranking.ragged else { return Ok(()) };
        let RaggedScratch {
            head,
            score,
            counts,
            held,
            utility,
            means,
        } = &mut self.buffers.ragged;
        score.clear();
        score.resize(ranking.positions.len(), 0.0);
        counts.clear();
        counts.resize(score.len(), 0);
        for (observation, holding) in heads.iter().zip(&ragged.heads[place..]) {
            head.resize(holding.rows.len(), 0.0);
            if !scoring.head_alone(observation, head) {
                return Err(());
            }
            for (&row, &value) in holding.rows.iter().zip(head.iter()) {
                let row = row as usize;
                score[row] = scoring.pooling.add(score[row], value);
                counts[row] += 1;
            }
        }
        held.clear();
        held.extend(
            (0..)
                .zip(counts.iter())
                .filter(|&(_, &count)| count > 0)
                .map(|(row, _): (u32, _)| row),
        );
        head.clear();
        head.extend(held.iter().map(|&row| {
            let row = row as usize;
            scoring.pooling.finish(score[row], counts[row])
        }));
        scoring.weigh(head);
        if self.policy.coupling == Coupling::LayerMean {
            means.resize(score.len(), (0.0, 0));
            for (&row, &value) in held.iter().zip(head.iter()) {
                let (sum, layers) = &mut means[row as usize];
                *sum += value;
                *layers += 1;
            }
            return Ok(());
        }
        if held.len() == score.len() {
            ranking.fold(aggregation, head, 1);
            return Ok(());
        }
        utility.clear();
        utility.extend(held.iter().map(|&row| ranking.utility[row as usize]));
        aggregation.update(utility, head);
        for (&row, &value) in held.iter().zip(utility.iter()) {
            ranking.utility[row as usize] = value;
        }
        Ok(())
    }

    /// Shows a layer's score to what measures the noise between layers, where something has to leave.
    fn see_layer(&mut self, index: usize) {
        if !self.adaptation.as_ref().is_some_and(Adaptation::is_measuring) {
            return;
        }
        let (budget, ranking) = (self.budget().unwrap_or(usize::MAX), &self.rankings[index]);
        if let Some(adaptation) = &mut self.adaptation
            && ranking.rows() > budget
        {
            let Buffers { selector, score, .. } = &mut self.buffers;
            adaptation.see_layer(selector.highest(&ranking.positions, score, budget));
        }
    }

    /// Shows a step's mean score and the utility after it to what reacts to their disagreement.
    pub(super) fn see_step(&mut self) {
        if !self.adaptation.as_ref().is_some_and(Adaptation::is_reactive) {
            return;
        }
        let budget = self.budget().unwrap_or(usize::MAX);
        if let (Some(adaptation), [ranking]) = (&mut self.adaptation, &*self.rankings) {
            let Buffers {
                selector, layer_mean, ..
            } = &mut self.buffers;
            let mut top = |values: &[f32]| selector.highest(&ranking.positions, values, budget);
            adaptation.see_step(&top(layer_mean), &top(&ranking.utility));
        }
    }

    /// The rule of the step under way.
    fn aggregation(&self) -> Aggregation {
        let adapted = self
            .adaptation
            .as_ref()
            .map(|adaptation| Aggregation::Ema(adaptation.alpha()));
        adapted.unwrap_or(self.policy.aggregation)
    }

    /// The one update of a step under layer-mean coupling.
    pub(super) fn score_layer_mean(&mut self) {
        let aggregation = self.aggregation();
        for ranking in &mut self.rankings {
            if ranking.ragged.is_some() {
                // An entry that no scored layer holds is out of reach of every one of them.
                let mean = |&(sum, layers): &(f32, u32)| sum / layers.max(1) as f32;
                self.buffers.layer_mean.clear();
                self.buffers
                    .layer_mean
                    .extend(self.buffers.ragged.means.iter().map(mean));
            }
            ranking.fold(aggregation, &self.buffers.layer_mean, 1);
        }
    }

    /// Scores by position alone, which is the same for every layer.
    pub(super) fn score_positions(&mut self, noting: bool) {
        let times = if self.policy.coupling == Coupling::Sequential {
            self.scored.len()
        } else {
            1
        };
        let scorer = self.policy.scorer;
        for index in 0..self.rankings.len() {
            let positions = &self.rankings[index].positions;
            self.buffers.score.clear();
            self.buffers
                .score
                .extend(positions.iter().map(|&position| scorer.of_position(position)));
            self.fold(index, noting, times);
        }
    }

    fn fold(&mut self, index: usize, noting: bool, times: usize) {
        self.note(index, noting);
        let aggregation = self.aggregation();
        self.rankings[index].fold(aggregation, &self.buffers.score, times);
    }

    fn note(&mut self, index: usize, noting: bool) {
        if noting {
            // The top 5 % of B, at least one entry.
            let best = (self.budget().unwrap_or(0) / 20).max(1);
            self.buffers
                .selector
                .note_best(&mut self.rankings[index], &self.buffers.score, best);
        }
    }
}
