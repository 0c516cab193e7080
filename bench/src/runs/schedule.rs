//! The order of measuring: in every round each row once, in an order that the seed decides. What disturbs the machine
//! for a while then disturbs all rows alike.

/// A small generator (SplitMix64): the same seed gives the same order.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The numbers below `count`, each once, in random order.
    pub(crate) fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..count).collect();
        for last in (1..count).rev() {
            let other = self.next() % (last as u64 + 1);
            order.swap(last, other as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_has_every_row_once() {
        let mut random = Random::new(1);
        for count in [0, 1, 2, 7, 30] {
            for _ in 0..50 {
                let mut order = random.order(count);
                order.sort_unstable();
                assert_eq!(order, (0..count).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn the_seed_decides_the_order_and_rounds_differ() {
        let rounds = |seed| {
            let mut random = Random::new(seed);
            [random.order(12), random.order(12), random.order(12)]
        };
        assert_eq!(rounds(7), rounds(7));
        assert_ne!(rounds(7), rounds(8));
        let [first, second, third] = rounds(7);
        assert!(first != second && second != third);
    }

    #[test]
    fn every_row_comes_first_about_equally_often() {
        let (mut random, mut first) = (Random::new(3), [0; 4]);
        for _ in 0..4000 {
            first[random.order(4)[0]] += 1;
        }
        assert!(
            first.iter().all(|times| (900..1100).contains(times)),
            "{first:?}"
        );
    }
}
