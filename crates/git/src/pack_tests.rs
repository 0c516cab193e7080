use super::*;
use crate::import;
use flate2::{Compression, write::ZlibEncoder};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

fn git(folder: &Path, words: &[&str], input: &[u8]) -> Vec<u8> {
    let mut git = Command::new("git");
    git.args([
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "init.defaultBranch=main",
    ])
    .args(words)
    .current_dir(folder)
    .env("GIT_CONFIG_NOSYSTEM", "1")
    .env("GIT_CONFIG_GLOBAL", "/dev/null")
    .stdin(Stdio::piped())
    .stdout(Stdio::piped());
    let mut child = git.spawn().expect("git starts");
    child.stdin.take().unwrap().write_all(input).unwrap();
    let told = child.wait_with_output().unwrap();
    assert!(told.status.success(), "git {words:?}");
    told.stdout
}

fn repository(name: &str, format: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("airlock-pack-{name}-{}", std::process::id()));
    _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("below/deep")).unwrap();
    git(
        &folder,
        &["init", "-q", "--object-format", format, "."],
        b"",
    );
    for round in 0..5 {
        fs::write(folder.join("a"), "line\n".repeat(10_000 * round)).unwrap();
        fs::write(folder.join("below/deep/b"), format!("{round}")).unwrap();
        git(&folder, &["add", "."], b"");
        git(&folder, &["commit", "-q", "-m", "x"], b"");
    }
    git(&folder, &["tag", "-a", "-m", "t", "t"], b"");
    folder
}

const WHOLE: [&str; 7] = [
    "pack-objects",
    "--revs",
    "--stdout",
    "-q",
    "--window=0",
    "--depth=0",
    "--no-reuse-delta",
];

