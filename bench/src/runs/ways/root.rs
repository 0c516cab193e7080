//! What peers get to see: the host's `/usr`, read-only, and the links that lead there. The same as ours.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Beside `/usr`, what programs are found by. On most systems these are links into it.
const BESIDE_USR: [&str; 5] = ["bin", "sbin", "lib", "lib32", "lib64"];

/// The host's root as it is shown.
#[derive(Debug)]
pub(crate) struct Root {
    /// Name at the top and where it leads.
    pub(crate) links: Vec<(&'static str, PathBuf)>,
    /// Folders that are bound read-only, without the leading slash.
    pub(crate) folders: Vec<&'static str>,
}

impl Root {
    pub(crate) fn of_host() -> Root {
        let mut root = Root {
            links: Vec::new(),
            folders: vec!["usr"],
        };
        for name in BESIDE_USR {
            let path = Path::new("/").join(name);
            match fs::read_link(&path) {
                Ok(target) => root.links.push((name, target)),
                Err(_) if path.is_dir() => root.folders.push(name),
                Err(_) => {}
            }
        }
        root
    }

    /// Makes a root with these links and a place for everything that is mounted.
    pub(crate) fn make(&self, at: &Path) -> io::Result<()> {
        for folder in self
            .folders
            .iter()
            .chain(&["proc", "dev", "sys", "tmp", "etc", "run"])
        {
            fs::create_dir_all(at.join(folder))?;
        }
        for (name, target) in &self.links {
            symlink(target, at.join(name))?;
        }
        Ok(())
    }
}
