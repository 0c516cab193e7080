//! Suggestions for a mistyped name: "did you mean …?".

/// The known key with the smallest edit distance, if it is small enough for a suggestion.
pub fn closest_name<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let closest = known
        .iter()
        .map(|candidate| (distance(key, candidate), *candidate))
        .min()?;
    (closest.0 <= 1 + closest.1.len() / 4).then_some(closest.1)
}

/// The edit distance (Levenshtein): insertions, removals and replacements between two texts.
fn distance(from: &str, to: &str) -> usize {
    // Keys are short. A long text is close to none of them and should not cost time.
    if from.len() > 64 {
        return usize::MAX;
    }
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (line, character) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for column in 0..to.len() {
            let replaced = diagonal + usize::from(character != to[column]);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 4] = ["memory", "pids", "wall_time", "output"];

    #[test]
    fn the_nearest_key_is_suggested_only_when_it_is_near() {
        assert_eq!(closest_name("memroy", &KEYS), Some("memory"));
        assert_eq!(closest_name("pid", &KEYS), Some("pids"));
        assert_eq!(closest_name("wall-time", &KEYS), Some("wall_time"));
        assert_eq!(closest_name("colour", &KEYS), None);
        assert_eq!(closest_name(&"x".repeat(1000), &KEYS), None);
    }

    #[test]
    fn distances_are_those_of_the_textbook() {
        for (from, to, steps) in [
            ("kitten", "sitting", 3),
            ("", "abc", 3),
            ("same", "same", 0),
            ("ab", "ba", 2),
        ] {
            assert_eq!(distance(from, to), steps, "{from} {to}");
        }
    }
}
