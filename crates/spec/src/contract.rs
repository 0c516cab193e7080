//! The format of standard output that a run must keep.

use std::{fmt, str::FromStr};

/// The format that standard output must have for the run to succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contract {
    /// Any bytes.
    #[default]
    Raw,
    /// One JSON object, a task result: `task_id`, `status`, `result`, `error`, `tool_calls`,
    /// `tokens_used`.
    Task,
    /// One JSON object, an envelope: `payloads` and `meta`.
    Envelope,
}

impl Contract {
    /// The public name.
    pub const fn name(self) -> &'static str {
        match self {
            Contract::Raw => "raw",
            Contract::Task => "task",
            Contract::Envelope => "envelope",
        }
    }
}

impl FromStr for Contract {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Contract::Raw, Contract::Task, Contract::Envelope];
        let found = all.into_iter().find(|contract| contract.name() == text);
        found.ok_or_else(|| {
            format!(
                "no contract is called `{}`; there are raw, task, envelope",
                text.escape_debug()
            )
        })
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contract_is_found_by_its_name_only() {
        for contract in [Contract::Raw, Contract::Task, Contract::Envelope] {
            assert_eq!(contract.name().parse(), Ok(contract));
        }
        for other in ["", "Task", "task ", "json"] {
            assert!(other.parse::<Contract>().is_err(), "{other}");
        }
    }
}
