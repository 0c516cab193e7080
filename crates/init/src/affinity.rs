//! Which CPUs a program is told of. Most runtimes size their thread pools by this and nothing else.

use crate::plan::Share;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

/// Leaves this process its share of the CPUs it may use. Allocates nothing.
pub(crate) fn narrow(share: Share) -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    match share.count < allowed.count() {
        true => Ok(sched_setaffinity(None, &choose(&allowed, share))?),
        // Fewer are left than the limit allows: these it is.
        false => Ok(()),
    }
}

/// As many as the share says, in a row from where the one before it ended, so that boxes spread.
fn choose(allowed: &CpuSet, share: Share) -> CpuSet {
    let (all, count) = (u64::from(allowed.count()).max(1), u64::from(share.count.max(1)));
    let first = u64::from(share.turn) * count % all;
    let mut chosen = CpuSet::new();
    let numbers = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number));
    for (place, number) in (0..).zip(numbers) {
        if (place + all - first) % all < count {
            chosen.set(number);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(numbers: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        numbers.iter().for_each(|number| set.set(*number));
        set
    }

    #[test]
    fn turns_go_round() {
        let allowed = set(&[1, 4, 6]);
        let chosen = [0, 1, 2, 3].map(|turn| choose(&allowed, Share { count: 2, turn }));
        assert_eq!(chosen, [set(&[1, 4]), set(&[1, 6]), set(&[4, 6]), set(&[1, 4])]);
    }

    proptest! {
        #[test]
        fn as_many_are_chosen_as_the_share_says_and_no_others_than_allowed(
            numbers in prop::collection::btree_set(0usize..1024, 1..40), count in 1u32..50, turn: u32,
        ) {
            let numbers: Vec<_> = numbers.into_iter().collect();
            let allowed = set(&numbers);
            let chosen = choose(&allowed, Share { count, turn });
            prop_assert_eq!(chosen.count(), count.min(allowed.count()));
            prop_assert!((0..1024).all(|number| allowed.is_set(number) || !chosen.is_set(number)));
        }

        /// After as many turns as there are CPUs each has been chosen equally often.
        #[test]
        fn runs_spread_evenly(all in 1usize..12, count in 1u32..12, turn in 0u32..1000) {
            let allowed = set(&(0..all).collect::<Vec<_>>());
            let turns = (turn..).take(all).map(|turn| choose(&allowed, Share { count, turn }));
            let mut times = vec![0; all];
            for chosen in turns {
                (0..all).filter(|number| chosen.is_set(*number)).for_each(|number| times[number] += 1);
            }
            prop_assert!(times.iter().all(|time| *time == count.min(all as u32)), "{:?}", times);
        }
    }
}
