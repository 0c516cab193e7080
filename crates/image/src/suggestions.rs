//! Suggests image names similar to one that was not found.

/// Maximum number of suggestions.
const MAX_SUGGESTIONS: usize = 3;

/// The most similar names, best first.
pub(crate) fn suggest(wanted: &str, names: impl Iterator<Item = String>) -> Vec<String> {
    let far = (wanted.chars().count() / 3).max(2);
    // The same last component is similar, whatever registry and tag surround it.
    let short = |name: &str| {
        let last = name
            .split('@')
            .next()
            .unwrap_or_default()
            .rsplit('/')
            .next()
            .unwrap_or_default();
        last.split(':').next().unwrap_or_default().to_owned()
    };
    let distances = names.map(|name| {
        if short(&name) == short(wanted) {
            (0, name)
        } else {
            (distance(wanted, &name), name)
        }
    });
    let mut found: Vec<_> = distances.filter(|(distance, _)| *distance <= far).collect();
    found.sort();
    found.truncate(MAX_SUGGESTIONS);
    found.into_iter().map(|(_, name)| name).collect()
}

/// Levenshtein distance.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<_> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (count, letter) in one.chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], count + 1);
        for (at, its) in other.iter().enumerate() {
            let changed = corner + usize::from(letter != *its);
            corner = row[at + 1];
            row[at + 1] = changed.min(corner + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_the_name_and_other_words_do_not() {
        let names = || {
            ["agent:1", "agent:2", "debian:latest", "python:3"]
                .map(str::to_owned)
                .into_iter()
        };
        assert_eq!(suggest("debain:latest", names()), ["debian:latest"]);
        assert_eq!(suggest("agent:latest", names()), ["agent:1", "agent:2"]);
        let local = ["localhost/agent:latest".to_owned()];
        assert_eq!(suggest("agent:latest", local.clone().into_iter()), local);
        assert_eq!(suggest("postgres:latest", names()), Vec::<String>::new());
    }
}
