//! Cases that the list of the suite does not have.

use crate::Case;

pub(crate) const CASES: &[Case] = &[];
