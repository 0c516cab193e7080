//! The environment of a program.

use super::{MAX_ARGUMENT_BYTES, MAX_ENTRIES, SpecError, error::shown, invalid};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

/// Variables that Airlock sets in every run; a caller cannot override them.
const RESERVED_ENV: [&str; 10] = [
    "AIRLOCK_RUN_ID",
    "AIRLOCK_WORKSPACE",
    "HOME",
    "PATH",
    "TMPDIR",
    "CYNODE_TASK_ID",
    "CYNODE_JOB_ID",
    "CYNODE_WORKSPACE_DIR",
    "CYNODE_ARTIFACTS_DIR",
    "RUN_ID",
];

/// The name of a variable: not empty, without `=` and NUL, and not one that Airlock sets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EnvName(OsString);

impl EnvName {
    /// Checks a name.
    pub fn new(name: &OsStr) -> Result<Self, SpecError> {
        let shown = shown(name);
        if name.is_empty() || name.as_bytes().iter().any(|byte| [b'=', 0].contains(byte)) {
            return Err(invalid(
                format!("`{shown}` is not the name of a variable"),
                "write --env NAME=VALUE",
            ));
        }
        if RESERVED_ENV.iter().any(|reserved| name == *reserved) {
            let hint = "Airlock sets it itself; choose another name";
            return Err(invalid(
                format!("the variable `{shown}` cannot be set by a caller"),
                hint,
            ));
        }
        Ok(EnvName(name.to_owned()))
    }

    /// The name as text.
    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }
}

/// The variables of the request, and those of the caller's that the profile lets pass.
pub(crate) fn environment(
    requested: &[(OsString, OsString)],
    caller: &BTreeMap<OsString, OsString>,
    inherit: &[String],
) -> Result<BTreeMap<EnvName, OsString>, SpecError> {
    let mut env = BTreeMap::new();
    let inherited = inherit.iter().map(OsString::from);
    for (name, value) in
        inherited.filter_map(|name| caller.get(&name).map(|value| (name.clone(), value.clone())))
    {
        env.insert(EnvName::new(&name)?, value);
    }
    for (name, value) in requested {
        if value.as_bytes().contains(&0) {
            return Err(invalid(
                format!("the value of `{}` contains a NUL byte", shown(name)),
                "leave it out",
            ));
        }
        env.insert(EnvName::new(name)?, value.clone());
    }
    let bytes: usize = env
        .iter()
        .map(|(name, value)| name.0.len() + value.len() + 2)
        .sum();
    if bytes > MAX_ARGUMENT_BYTES || env.len() > MAX_ENTRIES {
        return Err(invalid(
            "the environment is too large",
            "put the data into a file (--input)",
        ));
    }
    Ok(env)
}
