//! Applies the hunks of one file to its bytes.

use super::{DiffError, Hunk, HunkLine, LineKind, MAX_FILE_BYTES, MAX_HUNK_OFFSET};

/// Applies the hunks in order; each must match behind the one before.
pub(crate) fn apply(old: &[u8], hunks: &[Hunk<'_>]) -> Result<Vec<u8>, DiffError> {
    if old.len() > MAX_FILE_BYTES {
        return Err(DiffError::TooLarge);
    }
    let lines: Vec<&[u8]> = old.split_inclusive(|byte| *byte == b'\n').collect();
    let mut new = Vec::with_capacity(old.len());
    let mut done = 0;
    let mut moved = 0;
    for (number, hunk) in hunks.iter().enumerate() {
        let number = number + 1;
        let at = locate_hunk(&lines, hunk, done, moved, number)?;
        moved = at as isize - hunk.at as isize;
        copy(&mut new, &lines[done..at], number)?;
        for line in hunk.lines.iter().filter(|line| line.kind != LineKind::Gone) {
            add(&mut new, line.text, line.ends, number)?;
        }
        done = at + hunk.before().count();
    }
    copy(&mut new, &lines[done..], hunks.len())?;
    Ok(new)
}

fn copy(new: &mut Vec<u8>, lines: &[&[u8]], hunk: usize) -> Result<(), DiffError> {
    lines
        .iter()
        .try_for_each(|line| match line.strip_suffix(b"\n") {
            Some(text) => add(new, text, true, hunk),
            None => add(new, line, false, hunk),
        })
}

/// Appends a line. After a line without a newline nothing can be appended.
fn add(new: &mut Vec<u8>, text: &[u8], ends: bool, hunk: usize) -> Result<(), DiffError> {
    if new.last().is_some_and(|byte| *byte != b'\n') {
        return Err(DiffError::Joins { hunk });
    }
    if new.len() + text.len() >= MAX_FILE_BYTES {
        return Err(DiffError::TooLarge);
    }
    new.extend_from_slice(text);
    if ends {
        new.push(b'\n');
    }
    Ok(())
}

impl Hunk<'_> {
    /// The old lines of the hunk.
    fn before(&self) -> impl Iterator<Item = &HunkLine<'_>> {
        self.lines.iter().filter(|line| line.kind != LineKind::New)
    }

    /// Whether the hunk matches at a line. Context on one side only means that the file began or
    /// ended there.
    fn fits(&self, lines: &[&[u8]], at: usize) -> bool {
        let count = self.before().count();
        let is_same =
            |line: Option<&HunkLine<'_>>| line.is_some_and(|line| line.kind == LineKind::Same);
        let above = is_same(self.lines.first());
        let below = is_same(self.lines.last());
        if (self.at == 0 && below && !above && at != 0)
            || (above && !below && at + count != lines.len())
        {
            return false;
        }
        lines
            .get(at..at + count)
            .is_some_and(|found| self.before().zip(found).all(|(line, found)| line.is(found)))
    }
}

impl HunkLine<'_> {
    fn is(&self, found: &[u8]) -> bool {
        if self.ends {
            found.strip_suffix(b"\n") == Some(self.text)
        } else {
            found == self.text
        }
    }
}

/// Locates a hunk: at its line, shifted like the hunk before, or else nearby.
fn locate_hunk(
    lines: &[&[u8]],
    hunk: &Hunk<'_>,
    least: usize,
    moved: isize,
    number: usize,
) -> Result<usize, DiffError> {
    let expected = hunk.at.saturating_add_signed(moved);
    let fits = |at: usize| at >= least && hunk.fits(lines, at);
    let differs = DiffError::Differs {
        hunk: number,
        line: expected + 1,
    };
    if fits(expected) {
        return Ok(expected);
    }
    // A hunk without old lines can only be at its line.
    if hunk.before().next().is_none() {
        return Err(differs);
    }
    for far in 1..=MAX_HUNK_OFFSET {
        let before = expected.checked_sub(far).filter(|at| fits(*at));
        let behind = Some(expected + far).filter(|at| fits(*at));
        match (before, behind) {
            (Some(_), Some(_)) => return Err(DiffError::Ambiguous { hunk: number }),
            (Some(at), None) | (None, Some(at)) => return Ok(at),
            (None, None) => {}
        }
    }
    Err(differs)
}
