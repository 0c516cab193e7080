//! Looks variables up. An empty one is as if it were not set, because images set what they know to nothing; two names of one
//! thing must agree; what cannot be used for a number is told, and the default stays.

use super::{Mistake, Notice};
use doors::Secret;
use spec::Money;
use std::{
    ffi::OsString, fmt::Display, ops::RangeInclusive, os::unix::ffi::OsStringExt, path::PathBuf,
};

/// What variables say, and what is to be told about them.
pub(super) struct Reader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
    notices: Vec<Notice>,
}

/// One variable that is set.
pub(super) struct Found<T> {
    pub(super) name: &'static str,
    pub(super) value: T,
}

impl<'a> Reader<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<OsString>) -> Reader<'a> {
        Reader {
            lookup,
            notices: Vec::new(),
        }
    }

    pub(super) fn notices(self) -> Vec<Notice> {
        self.notices
    }

    pub(super) fn tell(&mut self, variable: &'static str, message: impl Into<String>) {
        self.notices.push(Notice {
            variable: variable.to_owned(),
            message: message.into(),
        });
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        (self.lookup)(name).is_some_and(|value| !value.is_empty())
    }

    /// What one thing is said to be under one of its names.
    pub(super) fn raw(&self, names: &[&'static str]) -> Result<Option<Found<OsString>>, Mistake> {
        let mut found: Option<Found<OsString>> = None;
        for name in names.iter().copied() {
            let Some(value) = (self.lookup)(name).filter(|value| !value.is_empty()) else {
                continue;
            };
            match &found {
                Some(before) if before.value != value => {
                    return Err(Mistake::new(
                        name,
                        format!(
                            "`{}` and `{name}` are the same setting and do not say the same",
                            before.name
                        ),
                        "leave one of the two unset",
                    ));
                }
                Some(_) => {}
                None => found = Some(Found { name, value }),
            }
        }
        Ok(found)
    }

    /// The same, as text.
    pub(super) fn found(&self, names: &[&'static str]) -> Result<Option<Found<String>>, Mistake> {
        let Some(Found { name, value }) = self.raw(names)? else {
            return Ok(None);
        };
        let value = value.into_string().map_err(|_| {
            Mistake::new(
                name,
                format!("`{name}` is not UTF-8"),
                "write it in letters that are",
            )
        })?;
        Ok(Some(Found {
            name,
            value: value.trim().to_owned(),
        })
        .filter(|found| !found.value.is_empty()))
    }

    pub(super) fn text(&self, names: &[&'static str]) -> Result<Option<String>, Mistake> {
        Ok(self.found(names)?.map(|found| found.value))
    }

    pub(super) fn path(&self, names: &[&'static str]) -> Result<Option<PathBuf>, Mistake> {
        Ok(self.raw(names)?.map(|found| PathBuf::from(found.value)))
    }

    /// A program, as it is called inside.
    pub(super) fn absolute(&self, names: &[&'static str]) -> Result<Option<PathBuf>, Mistake> {
        match self.raw(names)? {
            None => Ok(None),
            Some(Found { name, value }) => {
                let path = PathBuf::from(value);
                match path.is_absolute() {
                    true => Ok(Some(path)),
                    false => Err(Mistake::new(
                        name,
                        format!("`{name}` is `{}`, which is no whole path", path.display()),
                        "write it from the root on",
                    )),
                }
            }
        }
    }

    pub(super) fn secret(&self, names: &[&'static str]) -> Result<Option<Secret>, Mistake> {
        let Some(Found { name, value }) = self.raw(names)? else {
            return Ok(None);
        };
        // What it says is not repeated.
        let secret = Secret::new(value.into_vec());
        secret
            .map(Some)
            .map_err(|flaw| Mistake::new(name, format!("`{name}`: {flaw}"), "look at what sets it"))
    }

    /// A whole number between two others. What is none is told, and the default is used, as ever.
    pub(super) fn number(
        &mut self,
        names: &[&'static str],
        default: u64,
        among: RangeInclusive<u64>,
    ) -> Result<u64, Mistake> {
        let Some(Found { name, value }) = self.found(names)? else {
            return Ok(default);
        };
        match value.parse::<u64>() {
            Ok(number) if among.contains(&number) => Ok(number),
            Ok(number) => {
                let (least, most) = (among.start(), among.end());
                self.fall_back(
                    name,
                    format!("{number} is not between {least} and {most}"),
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

    /// How often something is tried, where 0 is for ever. So is what is below it, in the words of some brokers' own programs.
    pub(super) fn tries(&mut self, name: &'static str, default: u64) -> Result<u64, Mistake> {
        let value = self.text(&[name])?.unwrap_or_default();
        if value.parse::<i64>().is_ok_and(|number| number < 0) {
            self.tell(name, format!("{value} is taken for 0, which is for ever"));
            return Ok(0);
        }
        self.number(&[name], default, 0..=u64::from(u32::MAX))
    }

    /// Dollars. What is none is refused: the default may be more than was meant.
    pub(super) fn money(&self, name: &'static str) -> Result<Option<Money>, Mistake> {
        let Some(Found { value, .. }) = self.found(&[name])? else {
            return Ok(None);
        };
        value.parse().map(Some).map_err(|_| {
            let message = format!("`{name}`: `{}` is no amount of dollars", shown(&value));
            Mistake::new(name, message, "write it as 0.50")
        })
    }

    /// Yes or no.
    pub(super) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, Mistake> {
        let Some(Found { value, .. }) = self.found(&[name])? else {
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
        self.tell(name, format!("{why}: {default} is used"));
    }
}

/// What stands in a variable, for a message: not more than anybody reads.
pub(super) fn shown(value: &str) -> String {
    value
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(100)
        .collect()
}
