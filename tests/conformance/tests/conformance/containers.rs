//! Which proofs are not about boxes that container engines make, and why.

use crate::runner::Proof;

/// A name, or its beginning, and the reason.
const NOT_APPLICABLE: [(&str, &str); 0] = [];

/// The others.
pub(crate) fn applicable<'a>(chosen: &[&'a Proof]) -> Vec<&'a Proof> {
    let excepted = |proof: &&&Proof| NOT_APPLICABLE.iter().any(|(name, _)| proof.name == *name);
    chosen.iter().filter(|proof| !excepted(proof)).copied().collect()
}
