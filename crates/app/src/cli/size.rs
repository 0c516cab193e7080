//! Byte counts for people: `1.5 MiB`.

/// A number of bytes for people.
pub(super) fn human_size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let unit = (0..units.len())
        .rev()
        .find(|unit| bytes >> (10 * unit) > 0)
        .unwrap_or(0);
    match unit {
        0 => format!("{bytes} B"),
        _ => {
            // In tenths, by whole numbers: rounding up to the next unit would be a lie of its own.
            let tenths = (bytes * 10) >> (10 * unit);
            format!("{}.{} {}", tenths / 10, tenths % 10, units[unit])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_600_000, "1.5 MiB"),
            (3 << 30, "3.0 GiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human_size(bytes), text);
        }
    }
}
