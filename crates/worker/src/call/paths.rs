//! Paths inside the sandbox. They are the same for every tool, so that no host path is visible.

/// Import path of Python tools.
pub const PYTHON: &str = "/tools/python";
/// Folder of an executable tool.
pub const TOOL_FOLDER: &str = "/tools/set";
/// Packages installed by the worker.
pub const PACKAGES: &str = "/tools/packages";
/// Packages that the operator maintains.
pub const SITE: &str = "/tools/site";
/// The runner, one Python file. Each sandbox has its own copy in its work folder, so that a tool
/// can only change its own.
pub const RUNNER: &str = "/workspace/.airlock/runner.py";
/// The work folder, with `input/`, `output/`, `status.pipe`, `ipc.sock`, `runner_args.json`,
/// `result.json`.
pub const WORK_FOLDER: &str = "/workspace";

/// Folder of the runner, in the work folder.
pub(crate) const RUNNER_FOLDER: &str = ".airlock";
/// The runner as source and as bytecode.
pub(crate) const RUNNER_SOURCE: &str = "runner.py";
pub(crate) const RUNNER_COMPILED: &str = "runner.pyc";
/// Names in the work folder.
pub(crate) const INPUT_FOLDER: &str = "input";
pub(crate) const OUTPUT_FOLDER: &str = "output";
pub(crate) const STATUS_FIFO: &str = "status.pipe";
pub(crate) const ARGUMENTS_FILE: &str = "runner_args.json";
pub(crate) const RESULT_FILE: &str = "result.json";

/// Absolute path inside of a name in the work folder.
pub(crate) fn in_sandbox(name: &str) -> String {
    format!("{WORK_FOLDER}/{name}")
}
