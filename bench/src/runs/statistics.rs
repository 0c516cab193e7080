//! From samples to the few numbers that are shown. No sample is left out.

use std::time::Duration;

/// The smallest sample that at least `percent` of all samples do not exceed (nearest rank); none without samples.
pub(crate) fn percentile(samples: &[Duration], percent: usize) -> Option<Duration> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// The lower of the middle ones: the median by nearest rank. Zero without numbers.
pub(crate) fn middle(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
        .get(sorted.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or_default()
}

/// Microseconds with one decimal: what is finer is noise.
pub(crate) fn microseconds(span: Duration) -> f64 {
    (span.as_nanos() as f64 / 100.0).round() / 10.0
}

/// A ratio with three decimals; none where there is nothing to divide by.
pub(crate) fn ratio(value: f64, base: f64) -> Option<f64> {
    (base > 0.0).then(|| (value / base * 1000.0).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[u64]) -> Vec<Duration> {
        numbers.iter().copied().map(Duration::from_micros).collect()
    }

    #[test]
    fn percentiles_are_samples_by_nearest_rank() {
        let hundred: Vec<u64> = (1..=100).rev().collect();
        let shown =
            |numbers: &[u64], percent| percentile(&of(numbers), percent).map(|p| p.as_micros());
        assert_eq!(shown(&hundred, 50), Some(50));
        assert_eq!(shown(&hundred, 99), Some(99));
        assert_eq!(shown(&hundred, 100), Some(100));
        assert_eq!(shown(&[3, 1, 2], 50), Some(2));
        assert_eq!(shown(&[4, 1, 3, 2], 50), Some(2));
        assert_eq!(shown(&[5], 50), Some(5));
        assert_eq!(shown(&[], 50), None);
    }

    #[test]
    fn an_outlier_is_not_left_out() {
        let mut numbers = vec![1; 50];
        numbers.push(1_000_000);
        assert_eq!(percentile(&of(&numbers), 99), Some(Duration::from_secs(1)));
    }

    #[test]
    fn the_middle_is_one_of_the_numbers() {
        assert_eq!(
            [
                middle(&[3.0, 1.0, 2.0]),
                middle(&[4.0, 1.0, 3.0, 2.0]),
                middle(&[])
            ],
            [2.0, 2.0, 0.0]
        );
    }

    #[test]
    fn numbers_are_rounded_to_what_they_are_worth() {
        assert_eq!(microseconds(Duration::from_nanos(1_234_567)), 1234.6);
        assert_eq!(ratio(1.0, 3.0), Some(0.333));
        assert_eq!(ratio(1.0, 0.0), None);
    }
}