#[test]
fn the_index_is_the_one_that_git_writes() {
    for (name, format) in [
        ("sha1", ObjectFormat::Sha1),
        ("sha256", ObjectFormat::Sha256),
    ] {
        let folder = repository(name, name);
        let bytes = git(&folder, &WHOLE, b"HEAD\nt\n");
        let pack = Pack::check(&bytes, format, &PackLimits::DEFAULT).unwrap();
        fs::write(folder.join("p.pack"), &bytes).unwrap();
        git(&folder, &["index-pack", "-o", "p.idx", "p.pack"], b"");
        assert_eq!(
            pack.index(),
            fs::read(folder.join("p.idx")).unwrap(),
            "{name}"
        );
        let id = String::from_utf8(git(&folder, &["rev-parse", "t"], b"")).unwrap();
        let tree = pack
            .tree_of(&ObjectId::parse(id.trim(), format).unwrap())
            .unwrap();
        assert_eq!(pack.paths(&tree, import::MAX_PATH_DEPTH).unwrap(), 2);
        fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn a_pack_of_deltas_is_refused() {
    let folder = repository("delta", "sha1");
    fs::write(folder.join("noise"), noise(200_000)).unwrap();
    git(&folder, &["add", "."], b"");
    git(&folder, &["commit", "-q", "-m", "one"], b"");
    let mut changed = noise(200_000);
    changed.extend(b"more");
    fs::write(folder.join("noise"), changed).unwrap();
    git(&folder, &["commit", "-q", "-a", "-m", "two"], b"");
    let bytes = git(
        &folder,
        &["pack-objects", "--revs", "--stdout", "-q"],
        b"HEAD\nt\n",
    );
    refuses(&bytes, "delta");
    fs::remove_dir_all(folder).unwrap();
}

fn noise(count: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// A pack of these objects: kind, the size that it says, and the bytes.
fn made(objects: &[(u8, u64, &[u8])]) -> Vec<u8> {
    let mut pack = b"PACK\0\0\0\x02".to_vec();
    pack.extend((objects.len() as u32).to_be_bytes());
    for (kind, size, bytes) in objects {
        let mut size = *size;
        let mut byte = kind << 4 | (size & 15) as u8;
        size >>= 4;
        while size > 0 {
            pack.push(byte | 0x80);
            byte = (size & 0x7f) as u8;
            size >>= 7;
        }
        pack.push(byte);
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(bytes).unwrap();
        pack.extend(zlib.finish().unwrap());
    }
    sealed(pack)
}

fn sealed(mut pack: Vec<u8>) -> Vec<u8> {
    let sum = hash(ObjectFormat::Sha1, &pack);
    pack.extend(sum.as_bytes());
    pack
}

fn refuses(bytes: &[u8], why: &str) {
    let told = Pack::check(bytes, ObjectFormat::Sha1, &PackLimits::DEFAULT).unwrap_err();
    assert!(told.to_string().contains(why), "{told}");
}

#[test]
fn lies_are_refused() {
    let whole = made(&[(3, 5, b"hello")]);
    Pack::check(&whole, ObjectFormat::Sha1, &PackLimits::DEFAULT).unwrap();
    refuses(&made(&[(3, 4, b"hello")]), "larger than it says");
    refuses(&made(&[(3, 6, b"hello")]), "smaller than it says");
    refuses(&made(&[(3, 5, b"hello"), (3, 5, b"hello")]), "twice");
    refuses(&made(&[(5, 5, b"hello")]), "no known kind");
    refuses(&made(&[(6, 5, b"hello")]), "delta");
    refuses(&made(&[(7, 5, b"hello")]), "delta");
    refuses(&made(&[(3, 600 << 20, b"")]), "too large");
    refuses(&made(&[(1, 2 << 20, b"")]), "too large");
    let body = |bytes: &[u8]| bytes[..bytes.len() - 20].to_vec();
    refuses(&sealed([body(&whole), b"x".to_vec()].concat()), "follows");
    refuses(
        &sealed(body(&whole)[..whole.len() - 24].to_vec()),
        "too soon",
    );
    let mut wrong = whole.clone();
    *wrong.last_mut().unwrap() ^= 1;
    refuses(&wrong, "checksum");
    let mut many = whole;
    many[8] = 0xff;
    refuses(&many, "objects");
    refuses(b"PACK", "too short");
}

#[test]
fn a_bomb_of_zeros_is_refused_before_it_is_inflated() {
    let zeros = vec![0; 1 << 20];
    // Says little, is much.
    refuses(&made(&[(3, 10, &zeros)]), "larger than it says");
    let bounds = PackLimits {
        total: 1 << 19,
        ..PackLimits::DEFAULT
    };
    let told = Pack::check(&made(&[(3, 1 << 20, &zeros)]), ObjectFormat::Sha1, &bounds);
    assert!(told.unwrap_err().to_string().contains("too large"));
}

#[test]
fn the_paths_of_a_tree_bomb_are_counted_without_walking_them() {
    let blob = hash(ObjectFormat::Sha1, b"blob 0\0");
    let mut below = blob.as_bytes().to_vec();
    let (mut mode, mut trees) = ("100644", Vec::new());
    for _ in 0..12 {
        let tree: Vec<u8> = (0..10)
            .flat_map(|name| [format!("{mode} {name}\0").into_bytes(), below.clone()].concat())
            .collect();
        let whole = [format!("tree {}\0", tree.len()).into_bytes(), tree.clone()].concat();
        below = hash(ObjectFormat::Sha1, &whole).as_bytes().to_vec();
        trees.push(tree);
        mode = "40000";
    }
    let objects: Vec<_> = trees
        .iter()
        .map(|tree| (2u8, tree.len() as u64, tree.as_slice()))
        .collect();
    let pack = Pack::check(&made(&objects), ObjectFormat::Sha1, &PackLimits::DEFAULT).unwrap();
    let top = ObjectId::of_bytes(&below);
    assert_eq!(
        pack.paths(&top, import::MAX_PATH_DEPTH).unwrap(),
        1_000_000_000_000
    );
    assert!(pack.paths(&top, 5).is_err(), "nested deeper than that");
}
