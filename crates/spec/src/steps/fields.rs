//! A JSON object, read field by field. An error names the place of the field; an unknown field is
//! refused.

use super::BadJob;
use crate::Json;
use std::collections::BTreeMap;

/// An object with its place in the document.
pub(super) struct Fields<'a> {
    place: String,
    fields: &'a BTreeMap<String, Json>,
}

fn bad(place: String, why: impl Into<String>) -> BadJob {
    BadJob {
        field: place,
        why: why.into(),
    }
}

impl<'a> Fields<'a> {
    /// An object that may have these fields and no others.
    pub(super) fn of(value: &'a Json, place: String, known: &[&str]) -> Result<Fields<'a>, BadJob> {
        let Json::Object(fields) = value else {
            return Err(bad(place, "is not an object"));
        };
        let read = Fields { place, fields };
        match fields.keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(read.wrong(
                &name.chars().take(64).collect::<String>(),
                "is an unknown field",
            )),
            None => Ok(read),
        }
    }

    pub(super) fn place(&self, name: &str) -> String {
        if self.place.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.place)
        }
    }

    pub(super) fn wrong(&self, name: &str, why: impl Into<String>) -> BadJob {
        bad(self.place(name), why)
    }

    /// The value of a field; `null` counts as absent.
    pub(super) fn get(&self, name: &str) -> Option<&'a Json> {
        self.fields
            .get(name)
            .filter(|value| !matches!(value, Json::Null))
    }

    pub(super) fn required(&self, name: &str) -> Result<&'a Json, BadJob> {
        self.get(name).ok_or_else(|| self.wrong(name, "is missing"))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, BadJob> {
        match self.get(name) {
            None => Ok(None),
            Some(Json::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "is not a text")),
        }
    }

    pub(super) fn required_text(&self, name: &str) -> Result<&'a str, BadJob> {
        self.text(name)?
            .ok_or_else(|| self.wrong(name, "is missing"))
    }

    pub(super) fn owned(&self, name: &str) -> Result<Option<String>, BadJob> {
        Ok(self.text(name)?.map(str::to_owned))
    }

    pub(super) fn truth(&self, name: &str) -> Result<Option<bool>, BadJob> {
        match self.get(name) {
            None => Ok(None),
            Some(Json::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.wrong(name, "is neither true nor false")),
        }
    }

    /// A whole number above zero.
    pub(super) fn positive(&self, name: &str) -> Result<Option<u64>, BadJob> {
        match self.get(name) {
            None => Ok(None),
            Some(Json::Whole(value @ 1..)) => Ok(Some(*value)),
            Some(_) => Err(self.wrong(name, "is not a whole number above 0")),
        }
    }

    pub(super) fn list(&self, name: &str, most: usize) -> Result<&'a [Json], BadJob> {
        match self.get(name) {
            None => Ok(&[]),
            Some(Json::List(values)) if values.len() > most => {
                Err(self.wrong(name, format!("has more than {most} entries")))
            }
            Some(Json::List(values)) => Ok(values),
            Some(_) => Err(self.wrong(name, "is not a list")),
        }
    }

    pub(super) fn texts(&self, name: &str, most: usize) -> Result<Vec<String>, BadJob> {
        let one = |(index, value): (usize, &Json)| match value {
            Json::Text(text) => Ok(text.clone()),
            _ => Err(self.wrong(&format!("{name}[{index}]"), "is not a text")),
        };
        self.list(name, most)?.iter().enumerate().map(one).collect()
    }
}
