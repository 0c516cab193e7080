//! Where things are inside: the same for every tool, so that nothing of the host's paths is told.

/// What a tool's functions are imported from.
pub const PYTHON: &str = "/tools/python";
/// The folder of an executable.
pub const FOLDER: &str = "/tools/set";
/// Installed packages.
pub const PACKAGES: &str = "/tools/packages";
/// Our runner, one Python file.
pub const RUNNER: &str = "/tools/airlock/runner.py";
/// The work folder, with `input/`, `output/`, `status.pipe`, `ipc.sock`, `runner_args.json`, `result.json`.
pub const WORK: &str = "/workspace";
