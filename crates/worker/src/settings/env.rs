//! Reads environment variables. An empty variable counts as unset, because images define variables
//! as empty; two names of one setting must agree; an invalid number is reported and the default is
//! used.

use super::{SettingError, SettingNotice};
use doors::Secret;
use spec::Money;
use std::{
    ffi::OsString, fmt::Display, ops::RangeInclusive, os::unix::ffi::OsStringExt, path::PathBuf,
};

/// Reads variables and collects notices about them.
pub(super) struct EnvReader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
    notices: Vec<SettingNotice>,
}

/// A variable that is set.
pub(super) struct Variable<T> {
    pub(super) name: &'static str,
    pub(super) value: T,
}

impl<'a> EnvReader<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<OsString>) -> EnvReader<'a> {
        EnvReader {
            lookup,
            notices: Vec::new(),
        }
    }

    pub(super) fn notices(self) -> Vec<SettingNotice> {
        self.notices
    }

    pub(super) fn notice(&mut self, variable: &'static str, message: impl Into<String>) {
        self.notices.push(SettingNotice {
            variable: variable.to_owned(),
            message: message.into(),
        });
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        (self.lookup)(name).is_some_and(|value| !value.is_empty())
    }

    /// The value of a setting with several names.
    pub(super) fn raw(
        &self,
        names: &[&'static str],
    ) -> Result<Option<Variable<OsString>>, SettingError> {
        let mut found: Option<Variable<OsString>> = None;
        for name in names.iter().copied() {
            let Some(value) = (self.lookup)(name).filter(|value| !value.is_empty()) else {
                continue;
            };
            match &found {
                Some(before) if before.value != value => {
                    return Err(SettingError::new(
                        name,
                        format!(
                            "`{}` and `{name}` are the same setting and do not say the same",
                            before.name
                        ),
                        "leave one of the two unset",
                    ));
                }
                Some(_) => {}
                None => found = Some(Variable { name, value }),
            }
        }
        Ok(found)
    }

    /// The value as UTF-8 text.
    pub(super) fn found(
        &self,
        names: &[&'static str],
    ) -> Result<Option<Variable<String>>, SettingError> {
        let Some(Variable { name, value }) = self.raw(names)? else {
            return Ok(None);
        };
        let value = value.into_string().map_err(|_| {
            SettingError::new(
                name,
                format!("`{name}` is not UTF-8"),
                "write it in letters that are",
            )
        })?;
        Ok(Some(Variable {
            name,
            value: value.trim().to_owned(),
        })
        .filter(|found| !found.value.is_empty()))
    }

    pub(super) fn text(&self, names: &[&'static str]) -> Result<Option<String>, SettingError> {
        Ok(self.found(names)?.map(|found| found.value))
    }

    pub(super) fn path(&self, names: &[&'static str]) -> Result<Option<PathBuf>, SettingError> {
        Ok(self.raw(names)?.map(|found| PathBuf::from(found.value)))
    }

    /// An absolute path inside the sandbox.
    pub(super) fn absolute(&self, names: &[&'static str]) -> Result<Option<PathBuf>, SettingError> {
        match self.raw(names)? {
            None => Ok(None),
            Some(Variable { name, value }) => {
                let path = PathBuf::from(value);
                if path.is_absolute() {
                    Ok(Some(path))
                } else {
                    Err(SettingError::new(
                        name,
                        format!("`{name}` is `{}`, which is no whole path", path.display()),
                        "write it from the root on",
                    ))
                }
            }
        }
    }

    pub(super) fn secret(&self, names: &[&'static str]) -> Result<Option<Secret>, SettingError> {
        let Some(Variable { name, value }) = self.raw(names)? else {
            return Ok(None);
        };
        // The value is not repeated.
        let secret = Secret::new(value.into_vec());
        secret.map(Some).map_err(|flaw| {
            SettingError::new(name, format!("`{name}`: {flaw}"), "look at what sets it")
        })
    }

    /// A number in a range. An invalid one is reported and replaced by the default, for
    /// compatibility.
    pub(super) fn number(
        &mut self,
        names: &[&'static str],
        default: u64,
        among: RangeInclusive<u64>,
    ) -> Result<u64, SettingError> {
        let Some(Variable { name, value }) = self.found(names)? else {
            return Ok(default);
        };
        match value.parse::<u64>() {
            Ok(number) if among.contains(&number) => Ok(number),
            Ok(number) => {
                let least = among.start();
                let limit = among.end();
                self.fall_back(
                    name,
                    format!("{number} is not between {least} and {limit}"),
                    default,
                );
                Ok(default)
            }
            Err(_) => {
                self.fall_back(
                    name,
                    format!("`{}` is no whole number", shown(&value)),
                    default,
                );
                Ok(default)
            }
        }
    }

    /// A number of tries, where 0 means without end; so does a negative number, as in the
    /// configuration of some brokers.
    pub(super) fn tries(&mut self, name: &'static str, default: u64) -> Result<u64, SettingError> {
        let value = self.text(&[name])?.unwrap_or_default();
        if value.parse::<i64>().is_ok_and(|number| number < 0) {
            self.notice(name, format!("{value} is taken for 0, which is for ever"));
            return Ok(0);
        }
        self.number(&[name], default, 0..=u64::from(u32::MAX))
    }

    /// An amount in dollars. An invalid one is an error: the default may be more than was meant.
    pub(super) fn money(&self, name: &'static str) -> Result<Option<Money>, SettingError> {
        let Some(Variable { value, .. }) = self.found(&[name])? else {
            return Ok(None);
        };
        value.parse().map(Some).map_err(|_| {
            let message = format!("`{name}`: `{}` is no amount of dollars", shown(&value));
            SettingError::new(name, message, "write it as 0.50")
        })
    }

    /// A boolean.
    pub(super) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, SettingError> {
        let Some(Variable { value, .. }) = self.found(&[name])? else {
            return Ok(None);
        };
        match value.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(Some(true)),
            "false" | "0" | "no" | "off" => Ok(Some(false)),
            _ => {
                self.fall_back(
                    name,
                    format!("`{}` is neither `true` nor `false`", shown(&value)),
                    false,
                );
                Ok(Some(false))
            }
        }
    }

    fn fall_back(&mut self, name: &'static str, why: String, default: impl Display) {
        self.notice(name, format!("{why}: {default} is used"));
    }
}

/// A value for a message, truncated.
pub(super) fn shown(value: &str) -> String {
    value
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(100)
        .collect()
}
