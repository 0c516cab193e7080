//! `[workspace]`: protected names in mounted workspaces, and files that are hidden from programs. A
//! local file can only add to both.

use super::{ConfigError, local_file::NARROW_HINT, toml_file::Section};
use spec::{HiddenFiles, ProtectedNames, Size, WorkspacePolicy, closest_name};
use std::path::Path;
use toml::{Table, Value};

const NAME: &str = "workspace";
const KEYS: [&str; 5] = ["protect", "unprotect", "hide", "copy_names", "copy_size"];
/// The maximum of names that a file may add.
const MAX_NAMES: usize = 256;

/// Reads the operator's section.
pub(super) fn read(table: &Table, path: &Path) -> Result<WorkspacePolicy, ConfigError> {
    let section = Section { path, name: NAME };
    let mut policy = WorkspacePolicy::default();
    for (key, value) in table {
        match key.as_str() {
            "protect" => policy.protected.added = protect(&section, key, value)?,
            "unprotect" => policy.protected.removed = unprotect(&section, key, value)?,
            "hide" => policy.hide = hide(&section, key, value)?,
            "copy_names" => {
                policy.copy.get_or_insert_default().names = section.count(key, value)?
            }
            "copy_size" => {
                let bytes = section.quantity::<Size>(key, value)?.0;
                policy.copy.get_or_insert_default().bytes = bytes;
            }
            other => return Err(section.unknown(other, &KEYS)),
        }
    }
    Ok(policy)
}

/// Applies the local file's section.
pub(super) fn narrow(
    policy: &mut WorkspacePolicy,
    table: &Table,
    path: &Path,
) -> Result<(), ConfigError> {
    let section = Section { path, name: NAME };
    for (key, value) in table {
        match key.as_str() {
            "protect" => {
                let ProtectedNames { added, removed, .. } = &mut policy.protected;
                let names = protect(&section, key, value)?;
                // A name that the local file protects is protected, even if the operator removed
                // it.
                removed.retain(|it| !names.iter().any(|name| name.eq_ignore_ascii_case(it)));
                added.extend(names);
            }
            "hide" => {
                let patterns = hide(&section, key, value)?;
                if patterns.iter().any(|it| it == "none") {
                    return Err(section.error(key, "would widen: `none` shows more", NARROW_HINT));
                }
                policy.hide.extend(patterns);
            }
            "unprotect" | "copy_names" | "copy_size" => {
                return Err(section.error(key, "cannot be set here", NARROW_HINT));
            }
            other => return Err(section.unknown(other, &[KEYS[0], KEYS[2]])),
        }
    }
    Ok(())
}

fn texts(section: &Section<'_>, key: &str, value: &Value) -> Result<Vec<String>, ConfigError> {
    let texts = section.texts(key, value)?;
    Ok(texts.into_iter().map(str::to_owned).collect())
}

fn protect(section: &Section<'_>, key: &str, value: &Value) -> Result<Vec<String>, ConfigError> {
    let names = texts(section, key, value)?;
    if names.len() > MAX_NAMES {
        let what = format!("has more than {MAX_NAMES} names");
        return Err(section.error(key, what, "name the folders that hold them"));
    }
    let bad = |name: &&String| {
        let parts = name.split('/');
        name.len() > 1024
            || name.contains('\0')
            || parts
                .into_iter()
                .any(|part| matches!(part, "" | "." | ".."))
    };
    match names.iter().find(bad) {
        Some(name) => {
            let what = format!("has `{}`, which is not a valid name", name.escape_debug());
            let hint = "write a name, or a folder and a name in it, such as `deploy/run.sh`";
            Err(section.error(key, what, hint))
        }
        None => Ok(names),
    }
}

fn unprotect(section: &Section<'_>, key: &str, value: &Value) -> Result<Vec<String>, ConfigError> {
    let known: Vec<_> = spec::PROTECTED.iter().map(|it| it.name).collect();
    let names = texts(section, key, value)?;
    let is_known = |name: &String| known.iter().any(|it| it.eq_ignore_ascii_case(name));
    match names.iter().find(|name| !is_known(name)) {
        Some(unknown) => {
            let what = format!("has `{}`, which is not protected", unknown.escape_debug());
            let near = closest_name(unknown, &known).map(|near| format!("did you mean `{near}`?"));
            let hint = near.unwrap_or_else(|| "remove it".to_owned());
            Err(section.error(key, what, hint))
        }
        None => Ok(names),
    }
}

fn hide(section: &Section<'_>, key: &str, value: &Value) -> Result<Vec<String>, ConfigError> {
    let patterns = texts(section, key, value)?;
    match HiddenFiles::new(patterns.iter().map(String::as_str)) {
        Ok(_) => Ok(patterns),
        Err(error) => Err(section.error(
            key,
            format_args!("has a bad value: {}", error.message),
            error.hint,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table {
        text.parse().unwrap()
    }

    fn read(text: &str) -> Result<WorkspacePolicy, ConfigError> {
        super::read(&table(text), Path::new("/c.toml"))
    }

    #[test]
    fn an_operator_adds_and_removes_names_and_hides_files() {
        let policy =
            read("protect = [\".mytool\"]\nunprotect = [\".IDEA\"]\nhide = [\"none\", \"*.x\"]");
        let policy = policy.unwrap();
        assert_eq!(policy.protected.added, [".mytool"]);
        assert_eq!(policy.protected.removed, [".IDEA"]);
        assert_eq!(policy.hide, ["none", "*.x"]);
    }

    #[test]
    fn mistakes_are_named_with_what_may_be_meant() {
        for (text, message, hint) in [
            (
                "unprotect = [\".idee\"]",
                "`workspace.unprotect` in `/c.toml` has `.idee`, which is not protected",
                "did you mean `.idea`?",
            ),
            (
                "protect = [\"../x\"]",
                "`workspace.protect` in `/c.toml` has `../x`, which is not a valid name",
                "write a name",
            ),
            (
                "hide = [\"/etc\"]",
                "`workspace.hide` in `/c.toml` has a bad value: ",
                "give a name",
            ),
            (
                "protec = []",
                "`workspace.protec` in `/c.toml` is not a known key",
                "did you mean `protect`?",
            ),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.message.starts_with(message), "{}", error.message);
            assert!(error.hint.starts_with(hint), "{}", error.hint);
        }
    }

    #[test]
    fn a_project_adds_and_takes_nothing_away() {
        let operator = || read("unprotect = [\".idea\", \".zed\"]").unwrap();
        let narrow = |text: &str| {
            let mut policy = operator();
            super::narrow(&mut policy, &table(text), Path::new("/p.toml")).map(|()| policy)
        };
        let policy = narrow("protect = [\".idea\", \"run.sh\"]\nhide = [\"*.x\"]").unwrap();
        assert_eq!(policy.protected.added, [".idea", "run.sh"]);
        assert_eq!(policy.protected.removed, [".zed"]);
        assert_eq!(policy.hide, ["*.x"]);
        for text in ["unprotect = [\".idea\"]", "hide = [\"none\"]"] {
            assert_eq!(narrow(text).expect_err(text).hint, NARROW_HINT, "{text}");
        }
    }
}
