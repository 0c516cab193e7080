//! Looks for the key inside, in everything that a program can read: its variables, those of every process, its own
//! memory, every file. The bytes stand in no script as they are, or they would be found there.

use doors_tests::REAL_KEY;

/// What a program that looks tells at the end: where something is that is there, and where the key is.
pub const FOUND: &str = "[\"file\", \"memory\"]\n[]\n";

/// The script. Before `FOUND` it tells 200 twice, when it used the door.
pub fn look() -> String {
    let script = include_str!("look.py");
    format!(
        "REAL = {}\nTHERE = {}\n{script}",
        halves(REAL_KEY),
        halves("something-that-is-there")
    )
}

/// As two halves that only the script puts together, while it looks.
pub fn halves(text: &str) -> String {
    let hex = |part: &str| {
        part.bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let (first, second) = text.split_at(text.len() / 2);
    format!("['{}', '{}']", hex(first), hex(second))
}
