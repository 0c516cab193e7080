//! Applies the hunks of one file to its bytes.

use super::{BadDiff, FARTHEST, Hunk, LARGEST_FILE, Line, LineKind};

/// The bytes afterwards. Hunks fit in their order, each behind the one before.
pub(crate) fn apply(old: &[u8], hunks: &[Hunk<'_>]) -> Result<Vec<u8>, BadDiff> {
    if old.len() > LARGEST_FILE {
        return Err(BadDiff::TooLarge);
    }
    let lines: Vec<&[u8]> = old.split_inclusive(|byte| *byte == b'\n').collect();
    let (mut new, mut done, mut moved) = (Vec::with_capacity(old.len()), 0, 0);
    for (number, hunk) in hunks.iter().enumerate() {
        let number = number + 1;
        let at = place(&lines, hunk, done, moved, number)?;
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

fn copy(new: &mut Vec<u8>, lines: &[&[u8]], hunk: usize) -> Result<(), BadDiff> {
    lines
        .iter()
        .try_for_each(|line| match line.strip_suffix(b"\n") {
            Some(text) => add(new, text, true, hunk),
            None => add(new, line, false, hunk),
        })
}

/// Adds a line. What follows one without a newline would become part of it.
fn add(new: &mut Vec<u8>, text: &[u8], ends: bool, hunk: usize) -> Result<(), BadDiff> {
    if new.last().is_some_and(|byte| *byte != b'\n') {
        return Err(BadDiff::Joins { hunk });
    }
    if new.len() + text.len() >= LARGEST_FILE {
        return Err(BadDiff::TooLarge);
    }
    new.extend_from_slice(text);
    if ends {
        new.push(b'\n');
    }
    Ok(())
}

impl Hunk<'_> {
    /// Its lines as they are before.
    fn before(&self) -> impl Iterator<Item = &Line<'_>> {
        self.lines.iter().filter(|line| line.kind != LineKind::New)
    }

    /// Whether it can stand there. Context on one side only says that the file began or ended there.
    fn fits(&self, lines: &[&[u8]], at: usize) -> bool {
        let count = self.before().count();
        let is_same =
            |line: Option<&Line<'_>>| line.is_some_and(|line| line.kind == LineKind::Same);
        let (above, below) = (is_same(self.lines.first()), is_same(self.lines.last()));
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

impl Line<'_> {
    fn is(&self, found: &[u8]) -> bool {
        match self.ends {
            true => found.strip_suffix(b"\n") == Some(self.text),
            false => found == self.text,
        }
    }
}

/// Where a hunk fits: where it was made for, moved as far as the one before, or else nearby.
fn place(
    lines: &[&[u8]],
    hunk: &Hunk<'_>,
    least: usize,
    moved: isize,
    number: usize,
) -> Result<usize, BadDiff> {
    let expected = hunk.at.saturating_add_signed(moved);
    let fits = |at: usize| at >= least && hunk.fits(lines, at);
    let differs = BadDiff::Differs {
        hunk: number,
        line: expected + 1,
    };
    if fits(expected) {
        return Ok(expected);
    }
    // Without a line of the file there is nothing to know the place by.
    if hunk.before().next().is_none() {
        return Err(differs);
    }
    for far in 1..=FARTHEST {
        let before = expected.checked_sub(far).filter(|at| fits(*at));
        let behind = Some(expected + far).filter(|at| fits(*at));
        match (before, behind) {
            (Some(_), Some(_)) => return Err(BadDiff::Ambiguous { hunk: number }),
            (Some(at), None) | (None, Some(at)) => return Ok(at),
            (None, None) => {}
        }
    }
    Err(differs)
}
