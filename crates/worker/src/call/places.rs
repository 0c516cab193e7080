//! Where things are inside: the same for every tool, so that nothing of the host's paths is told.

/// What a tool's functions are imported from.
pub const PYTHON: &str = "/tools/python";
/// The folder of an executable.
pub const FOLDER: &str = "/tools/set";
/// Installed packages.
pub const PACKAGES: &str = "/tools/packages";
/// Packages that whoever runs the worker keeps.
pub const SITE: &str = "/tools/site";
/// Our runner, one Python file. Each box has a copy of its own, in its work folder: what a tool does to it nobody else runs.
pub const RUNNER: &str = "/workspace/.airlock/runner.py";
/// The work folder, with `input/`, `output/`, `status.pipe`, `ipc.sock`, `runner_args.json`, `result.json`.
pub const WORK: &str = "/workspace";

/// The folder of our runner, in the work folder.
pub(crate) const OWN: &str = ".airlock";
/// The runner there as it was written, and as the interpreter compiled it.
pub(crate) const SOURCE: &str = "runner.py";
pub(crate) const COMPILED: &str = "runner.pyc";
/// The names in the work folder.
pub(crate) const INPUT: &str = "input";
pub(crate) const OUTPUT: &str = "output";
pub(crate) const STATUS: &str = "status.pipe";
pub(crate) const ARGUMENTS: &str = "runner_args.json";
pub(crate) const RESULT: &str = "result.json";

/// A name in the work folder, as it is inside.
pub(crate) fn inside(name: &str) -> String {
    format!("{WORK}/{name}")
}
