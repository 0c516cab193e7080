//! What was measured, and how ways compare.

use std::collections::BTreeMap;

/// One number a round, of each way and metric.
#[derive(Debug)]
pub(crate) struct Samples<Metric> {
    values: BTreeMap<(&'static str, Metric), Vec<f64>>,
    failures: BTreeMap<(&'static str, Metric), (usize, String)>,
}

impl<Metric> Default for Samples<Metric> {
    fn default() -> Samples<Metric> {
        Samples {
            values: BTreeMap::new(),
            failures: BTreeMap::new(),
        }
    }
}

impl<Metric: Copy + Ord> Samples<Metric> {
    /// What a round gave.
    pub(crate) fn add(&mut self, way: &'static str, metric: Metric, value: f64) {
        self.values.entry((way, metric)).or_default().push(value);
    }

    /// Only the first one's words are kept.
    pub(crate) fn fail(&mut self, way: &'static str, metric: Metric, why: &str) {
        self.failures
            .entry((way, metric))
            .or_insert_with(|| (0, why.to_owned()))
            .0 += 1;
    }

    /// How often it failed, and why at first.
    pub(crate) fn failed(&self, way: &'static str, metric: Metric) -> Option<&(usize, String)> {
        self.failures.get(&(way, metric))
    }

    /// All that failed.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&'static str, Metric, usize, &str)> {
        self.failures
            .iter()
            .map(|((way, metric), (count, why))| (*way, *metric, *count, why.as_str()))
    }

    /// Every round.
    pub(crate) fn of(&self, way: &'static str, metric: Metric) -> &[f64] {
        self.values.get(&(way, metric)).map_or(&[], Vec::as_slice)
    }

    /// The middle of all rounds.
    pub(crate) fn median(&self, way: &'static str, metric: Metric) -> Option<f64> {
        median(self.of(way, metric))
    }

    /// Round by round, then the median: what changes from round to round is in both.
    pub(crate) fn ratio(&self, way: &'static str, to: &'static str, metric: Metric) -> Option<f64> {
        let (own, other) = (self.of(way, metric), self.of(to, metric));
        if own.len() != other.len() {
            return None;
        }
        let ratios: Vec<_> = own
            .iter()
            .zip(other)
            .map(|(own, other)| own / other)
            .collect();
        median(&ratios).filter(|ratio| ratio.is_finite())
    }

    /// How far rounds lie apart, in parts of their median.
    pub(crate) fn spread(&self, way: &'static str, metric: Metric) -> Option<f64> {
        let values = self.of(way, metric);
        let least = values.iter().copied().reduce(f64::min)?;
        let most = values.iter().copied().reduce(f64::max)?;
        Some((most - least) / median(values)?)
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        even if even % 2 == 0 => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
        _ => Some(sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_rounds_not_of_medians() {
        let mut samples = Samples::default();
        // The machine was half as fast in the second round, for both.
        for (ours, other) in [(40.0, 40.0), (80.0, 80.0), (42.0, 40.0)] {
            samples.add("ours", 1, ours);
            samples.add("other", 1, other);
        }
        assert_eq!(samples.ratio("ours", "other", 1), Some(1.0));
        assert_eq!(samples.median("ours", 1), Some(42.0));
        assert_eq!(samples.spread("other", 1), Some(1.0));
        samples.add("ours", 1, 1.0);
        assert_eq!(
            samples.ratio("ours", "other", 1),
            None,
            "a round of one of them is missing"
        );
        assert_eq!(samples.ratio("ours", "other", 2), None);
    }
}
