//! From observations to utilities.

use super::PolicyState;
use crate::coupling::Coupling;
use crate::error::PolicyError;
use crate::pooling;
use crate::scorer::{HeadObservation, Scoring};

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
        let features = self.policy.scorer.features();
        for (head, observation) in heads.iter().enumerate() {
            let expected = self.rows(layer, head);
            for (needed, feature, values) in [
                (features.mass, "mass", observation.mass),
                (features.value_norm, "value_norm", observation.value_norm),
                (features.key_norm, "key_norm", observation.key_norm),
                (features.key_similarity, "key_similarity", observation.key_similarity),
            ] {
                if needed && values.len() != expected {
                    return Err(PolicyError::RowCount {
                        layer,
                        head,
                        feature,
                        expected,
                        found: values.len(),
                    });
                }
            }
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
        if self.policy.coupling == Coupling::PerHead {
            for (head, observation) in heads.iter().enumerate() {
                let index = self.ranking_index(layer, head);
                let Some(index) = index else { continue };
                let rows = self.rankings[index].rows();
                self.buffers.score.resize(rows, 0.0);
                if !scoring.head(observation, &mut self.buffers.score) {
                    return Err(PolicyError::NotFinite { layer, head });
                }
                self.fold(index, noting, 1);
            }
            return Ok(());
        }
        let Some(index) = self.ranking_index(layer, 0) else {
            return Ok(());
        };
        let rows = self.rankings[index].rows();
        self.buffers.score.resize(rows, 0.0);
        if !scoring.layer(heads, &mut self.buffers.score) {
            return Err(PolicyError::NotFinite {
                layer,
                head: first_not_finite(heads),
            });
        }
        if self.policy.coupling == Coupling::LayerMean {
            self.note(index, noting);
            let share = 1.0 / self.scored.len() as f32;
            let mean = &mut self.buffers.layer_mean;
            mean.resize(rows, 0.0);
            for (mean, &score) in mean.iter_mut().zip(&self.buffers.score) {
                *mean += share * score;
            }
        } else {
            self.fold(index, noting, 1);
        }
        Ok(())
    }

    /// The one update of a step under layer-mean coupling.
    pub(super) fn score_layer_mean(&mut self) {
        for ranking in &mut self.rankings {
            self.policy
                .aggregation
                .update(&mut ranking.utility, &self.buffers.layer_mean);
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
        self.policy
            .aggregation
            .update_repeatedly(&mut self.rankings[index].utility, &self.buffers.score, times);
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

// Only on the way to an error: pooling has lost which head it was.
fn first_not_finite(heads: &[HeadObservation<'_>]) -> usize {
    let finite = |head: &HeadObservation<'_>| {
        [head.mass, head.value_norm, head.key_norm, head.key_similarity]
            .into_iter()
            .all(pooling::all_finite)
    };
    heads.iter().position(|head| !finite(head)).unwrap_or(0)
}
