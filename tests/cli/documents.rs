//! What the documents show is done, and what they say comes out. How a document marks its blocks:
//!
//! ````text
//! ```sh                       run by bash; any part that fails fails the block
//! ```text  or  ```json        directly after it: what it prints; `…` stands for anything
//! <!-- given: COMMANDS -->    before a block: done first, not worth a reader's time
//! <!-- file: NAME -->         before a block: written to that file for the blocks that follow
//! <!-- server: OPTIONS -->    before a block that shows `airlock serve`: it is started on a free port with these options; $URL and $KEY say where and how
//! <!-- not run: REASON -->    before a block: not run
//! ````
//!
//! The blocks of a document share one folder and one state. `cargo run --release --` is the built command; other
//! lines of cargo and `./test` are what runs us, and left out.

use airlock_cli_tests::{World, built, repository, same};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use snapbox::str;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

#[derive(Debug, Default, PartialEq)]
struct Block {
    line: usize,
    language: String,
    text: String,
    /// The comment before it, as word and rest.
    mark: Option<(String, String)>,
    /// Whether nothing but empty lines stands between it and the block before.
    follows: bool,
}

fn blocks(document: &str) -> Vec<Block> {
    let (mut found, mut mark, mut open, mut follows) = (Vec::new(), None, None::<Block>, false);
    for (number, line) in document.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some("")) => {
                found.extend(open.take());
                follows = true;
            }
            (Some(block), _) => block.text += &format!("{line}\n"),
            (None, Some(language)) => {
                let language = language.to_owned();
                open = Some(Block {
                    line: number + 1,
                    language,
                    text: String::new(),
                    mark: mark.take(),
                    follows,
                });
            }
            (None, None) if line.trim().is_empty() => {}
            (None, None) => {
                let comment = line
                    .strip_prefix("<!-- ")
                    .and_then(|rest| rest.strip_suffix(" -->"));
                mark = comment
                    .and_then(|text| text.split_once(": "))
                    .map(|(word, rest)| (word.into(), rest.into()));
                follows = false;
            }
        }
    }
    assert_eq!(open, None, "a block does not end");
    found
}

/// The commands of a block as they are run.
fn script(text: &str) -> String {
    let ours = |line: &str| match line.strip_prefix("cargo run --release -- ") {
        Some(arguments) => format!("airlock {arguments}\n"),
        None if line.starts_with("cargo ") || line.starts_with("./test") => "\n".to_owned(),
        None => format!("{line}\n"),
    };
    text.lines().map(ours).collect()
}

/// A server that a document shows; it ends with the document.
struct Served {
    child: Child,
    told: Value,
}

impl Served {
    fn start(world: &World, options: &str) -> Served {
        let words: Vec<_> = options.split_whitespace().collect();
        let mut command = world.command(
            &[
                &["serve", "--json", "--quiet", "--listen", "127.0.0.1:0"],
                &words[..],
            ]
            .concat(),
        );
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("airlock starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("it is ours"))
            .read_line(&mut line)
            .expect("it says where it listens");
        Served {
            child,
            told: serde_json::from_str(&line).expect("it says so in JSON"),
        }
    }

    fn variables(&self) -> String {
        format!(
            "URL={} KEY={}; ",
            self.told["listen"], self.told["admin_key"]
        )
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // In order: it removes what it made.
        _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        _ = self.child.wait();
    }
}

/// Runs the blocks of a document in a folder of its own; returns how many.
fn follow(path: &Path) -> usize {
    follow_in(&World::new(), path)
}

/// Runs the blocks of a document in this world; returns how many.
fn follow_in(world: &World, path: &Path) -> usize {
    let text = fs::read_to_string(path).expect("a document can be read");
    let (blocks, mut count, mut server) = (blocks(&text), 0, None);
    for (number, block) in blocks.iter().enumerate() {
        let place = format!("{}:{}", path.display(), block.line);
        let given = match block
            .mark
            .as_ref()
            .map(|(word, rest)| (word.as_str(), rest))
        {
            Some(("not run", _)) => continue,
            Some(("file", name)) => {
                world.write(name, &block.text);
                continue;
            }
            Some(("server", options)) => {
                server = Some(Served::start(world, options));
                continue;
            }
            Some(("given", commands)) => commands,
            Some((word, _)) => panic!("{place}: what is `{word}`?"),
            None => "",
        };
        if block.language != "sh" {
            continue;
        }
        count += 1;
        // What is given may print, too; that is not what the block prints.
        let served = server.as_ref().map(Served::variables).unwrap_or_default();
        let output = world.shell(&format!(
            "{{ : ; {served}{given}\n}} >&2\n{}",
            script(&block.text)
        ));
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{place}: {}\n{told}",
            output.status
        );
        let shown = blocks
            .get(number + 1)
            .filter(|next| next.follows && ["text", "json"].contains(&&*next.language));
        if let Some(shown) = shown {
            println!("{place}");
            same(
                String::from_utf8_lossy(&output.stdout).into_owned(),
                shown.text.replace('…', "[..]"),
            );
        }
    }
    count
}

