//! Limits the CPU affinity of a program: most runtimes size their thread pools by it and by nothing
//! else.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::io;

/// Limits the affinity of this process to `count` of the CPUs it may use. Allocates nothing.
pub(crate) fn limit_to(count: u32) -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    if count < allowed.count() {
        // The choice starts at the current CPU: the kernel chose a free one (for a warm sandbox
        // when it was created), and a migration would cost more than all mounts.
        Ok(sched_setaffinity(
            None,
            &choose(&allowed, count, sched_getcpu()),
        )?)
    } else {
        // The process may use no more CPUs than the limit allows.
        Ok(())
    }
}

/// The first allowed CPU from `first` on and the ones after it, wrapping around.
fn choose(allowed: &CpuSet, count: u32, first: usize) -> CpuSet {
    let before = 0..first.min(CpuSet::MAX_CPU);
    let after = first..CpuSet::MAX_CPU;
    let mut chosen = CpuSet::new();
    after
        .chain(before)
        .filter(|cpu| allowed.is_set(*cpu))
        .take(count as usize)
        .for_each(|cpu| chosen.set(cpu));
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
    fn the_choice_begins_where_the_program_is_and_goes_round() {
        let allowed = set(&[1, 4, 6]);
        let chosen = [0, 1, 2, 4, 6, 9].map(|first| choose(&allowed, 2, first));
        let (low, middle, round) = (set(&[1, 4]), set(&[4, 6]), set(&[1, 6]));
        assert_eq!(chosen, [low, low, middle, middle, round, low]);
    }

    proptest! {
        #[test]
        fn as_many_are_chosen_as_asked_for_and_no_others_than_allowed(
            numbers in prop::collection::btree_set(0usize..1024, 1..40), count in 1u32..50, first in 0usize..2000,
        ) {
            let allowed = set(&numbers.into_iter().collect::<Vec<_>>());
            let chosen = choose(&allowed, count, first);
            prop_assert_eq!(chosen.count(), count.min(allowed.count()));
            prop_assert!((0..1024).all(|cpu| allowed.is_set(cpu) || !chosen.is_set(cpu)));
        }
    }
}
