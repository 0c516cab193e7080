//! Chance that can be repeated: the seed is printed, and `AIRLOCK_SEED` fixes it.

use std::time::{SystemTime, UNIX_EPOCH};

/// A stream of numbers (SplitMix64).
#[derive(Debug)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// From `AIRLOCK_SEED`, else from the clock; says which.
    pub fn seeded() -> SeededRandom {
        let fixed = std::env::var("AIRLOCK_SEED")
            .ok()
            .map(|text| text.parse().expect("AIRLOCK_SEED is a number"));
        let seed = fixed.unwrap_or_else(fresh_seed);
        println!("AIRLOCK_SEED={seed}");
        SeededRandom(seed)
    }

    /// From a number that another stream gave.
    pub fn of(seed: u64) -> SeededRandom {
        SeededRandom(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end.max(1)
    }
}

/// A seed from the clock.
pub fn fresh_seed() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}
