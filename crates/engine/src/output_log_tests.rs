//! What is written in any pieces is read back, within the limits.

use super::*;
use proptest::prelude::*;
use std::time::Duration;

/// Bytes that depend on their offset.
fn pattern(from: u64, count: usize) -> Vec<u8> {
    (from..from + count as u64)
        .map(|at| (at % 251) as u8)
        .collect()
}

fn read_all(log: &OutputLog, stream: StdStream, mut from: u64, step: usize) -> (u64, Vec<u8>) {
    let first = log.read(stream, from, 0).from;
    let mut all = Vec::new();
    from = first;
    loop {
        let piece = log.read(stream, from, step);
        if piece.bytes.is_empty() {
            return (first, all);
        }
        assert_eq!(piece.from, from, "nothing is skipped while nobody writes");
        from += piece.bytes.len() as u64;
        all.extend(piece.bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whatever_the_pieces_no_byte_is_lost_doubled_or_moved_within_the_bound(
        most in prop_oneof![1u64..2000, 60_000u64..200_000],
        pieces in prop::collection::vec(prop_oneof![0usize..40, 1000usize..90_000], 0..12),
        step in prop_oneof![1usize..10, 1000usize..100_000],
        spills: bool,
    ) {
        let folder = std::env::temp_dir();
        let log = if spills { OutputLog::in_folder(most, &folder) } else { OutputLog::new(most) };
        let mut total = 0;
        for count in pieces {
            log.append(StdStream::Stdout, &pattern(total, count));
            total += count as u64;
            let kept = total.min(most);
            let step = step.max(kept as usize / 40);
            let (first, bytes) = read_all(&log, StdStream::Stdout, 0, step);
            prop_assert_eq!(first, total - kept);
            prop_assert!(bytes == pattern(first, kept as usize));
            let middle = total - kept / 2;
            prop_assert!(log.read(StdStream::Stdout, middle, usize::MAX).bytes == pattern(middle, (total - middle) as usize));
        }
        prop_assert_eq!(log.lengths(), [total, 0]);
        prop_assert_eq!(log.read(StdStream::Stdout, u64::MAX, 10), OutputChunk { from: total, bytes: vec![] });
        prop_assert_eq!(log.read(StdStream::Stderr, 0, 10), OutputChunk::default());
    }
}

#[test]
fn memory_stays_flat_and_the_file_has_no_name() {
    let folder = std::env::temp_dir().join(format!("airlock-feed-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let log = OutputLog::in_folder(1 << 20, &folder);
    for _ in 0..200 {
        log.append(StdStream::Stderr, &[b'x'; 64 << 10]);
    }
    let kept = log.stream(StdStream::Stderr);
    assert_eq!(
        (
            kept.memory.capacity(),
            kept.file.as_ref().unwrap().metadata().unwrap().len()
        ),
        (0, 1 << 20)
    );
    drop(kept);
    assert_eq!(log.lengths(), [0, 200 * (64 << 10)]);
    assert_eq!(log.oldest(), [0, 200 * (64 << 10) - (1 << 20)]);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn where_no_file_can_be_had_the_newest_is_kept_and_the_gap_is_seen() {
    let log = OutputLog::in_folder(1 << 20, Path::new("/nowhere at all"));
    log.append(StdStream::Stdout, &pattern(0, 100_000));
    log.append(StdStream::Stdout, &pattern(100_000, 10));
    let piece = log.read(StdStream::Stdout, 0, usize::MAX);
    assert_eq!(piece.from, 100_010 - MAX_MEMORY_BYTES);
    assert!(piece.bytes == pattern(piece.from, MAX_MEMORY_BYTES as usize));
}

#[tokio::test]
async fn a_reader_waits_for_more_and_for_the_end() {
    let log = OutputLog::new(100);
    let reader = log.clone();
    let waiting = tokio::spawn(async move {
        let first = reader.wait_for_more([0, 0]).await;
        (
            first,
            reader.wait_for_more([3, 0]).await,
            reader.wait_for_more([3, 1]).await,
        )
    });
    tokio::task::yield_now().await;
    log.append(StdStream::Stdout, b"abc");
    tokio::task::yield_now().await;
    log.append(StdStream::Stderr, b"!");
    log.end();
    let seen = tokio::time::timeout(Duration::from_secs(5), waiting)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(seen, (true, true, false));
    assert!(
        log.wait_for_more([0, 0]).await,
        "what is there can still be read after the end"
    );
}

#[test]
fn feeds_with_one_budget_forget_what_ended_first_and_never_have_more_than_it_together() {
    let budget = LogBudget::alone(1 << 20);
    let log = || OutputLog::within(&budget, 600 << 10, &std::env::temp_dir());
    let (first, second, third) = (log(), log(), log());
    let write = |log: &OutputLog, from: u64, count: usize| {
        log.append(StdStream::Stdout, &pattern(from, count))
    };
    write(&first, 0, 500 << 10);
    first.end();
    write(&second, 0, 500 << 10);
    second.end();
    assert_eq!((first.oldest()[0], second.oldest()[0]), (0, 0), "both fit");
    write(&third, 0, 300 << 10);
    assert_eq!(
        (first.oldest()[0], second.oldest()[0]),
        (500 << 10, 0),
        "the oldest is forgotten, and no other"
    );
    assert!(
        first
            .read(StdStream::Stdout, 0, usize::MAX)
            .bytes
            .is_empty()
    );
    assert!(budget.bytes() <= 1 << 20);
    drop((first, second, third));
    assert_eq!(budget.bytes(), 0);
}

#[test]
fn one_that_cannot_grow_any_more_keeps_its_newest_and_says_where_that_begins() {
    let budget = LogBudget::alone(256 << 10);
    let log = OutputLog::within(&budget, 64 << 20, &std::env::temp_dir());
    for at in 0..100 {
        log.append(StdStream::Stdout, &pattern(at * 10_007, 10_007));
    }
    let total = 100 * 10_007;
    let (from, bytes) = read_all(&log, StdStream::Stdout, 0, 1 << 20);
    assert!(
        bytes.len() > 200 << 10 && bytes.len() <= 256 << 10,
        "{}",
        bytes.len()
    );
    assert_eq!(from, total - bytes.len() as u64);
    assert!(bytes == pattern(from, bytes.len()));
    let late = OutputLog::within(&budget, 64 << 20, &std::env::temp_dir());
    late.append(StdStream::Stdout, &pattern(0, 300 << 10));
    assert_eq!(
        read_all(&late, StdStream::Stdout, 0, 1 << 20).0,
        (300 << 10) - MAX_MEMORY_BYTES,
        "who comes late has memory only"
    );
}

#[tokio::test]
async fn what_goes_to_the_disk_off_the_loop_keeps_its_order() {
    let log = OutputLog::in_folder(1 << 20, &std::env::temp_dir());
    let (mut total, mut buffer) = (0, Vec::new());
    for count in [10, 60_000, 60_000, 3, 64 << 10] {
        buffer.clear();
        buffer.extend(pattern(total, count));
        buffer = log.append_from(StdStream::Stdout, buffer, count).await;
        total += count as u64;
    }
    assert!(read_all(&log, StdStream::Stdout, 0, 1 << 20).1 == pattern(0, total as usize));
}

#[test]
fn one_owner_has_his_share_and_no_more_however_many_sessions_and_others_have_theirs() {
    let disk = DiskBudget::with(std::env::temp_dir(), 16 << 20);
    let owner = |name: &str| disk.owner(Some(&spec::Id::new(name).unwrap()));
    let log = |name: &str| {
        let session = LogBudget::of(owner(name), 256 << 20);
        OutputLog::within(&session, 64 << 20, &std::env::temp_dir())
    };
    let write = |log: &OutputLog, mib: usize| {
        (0..16 * mib)
            .for_each(|at| log.append(StdStream::Stdout, &pattern((at as u64) << 16, 64 << 10)));
    };
    let kept = |log: &OutputLog| (log.lengths()[0] - log.oldest()[0]) >> 20;
    let (ended, greedy) = (log("f"), log("f"));
    write(&ended, 3);
    ended.end();
    assert_eq!(
        (kept(&ended), disk.owner(None).bytes()),
        (3, 0),
        "the positive control: it fits"
    );
    write(&greedy, 30);
    assert_eq!(
        (kept(&ended), kept(&greedy)),
        (0, 4),
        "what his feeds ended with is forgotten for what comes"
    );
    assert_eq!(owner("f").bytes(), 4 << 20);
    let others: Vec<_> = ["a", "b", "c", "d"]
        .map(log)
        .into_iter()
        .inspect(|log| write(log, 5))
        .collect();
    assert_eq!(
        others.iter().map(kept).collect::<Vec<_>>(),
        [4, 4, 2, 1],
        "half of what the others leave"
    );
    assert_eq!(kept(&greedy), 4);
    drop((ended, greedy));
    let again = log("f");
    write(&again, 5);
    assert!(
        kept(&again) >= 2,
        "what was given back is there for the next"
    );
}