#[test]
fn the_readme_does_what_it_shows() {
    assert!(follow(&repository().join("README.md")) >= 4);
}

#[test]
fn the_documents_do_what_they_show() {
    let folder = fs::read_dir(repository().join("docs")).expect("there are documents");
    let documents: Vec<_> = folder
        .map(|entry| entry.expect("it is listed").path())
        .collect();
    let count: usize = documents
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .map(|path| follow(path))
        .sum();
    assert!(count >= 2, "{count} blocks in {documents:?}");
}

#[test]
fn the_examples_do_what_they_show() {
    let (world, folder) = (World::new(), repository().join("examples"));
    for entry in fs::read_dir(&folder).expect("there are examples") {
        let path = entry.expect("it is listed").path();
        let name = path.file_name().expect("a file has a name");
        fs::copy(&path, world.here("").join(name)).expect("an example is copied");
    }
    assert!(follow_in(&world, &folder.join("README.md")) >= 5);
}

/// The one that was built together with the command, else built anew, with the whole workspace: for its package alone, cargo would
/// compile most dependencies again.
fn embed() -> PathBuf {
    let command = std::env::var_os("AIRLOCK_BIN").map(PathBuf::from);
    let beside = command.map(|command| command.with_file_name("examples").join("embed"));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| built(&["--workspace", "--example", "embed"], "embed"))
}

#[test]
fn the_example_of_the_library_runs() {
    let world = World::new();
    let mut example = Command::new(embed());
    // Its state goes to the temporary folder.
    let output = example
        .env("TMPDIR", world.here(""))
        .output()
        .expect("the example starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    same(
        String::from_utf8_lossy(&output.stdout).into_owned(),
        str![[r#"
42
Succeeded behind [..] barriers in [..] ms

"#]],
    );
}

#[test]
fn blocks_are_found_with_their_marks() {
    let document = "a\n```sh\nx\n\ny\n```\n\n```text\nz\n```\n<!-- given: b; c -->\n```sh\n```\nw\n```json\n{}\n```\n";
    let block = |line, language: &str, text: &str, follows| Block {
        line,
        language: language.into(),
        text: text.into(),
        mark: None,
        follows,
    };
    let given = Some(("given".to_owned(), "b; c".to_owned()));
    let wanted = [
        block(2, "sh", "x\n\ny\n", false),
        block(8, "text", "z\n", true),
        Block {
            mark: given,
            ..block(12, "sh", "", false)
        },
        block(15, "json", "{}\n", false),
    ];
    assert_eq!(blocks(document), wanted);
    assert_eq!(
        script("cargo run --release -- run -- x\n./test full\ncargo fmt\nls\n"),
        "airlock run -- x\n\n\nls\n"
    );
}

#[test]
#[should_panic(expected = "exit status: 125")]
fn a_document_that_shows_what_does_not_work_is_noticed() {
    let world = World::new();
    world.write(
        "bad.md",
        "```sh\nairlock run --no-such-option -- true\n```\n",
    );
    follow(&world.here("bad.md"));
}

#[test]
#[should_panic(expected = "hello")]
fn a_document_that_shows_other_output_is_noticed() {
    let world = World::new();
    world.write("bad.md", "```sh\necho hello\n```\n```text\nhullo\n```\n");
    follow(&world.here("bad.md"));
}
