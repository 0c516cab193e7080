use super::*;
use crate::artifacts::openat;
use std::os::unix::fs::{PermissionsExt, symlink};

/// A folder of a test's own, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("airlock-place-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(fs::canonicalize(path).unwrap())
    }

    fn put(&self, name: &str, mode: u32) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    }

    fn find(&self, tool_dir: &str, program: &str) -> Result<(PathBuf, PathBuf), ToolProblem> {
        executable(&self.0.join("tools"), tool_dir.as_ref(), program.as_ref())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn programs_are_found_where_the_mesh_looks_for_them() {
    let folder = Folder::new("found");
    folder.put("tools/weather/python/bin/weather", 0o755);
    folder.put("tools/plain", 0o755);
    let real = folder.0.join("tools");
    assert_eq!(
        folder.find("weather", "python/bin/weather"),
        Ok((real.join("weather"), "python/bin/weather".into()))
    );
    assert_eq!(
        folder.find("weather", "weather"),
        Ok((real.join("weather"), "python/bin/weather".into()))
    );
    assert_eq!(folder.find("", "plain"), Ok((real.clone(), "plain".into())));
    // A link that stays is followed; the folder is known by its real path.
    symlink("weather", real.join("linked")).unwrap();
    assert_eq!(
        folder.find("linked", "weather").unwrap().0,
        real.join("weather")
    );
}

#[test]
fn what_is_not_there_leads_out_or_cannot_be_run_is_told_apart() {
    let folder = Folder::new("out");
    folder.put("outside/program", 0o755);
    folder.put("tools/text", 0o644);
    folder.put("tools/set/x", 0o644);
    let tools = folder.0.join("tools");
    symlink("../outside", tools.join("up")).unwrap();
    symlink(folder.0.join("outside/program"), tools.join("away")).unwrap();
    symlink("../../outside/program", tools.join("set/away")).unwrap();
    symlink("../text", tools.join("set/other")).unwrap();
    for (tool_dir, program, says) in [
        ("", "missing", "is not there"),
        ("missing", "x", "is not there"),
        ("up", "program", "leads out"),
        ("", "away", "leads out"),
        ("set", "away", "leads out"),
        ("set", "other", "leads out"),
        ("", "text", "may not be run"),
        ("", "set", "is no file"),
    ] {
        let told = folder.find(tool_dir, program).unwrap_err().to_string();
        assert!(
            told.contains(says) && !told.contains(&*folder.0.to_string_lossy()),
            "{tool_dir} {program}: {told}"
        );
    }
}

#[test]
fn modules_are_found_as_python_finds_them() {
    let folder = Folder::new("modules");
    for name in [
        "a.py",
        "p/__init__.py",
        "p/q.py",
        "n/s/m.py",
        "c.cpython-311-x86_64-linux-gnu.so",
    ] {
        folder.put(name, 0o644);
    }
    for module in ["a", "p", "p.q", "n.s.m", "n.s", "c"] {
        assert!(has_module(&[&folder.0], module), "{module}");
    }
    for module in ["b", "a.x", "p.r", "n.m", "cpython"] {
        assert!(!has_module(&[&folder.0], module), "{module}");
    }
    assert!(!has_module(&[], "a"));
}

#[test]
fn other_code_has_another_stamp_whatever_its_time_says() {
    let folder = Folder::new("stamp");
    folder.put("deep/er/m.py", 0o644);
    folder.put("__pycache__/m.pyc", 0o644);
    let look = |depth| stamp(&folder.0, depth).0;
    let (whole, names) = (look(StampDepth::Whole), look(StampDepth::Names));
    assert_eq!(look(StampDepth::Whole), whole);
    folder.put("__pycache__/n.pyc", 0o644);
    assert_eq!(look(StampDepth::Whole), whole, "Python's own");
    let path = folder.0.join("deep/er/m.py");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, "y").unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(time)
        .unwrap();
    assert_ne!(
        look(StampDepth::Whole),
        whole,
        "as large and as old as before"
    );
    assert_eq!(look(StampDepth::Names), names);
    folder.put("other-1.0.dist-info/RECORD", 0o644);
    assert_ne!(look(StampDepth::Names), names);
}

#[test]
fn packages_of_a_folder_are_other_code_once_it_is_touched() {
    let folder = Folder::new("touched");
    folder.put("deep/er/m.py", 0o644);
    let look = || stamp(&folder.0, StampDepth::Names).0;
    let before = look();
    assert_eq!(look(), before, "the control");
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    fs::File::open(&folder.0)
        .unwrap()
        .set_modified(long_ago)
        .unwrap();
    assert_ne!(look(), before);
}

#[test]
fn what_tool_sync_keeps_for_itself_is_no_code() {
    let folder = Folder::new("sync");
    folder.put("program", 0o755);
    let look = || stamp(&folder.0, StampDepth::Whole).0;
    let before = look();
    let base = openat::open_base(&folder.0).unwrap();
    let own = openat::ensure_private_folder(&base, ".airlock-sync").unwrap();
    openat::create_file(&own, "draft").unwrap();
    assert_eq!(look(), before);
    folder.put("airlock-sync/draft", 0o600);
    assert_ne!(look(), before, "the control");
}
