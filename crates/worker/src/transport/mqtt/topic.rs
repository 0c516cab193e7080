//! Topic patterns of the mesh as MQTT topic filters.

use crate::wire::topic::mqtt_filter;

/// `*` becomes `+`, a last `>` becomes `#`; shared subscriptions get the prefix `$share/{pool}/`.
pub(super) fn filter(pattern: &str, pool: Option<&str>) -> Result<String, String> {
    let filter = mqtt_filter(pattern).map_err(|bad| bad.to_string())?;
    Ok(match pool {
        Some(pool) => format!("$share/{pool}/{filter}"),
        None => filter,
    })
}

/// Whether the name is valid in `$share`.
pub(super) fn is_pool(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '+', '#', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_are_translated_and_what_cannot_be_said_is_refused() {
        assert_eq!(filter("a/*/invoke/>", None), Ok("a/+/invoke/#".to_owned()));
        assert_eq!(filter(">", Some("p")), Ok("$share/p/#".to_owned()));
        for wrong in ["", "a/+", "a/#", "a/b*", "a/>/b", "a\0"] {
            assert!(filter(wrong, None).is_err(), "{wrong}");
        }
        assert!(is_pool("builtin-tools-worker") && !is_pool("a/b") && !is_pool(""));
    }
}
