//! What it counted.
