//! Starts the programs that are built beside `airlock` and are not linked into it: `airlock-escape`, the escape suite,
//! and `airlock-bench`, the benchmarks.

use super::message::Failure;
use serde::Serialize;
use spec::ErrorCode;
use std::{os::unix::process::CommandExt, path::PathBuf, process::Command};

/// The executable of this process.
pub(super) fn own_path() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::internal(format!("cannot find this program's own file: {error}")))
}

/// The same as text, for an order as JSON.
pub(super) fn own_path_text() -> Result<String, Failure> {
    own_path()?.into_os_string().into_string().map_err(|path| {
        let path = path.to_string_lossy().into_owned();
        Failure::invalid(
            format!(
                "the path of this program, `{}`, is not UTF-8",
                path.escape_debug()
            ),
            "move `airlock` and the programs beside it to a folder whose path is UTF-8",
        )
    })
}

/// Replaces this process by the program `name` in the folder of this executable, never by one from `PATH`. Its arguments are
/// `subcommand`, if any, and the order as JSON. Returns only if that fails.
pub(super) fn exec(name: &str, subcommand: Option<&str>, order: &impl Serialize) -> Failure {
    let program = match own_path() {
        Ok(own) => own.with_file_name(name),
        Err(failure) => return failure,
    };
    if !program.is_file() {
        return missing(name, program);
    }
    let order = match serde_json::to_string(order) {
        Ok(order) => order,
        Err(error) => {
            return Failure::internal(format!("cannot pass the options to `{name}`: {error}"));
        }
    };
    let error = Command::new(&program).args(subcommand).arg(order).exec();
    Failure::internal(format!("cannot start `{}`: {error}", program.display()))
}

fn missing(name: &str, program: PathBuf) -> Failure {
    Failure {
        code: ErrorCode::Internal,
        message: format!(
            "`{}` is missing: this command is a program of its own",
            program.display()
        ),
        hint: format!(
            "in the source tree, `cargo build --release -p airlock -p {name}` builds both into target/release"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_beside_this_one_is_named_with_the_command_that_builds_it() {
        // A program of this name is on every `PATH`.
        let failure = exec("sh", None, &());
        let beside = std::env::current_exe().unwrap().with_file_name("sh");
        assert!(
            failure.message.contains(beside.to_str().unwrap()),
            "{failure:?}"
        );
        assert!(failure.hint.contains("-p sh`"), "{failure:?}");
    }

    #[test]
    fn a_program_beside_this_one_is_started() {
        let beside = std::env::current_exe().unwrap();
        let folder = beside.parent().unwrap();
        let name = format!("separate-program-{}", std::process::id());
        // It is found; the kernel refuses what may not be executed.
        std::fs::write(folder.join(&name), "no program").unwrap();
        let failure = exec(&name, None, &());
        std::fs::remove_file(folder.join(&name)).unwrap();
        assert!(failure.message.starts_with("cannot start `"), "{failure:?}");
    }
}
