//! Large artifacts pass through memory in pieces. Alone in its process: it looks at the memory of all of it.

use artifacts_tests::{Ground, name};
use bytes::Bytes;
use std::fs;
use store::{ArtifactOwner, NewArtifact};

const PIECES: usize = 256;
const PIECE: usize = 1 << 20;
/// Buffers, parts on their way and what a client holds; far less than the artifact.
const MOST: u64 = 64 << 10;

/// In KiB, since the last time this was called.
fn peak() -> u64 {
    let status =
        fs::read_to_string("/proc/self/status").expect("what the kernel says of this process");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("what the kernel says of this process");
    fs::write("/proc/self/clear_refs", "5").expect("what the kernel says of this process");
    line.trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("what the kernel says of this process")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_artifact_passes_in_constant_memory() {
    let grounds = [Some(Ground::files()), Ground::s3("constant memory")];
    for ground in grounds.into_iter().flatten() {
        let artifacts = ground.usual();
        peak();
        let before = peak();
        let mut putting = artifacts
            .begin(NewArtifact::local(name("large")))
            .await
            .unwrap();
        for number in 0..PIECES {
            putting
                .write(Bytes::from(vec![number as u8; PIECE]))
                .await
                .unwrap();
        }
        let kept = putting.finish(None).await.unwrap();
        assert_eq!(kept.size_bytes, (PIECES * PIECE) as u64);
        let mut reading = artifacts
            .open_version(&ArtifactOwner::local(), &name("large"), None)
            .await
            .unwrap();
        let mut size = 0;
        while let Some(bytes) = reading.next().await.unwrap() {
            size += bytes.len();
        }
        assert_eq!(size, PIECES * PIECE);
        let grown = peak().saturating_sub(before);
        assert!(grown < MOST, "{ground:?}: {grown} KiB more than before");
    }
}
