//! How much haystack fills a length?

/// The largest number of units within `least..=most` whose token count is at most `budget`, if `least` fits.
///
/// `tokens` should grow with the number of units, about evenly: then interpolation finds the place in a handful of calls,
/// each of which tokenises a whole prompt. If it does not, the result still fits.
pub(super) fn largest_fitting(
    least: usize,
    most: usize,
    budget: usize,
    mut tokens: impl FnMut(usize) -> usize,
) -> Result<usize, usize> {
    let at_least = tokens(least);
    if at_least > budget {
        return Err(at_least);
    }
    let (mut fits, mut fits_tokens) = (least, at_least);
    let mut too_long: Option<(usize, usize)> = None;
    // Neither end alone may creep towards the other: after two interpolations the bracket is halved.
    let mut calls = 0;
    loop {
        let end = too_long.map_or(most, |(units, _)| units - 1);
        if fits >= end {
            return Ok(fits);
        }
        let reach = end - fits;
        let ahead = match too_long {
            None if fits == least => reach.min(FIRST_PROBE),
            None => {
                let per_unit = (fits_tokens - at_least).max(1) as f64 / (fits - least) as f64;
                // Not much more than seems right: the next probe should bound the place from above.
                ((budget - fits_tokens) as f64 / per_unit * 1.02) as usize + 1
            }
            Some((units, tokens)) if calls % 3 < 2 => {
                let per_unit = (tokens.saturating_sub(fits_tokens)).max(1) as f64 / (units - fits) as f64;
                ((budget - fits_tokens) as f64 / per_unit) as usize
            }
            Some(_) => reach / 2,
        };
        let probe = fits + ahead.clamp(1, reach);
        let count = tokens(probe);
        calls += 1;
        if count <= budget {
            (fits, fits_tokens) = (probe, count.max(fits_tokens));
        } else {
            too_long = Some((probe, count));
        }
    }
}

/// Units beyond the least in the first trial, from which the tokens per unit are estimated.
const FIRST_PROBE: usize = 32;

#[cfg(test)]
mod tests {
    use super::largest_fitting;

    #[test]
    fn even_growth_is_found_in_few_calls() {
        for (per_unit, budget) in [(1, 4096), (7, 131_072), (23, 16_384), (300, 131_072), (1000, 4096)] {
            let mut calls = 0;
            let found = largest_fitting(3, usize::MAX / 4, budget, |units| {
                calls += 1;
                100 + units * per_unit
            });
            assert_eq!(found, Ok((budget - 100) / per_unit), "{per_unit} tokens a unit");
            assert!(calls <= 8, "{calls} calls for {per_unit} tokens a unit");
        }
    }

    #[test]
    fn uneven_growth_ends_at_something_that_fits() {
        for budget in 100..1500 {
            let mut calls = 0;
            let tokens = |units: usize| 20 + units * 5 + units * units / 50 + (units * 7919) % 13;
            let found = largest_fitting(1, 10_000, budget, |units| {
                calls += 1;
                tokens(units)
            });
            let found = found.unwrap();
            assert!(
                tokens(found) <= budget && tokens(found + 4) > budget && calls < 30,
                "{found} {calls}"
            );
        }
    }

    #[test]
    fn the_ends_hold() {
        assert_eq!(largest_fitting(5, 9, 10, |units| units * 3), Err(15));
        assert_eq!(largest_fitting(2, 9, 1000, |units| units), Ok(9));
        assert_eq!(largest_fitting(2, 2, 1000, |units| units), Ok(2));
        assert_eq!(largest_fitting(1, 50, 1000, |_| 7), Ok(50));
    }
}
