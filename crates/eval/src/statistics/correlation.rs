//! Do two measures rise together?

use super::distribution::mean;

/// Pearson's correlation; `None` for fewer than two pairs or a constant side.
///
/// # Panics
///
/// The two sides differ in length.
#[must_use]
pub fn pearson(x: &[f64], y: &[f64]) -> Option<f64> {
    assert_eq!(x.len(), y.len(), "correlated sides are of one length");
    if x.len() < 2 {
        return None;
    }
    let (mean_x, mean_y) = (mean(x), mean(y));
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for (x, y) in x.iter().zip(y) {
        let (dx, dy) = (x - mean_x, y - mean_y);
        xx += dx * dx;
        yy += dy * dy;
        xy += dx * dy;
    }
    let is_constant = |side: &[f64]| side.iter().all(|value| *value == side[0]);
    let correlation = (xy / (xx * yy).sqrt()).clamp(-1.0, 1.0);
    (!is_constant(x) && !is_constant(y) && !correlation.is_nan()).then_some(correlation)
}

/// Spearman's rank correlation, equal values sharing the mean of their ranks; `None` as for [`pearson`].
///
/// # Panics
///
/// The two sides differ in length.
#[must_use]
pub fn spearman(x: &[f64], y: &[f64]) -> Option<f64> {
    assert_eq!(x.len(), y.len(), "correlated sides are of one length");
    inertiakv::policy::spearman(x, y)
}

#[cfg(test)]
mod tests {
    use super::{pearson, spearman};

    #[test]
    fn a_constant_side_has_no_correlation() {
        assert_eq!(spearman(&[0.1; 3], &[1.0, 2.0, 3.0]), None);
        assert_eq!(pearson(&[1.0], &[1.0]), None);
        let nan = [f64::NAN, 1.0, 2.0];
        assert_eq!(pearson(&nan, &[1.0, 2.0, 3.0]), None);
        assert_eq!(spearman(&[1.0, 2.0, 3.0], &nan), None);
        assert_eq!(spearman(&[1.0, 10.0, 100.0], &[3.0, 2.0, 1.0]), Some(-1.0));
    }
}
