//! The folder of tools: a manifest and what it names.

use crate::place::Folder;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// The functions of `toolbox.py`, each a tool of its name.
pub const USUAL: [&str; 51] = [
    "echo",
    "nothing",
    "number",
    "words",
    "a_list",
    "own_error",
    "unicode_text",
    "not_json",
    "not_a_number",
    "later",
    "large",
    "configured",
    "typed",
    "legacy",
    "legacy_files",
    "any_context",
    "facade",
    "facade_files",
    "statuses",
    "said_then_waits",
    "marked",
    "sleeps",
    "raises",
    "leaves",
    "exits",
    "killed",
    "wants_two",
    "told_to_end",
    "deaf",
    "talks",
    "reads",
    "reads_all",
    "reads_maybe",
    "reads_two",
    "tells_and_reads",
    "writes",
    "writes_bytes",
    "writes_strange",
    "result_elsewhere",
    "environment",
    "who",
    "limits",
    "tries_to_write",
    "tries_to_read",
    "connects",
    "takes_memory",
    "forks",
    "uses_wheel",
    "absent_module",
    "absent_function",
    "imports_nothing",
];

/// A folder of tools.
#[derive(Debug)]
pub struct Tools(PathBuf);

impl Tools {
    /// With a module of small tools, and a manifest of them.
    pub fn usual(folder: &Folder) -> Tools {
        let tools = Tools(folder.at("tools"));
        fs::create_dir_all(tools.0.join("python")).expect("a folder for tools");
        tools.write("python/toolbox.py", include_str!("tools/toolbox.py"));
        tools.write("python/classes.py", include_str!("tools/classes.py"));
        tools.write(
            "python/broken.py",
            "import nothing_that_exists\n\n\ndef imports_nothing():\n    return {}\n",
        );
        tools.manifest(&Tools::usual_entries());
        tools
    }

    /// The entries of the usual manifest.
    pub fn usual_entries() -> String {
        let entry = |name: &&str| match *name {
            "absent_module" => {
                format!("  absent_module: {{module: no_such_module, function: anything, {SAID}}}\n")
            }
            "absent_function" => {
                format!(
                    "  absent_function: {{module: toolbox, function: no_such_function, {SAID}}}\n"
                )
            }
            "imports_nothing" => {
                format!(
                    "  imports_nothing: {{module: broken, function: imports_nothing, {SAID}}}\n"
                )
            }
            // What agents are told of it must be made simpler for them.
            "echo" => format!("  echo:\n    module: toolbox\n    function: echo\n{ECHO}"),
            // Whoever says what a tool is need not be asked for it, and these are many.
            name => format!("  {name}: {{module: toolbox, function: {name}, {SAID}}}\n"),
        };
        let mut all: String = USUAL.iter().map(entry).collect();
        all.push_str("  greeter: {module: classes, class_name: Greeter}\n");
        all
    }

    /// Writes a file.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("its folder");
        fs::write(path, text).expect("a tool");
    }

    /// Writes a program.
    pub fn program(&self, name: &str, text: &str) {
        self.write(name, text);
        let rights = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.0.join(name), rights).expect("it can be started");
    }

    /// Puts a manifest with these entries in the place of the one before, at once.
    pub fn manifest(&self, entries: &str) {
        self.write("manifest.new", &format!("version: 1\ntools:\n{entries}"));
        fs::rename(self.0.join("manifest.new"), self.0.join("manifest.yaml")).expect("a manifest");
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

const SAID: &str = "description: One of many, parameters: {type: object}";

const ECHO: &str = r##"    description: Says it again.
    instructions: Use it to test.
    parameters:
      $schema: https://json-schema.org/draft/2020-12/schema
      type: object
      additionalProperties: false
      properties:
        text: {type: [string, "null"], examples: [hello], description: What to say}
        tone: {const: plain}
        times: {type: integer, exclusiveMinimum: 0, multipleOf: 1, enum: [1, 2, 3]}
        names: {type: array, uniqueItems: true, items: {$ref: "#/$defs/name"}}
        either: {oneOf: [{type: string}, {type: integer}]}
      required: [text]
      $defs: {name: {type: string, minLength: 1}}
    artifact_params:
      picture: {is_list: false, is_optional: true}
    config_schema:
      - {key: api_key, type: string, required: false, secret: true}
"##;
