//! Explains why an existing script could not be started: the interpreter in its shebang line does
//! not exist inside. The kernel reports ENOENT as if the script were missing. Scripts of virtual
//! environments are the usual case: they contain the path that the folder has outside.

use ::fs::{Dir, Lookup};
use rustix::fs::{Mode, OFlags};
use spec::{ErrorInfo, WORKSPACE};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::{
        fd::BorrowedFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::Path,
};

/// The bytes of a shebang line that the kernel reads.
const MAX_LINE_BYTES: u64 = 256;

/// A better message than "not found", if the command is a script in the workspace.
pub(crate) fn explain(
    workspace: BorrowedFd<'_>,
    directory: &Path,
    command: &OsStr,
) -> Option<(String, String)> {
    if !command.as_bytes().contains(&b'/') {
        return None;
    }
    let path = directory.join(command);
    let below = path.strip_prefix(WORKSPACE).ok()?;
    let interpreter = first_line(workspace, below)
        .ok()
        .and_then(|line| interpreter(&line))?;
    let message = format!(
        "`{}` is there, but its interpreter `{}` (from its first line) is not inside",
        command.to_string_lossy().escape_debug(),
        interpreter.to_string_lossy().escape_debug()
    );
    let hint = "your folder is at /workspace inside, so that its path outside leads nowhere: start the interpreter by name, with the script as its argument, or make the script from inside";
    Some((message, hint.to_owned()))
}

/// Replaces message and hint of an error.
pub(crate) fn replace_message(info: &mut ErrorInfo, better: Option<(String, String)>) {
    if let Some((message, hint)) = better {
        info.message = message;
        info.hint = Some(hint);
    }
}

/// The program owns the workspace: no symbolic link may lead out of it, and a FIFO must not block.
fn first_line(workspace: BorrowedFd<'_>, below: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let folder = Dir::from_fd(workspace);
    let file = folder.open_at(below, flags, Mode::empty(), Lookup::LinksInRoot)?;
    let file = File::from(file);
    let mut line = Vec::new();
    if file.metadata()?.is_file() {
        file.take(MAX_LINE_BYTES).read_to_end(&mut line)?;
    }
    Ok(line)
}

fn interpreter(text: &[u8]) -> Option<OsString> {
    let line = text.strip_prefix(b"#!")?.trim_ascii_start();
    let end = line.iter().position(|byte| b" \t\r\n\0".contains(byte))?;
    (end > 0).then(|| OsString::from_vec(line[..end].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_is_the_first_word_of_the_first_line() {
        let named = |text: &[u8]| interpreter(text).map(|it| it.to_string_lossy().into_owned());
        assert_eq!(named(b"#!/a/python3\nx").as_deref(), Some("/a/python3"));
        assert_eq!(named(b"#! \t/bin/env -S x\n").as_deref(), Some("/bin/env"));
        for text in [&b"\x7fELF"[..], b"#!\n", b"#!/no/end", b"", b"echo #!/x\n"] {
            assert_eq!(named(text), None);
        }
    }
}
