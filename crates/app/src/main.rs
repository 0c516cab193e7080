//! The command `airlock`.

fn main() {}
