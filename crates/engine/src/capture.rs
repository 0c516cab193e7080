//! Captures the head and the tail of an output stream within a cap.

use std::collections::VecDeque;

/// Keeps the first half of the cap and the last half.
#[derive(Debug)]
pub(crate) struct Capture {
    half: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Capture {
    pub(crate) fn new(cap: u64) -> Capture {
        let half = usize::try_from(cap / 2).unwrap_or(usize::MAX).max(1);
        Capture {
            half,
            head: Vec::new(),
            tail: VecDeque::new(),
            total: 0,
        }
    }

    pub(crate) fn add(&mut self, data: &[u8]) {
        self.total += data.len() as u64;
        let (first, rest) = data.split_at(data.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(self.half)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(self.half);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    /// The captured bytes, and whether the stream was truncated. The gap is marked, and no UTF-8
    /// character is cut.
    pub(crate) fn finish(self) -> (Vec<u8>, bool) {
        let mut left_out = self.total - (self.head.len() + self.tail.len()) as u64;
        let mut kept = self.head;
        let tail = Vec::from(self.tail);
        if left_out == 0 {
            kept.extend(tail);
            return (kept, false);
        }
        let cut = cut_character(&kept);
        kept.truncate(kept.len() - cut);
        let begin = tail
            .iter()
            .take(3)
            .take_while(|byte| **byte & 0xc0 == 0x80)
            .count();
        left_out += (cut + begin) as u64;
        let gap = format!("\n[... {left_out} bytes left out ...]\n").into_bytes();
        kept.reserve_exact(gap.len() + tail.len());
        kept.extend(gap);
        kept.extend_from_slice(&tail[begin..]);
        (kept, true)
    }
}

/// The number of bytes at the end that are an incomplete UTF-8 character.
fn cut_character(text: &[u8]) -> usize {
    let last = text.len().saturating_sub(3);
    match text[last..].iter().rposition(|byte| byte & 0xc0 != 0x80) {
        Some(place) => {
            let start = text[last + place];
            let length = text.len() - last - place;
            let wanted = [(0xe0, 0xc0, 2), (0xf0, 0xe0, 3), (0xf8, 0xf0, 4)];
            let wanted = wanted
                .iter()
                .find(|(mask, bits, _)| start & mask == *bits)
                .map_or(1, |(_, _, count)| *count);
            if length < wanted { length } else { 0 }
        }
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(cap: u64, chunks: &[&[u8]]) -> (Vec<u8>, bool) {
        let mut capture = Capture::new(cap);
        chunks.iter().for_each(|chunk| capture.add(chunk));
        capture.finish()
    }

    #[test]
    fn what_fits_is_kept_to_the_byte() {
        assert_eq!(
            capture(8, &[b"abc", b"", b"defgh"]),
            (b"abcdefgh".to_vec(), false)
        );
        assert_eq!(
            capture(8, &[b"\xff\x00\xc3"]),
            (b"\xff\x00\xc3".to_vec(), false)
        );
    }

    #[test]
    fn what_does_not_fit_is_kept_as_head_and_tail() {
        let kept = (b"abcd\n[... 2 bytes left out ...]\nghij".to_vec(), true);
        assert_eq!(capture(8, &[b"abcdefghij"]), kept);
        assert_eq!(capture(8, &[b"a", b"bcdefg", b"hi", b"j"]), kept);
    }

    #[test]
    fn no_character_is_cut_at_the_gap() {
        let text = "äöü€𝄞".repeat(20);
        for cap in 8..24 {
            let (kept, truncated) = capture(cap, &[text.as_bytes()]);
            let kept = String::from_utf8(kept).expect("whole characters");
            assert!(truncated, "cap {cap}");
            let (head, rest) = kept.split_once("\n[... ").expect("a gap");
            let (count, tail) = rest.split_once(" bytes left out ...]\n").expect("its size");
            let left_out = text.len() - head.len() - tail.len();
            assert_eq!(count, left_out.to_string(), "cap {cap}");
        }
    }

    #[test]
    fn memory_is_bounded_by_the_cap() {
        let mut capture = Capture::new(1000);
        for _ in 0..1000 {
            capture.add(&[b'x'; 4096]);
        }
        assert!(capture.head.len() + capture.tail.len() <= 1000 && capture.tail.capacity() <= 2048);
    }
}
