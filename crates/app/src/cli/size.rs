//! Byte counts for people: `1.5 MiB`.

/// Formats a byte count with a binary unit and one decimal.
pub(super) fn human_size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let unit = (0..units.len())
        .rev()
        .find(|unit| bytes >> (10 * unit) > 0)
        .unwrap_or(0);
    match unit {
        0 => format!("{bytes} B"),
        _ => {
            // Integer arithmetic in tenths, rounded down: 1023.99 KiB must not be shown as 1024.0
            // KiB.
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
