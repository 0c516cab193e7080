//! Checks a pack of whole objects byte by byte and writes its index. The index of the program is
//! not used: it could give the name of an object on the host to other bytes.
//!
//! Deltas are refused. A few kilobytes of them can expand to gigabytes, and the sandboxed git is
//! told to write none.

use crate::{GitError, ObjectFormat, ObjectId};
use flate2::{Crc, Decompress, FlushDecompress, Status};
use sha1::Digest as _;
use std::collections::HashMap;

/// Limits of a pack.
#[derive(Clone, Copy, Debug)]
pub struct PackLimits {
    /// Objects.
    pub objects: u32,
    /// Bytes of all objects, inflated.
    pub total: u64,
    /// Bytes of a file.
    pub blob: u64,
    /// Bytes of a folder.
    pub tree: u64,
    /// Bytes of a commit or a tag.
    pub commit: u64,
    /// Bytes of all folders, commits and tags, which are kept in memory.
    pub trees: u64,
}

impl PackLimits {
    /// Enough for a day's work, little enough for a desktop's memory.
    pub const DEFAULT: PackLimits = PackLimits {
        objects: 1_000_000,
        total: 1 << 30,
        blob: 512 << 20,
        tree: 16 << 20,
        commit: 1 << 20,
        trees: 128 << 20,
    };
}

/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A commit.
    Commit,
    /// A folder.
    Tree,
    /// A file.
    Blob,
    /// An annotated tag.
    Tag,
}

impl ObjectKind {
    const fn name(self) -> &'static str {
        match self {
            ObjectKind::Commit => "commit",
            ObjectKind::Tree => "tree",
            ObjectKind::Blob => "blob",
            ObjectKind::Tag => "tag",
        }
    }

    const fn limit(self, bounds: &PackLimits) -> u64 {
        match self {
            ObjectKind::Commit | ObjectKind::Tag => bounds.commit,
            ObjectKind::Tree => bounds.tree,
            ObjectKind::Blob => bounds.blob,
        }
    }
}

/// One object of a checked pack.
#[derive(Debug)]
struct Object {
    kind: ObjectKind,
    offset: u64,
    crc: u32,
    /// The content of a folder, a commit or a tag; empty for a file.
    content: Vec<u8>,
}

/// One entry of a folder.
#[derive(Clone, Copy, Debug)]
pub struct TreeEntry<'a> {
    /// Its mode in octal, as git writes it.
    pub mode: &'a [u8],
    /// One part of a path.
    pub name: &'a [u8],
    /// The object.
    pub id: &'a [u8],
}

impl TreeEntry<'_> {
    /// Whether it is a folder.
    pub fn is_tree(&self) -> bool {
        self.mode == b"40000"
    }
}

/// A checked pack.
#[derive(Debug)]
pub struct Pack {
    format: ObjectFormat,
    objects: HashMap<ObjectId, Object>,
    checksum: ObjectId,
}

enum Hasher {
    Sha1(Box<sha1::Sha1>),
    Sha256(Box<sha2::Sha256>),
}

impl Hasher {
    fn new(format: ObjectFormat) -> Hasher {
        match format {
            ObjectFormat::Sha1 => Hasher::Sha1(Box::default()),
            ObjectFormat::Sha256 => Hasher::Sha256(Box::default()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha1(hasher) => hasher.update(bytes),
            Hasher::Sha256(hasher) => sha2::Digest::update(&mut **hasher, bytes),
        }
    }

    fn finish(self) -> ObjectId {
        match self {
            Hasher::Sha1(hasher) => ObjectId::of_bytes(&hasher.finalize()),
            Hasher::Sha256(hasher) => ObjectId::of_bytes(&sha2::Digest::finalize(*hasher)),
        }
    }
}

pub(crate) fn hash(format: ObjectFormat, bytes: &[u8]) -> ObjectId {
    let mut hasher = Hasher::new(format);
    hasher.update(bytes);
    hasher.finish()
}

fn refused(why: impl Into<String>) -> GitError {
    GitError::Refused(format!("the pack is refused: {}", why.into()))
}

impl Pack {
    /// Checks all objects and the checksum. Nothing may follow the objects.
    pub fn check(
        bytes: &[u8],
        format: ObjectFormat,
        bounds: &PackLimits,
    ) -> Result<Pack, GitError> {
        let end = bytes
            .len()
            .checked_sub(format.id_bytes())
            .filter(|end| *end >= 12)
            .ok_or_else(|| refused("it is too short"))?;
        let (body, trailer) = bytes.split_at(end);
        let number =
            |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        if &body[..4] != b"PACK" || number(4) != 2 {
            return Err(refused("it is not of version 2"));
        }
        let count = number(8);
        if count > bounds.objects {
            return Err(refused(format!("it has {count} objects")));
        }
        let checksum = hash(format, body);
        if checksum.as_bytes() != trailer {
            return Err(refused("its checksum is wrong"));
        }
        let mut reader = Reader {
            body,
            at: 12,
            format,
            bounds,
            total: 0,
            trees: 0,
        };
        let mut objects = HashMap::new();
        for _ in 0..count {
            let (id, object) = reader.object()?;
            if objects.insert(id, object).is_some() {
                return Err(refused("an object is in it twice"));
            }
        }
        if reader.at != body.len() {
            return Err(refused("something follows its objects"));
        }
        Ok(Pack {
            format,
            objects,
            checksum,
        })
    }

    /// How many objects it has.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The name of its files, without their ending.
    pub fn name(&self) -> String {
        format!("pack-{}", self.checksum)
    }

    /// The kind of an object that is in it.
    pub fn kind(&self, id: &ObjectId) -> Option<ObjectKind> {
        self.objects.get(id).map(|object| object.kind)
    }

    /// The index, version 2, as `git index-pack` writes it.
    pub fn index(&self) -> Vec<u8> {
        let mut sorted: Vec<_> = self.objects.iter().collect();
        sorted.sort_by(|one, other| one.0.cmp(other.0));
        let mut index = Vec::with_capacity(1100 + sorted.len() * (self.format.id_bytes() + 8));
        index.extend(b"\xfftOc\0\0\0\x02");
        let mut counts = [0u32; 256];
        sorted
            .iter()
            .for_each(|(id, _)| counts[usize::from(id.as_bytes()[0])] += 1);
        let mut sum = 0;
        for count in counts {
            sum += count;
            index.extend(sum.to_be_bytes());
        }
        sorted
            .iter()
            .for_each(|(id, _)| index.extend(id.as_bytes()));
        sorted
            .iter()
            .for_each(|(_, object)| index.extend(object.crc.to_be_bytes()));
        // A pack in memory is too short to need the table of long offsets.
        sorted
            .iter()
            .for_each(|(_, object)| index.extend((object.offset as u32).to_be_bytes()));
        index.extend(self.checksum.as_bytes());
        let own = hash(self.format, &index);
        index.extend(own.as_bytes());
        index
    }

    /// The folder of a commit, or of the commit that a tag leads to, if it is in the pack.
    pub fn tree_of(&self, id: &ObjectId) -> Option<ObjectId> {
        let mut id = id.clone();
        for _ in 0..8 {
            let object = self.objects.get(&id)?;
            let line = object.content.split(|byte| *byte == b'\n').next()?;
            let text = std::str::from_utf8(line).ok()?;
            match object.kind {
                ObjectKind::Commit => {
                    return ObjectId::parse(text.strip_prefix("tree ")?, self.format);
                }
                ObjectKind::Tag => {
                    id = ObjectId::parse(text.strip_prefix("object ")?, self.format)?
                }
                ObjectKind::Tree => return Some(id),
                ObjectKind::Blob => return None,
            }
        }
        None
    }

    /// The entries of a folder that is in the pack.
    pub fn tree(&self, id: &ObjectId) -> Option<Vec<TreeEntry<'_>>> {
        let object = self
            .objects
            .get(id)
            .filter(|object| object.kind == ObjectKind::Tree)?;
        let (mut rest, mut entries) = (object.content.as_slice(), Vec::new());
        while !rest.is_empty() {
            let space = rest.iter().position(|byte| *byte == b' ')?;
            let (mode, after) = (&rest[..space], &rest[space + 1..]);
            let nul = after.iter().position(|byte| *byte == 0)?;
            let (name, after) = (&after[..nul], &after[nul + 1..]);
            let (id, after) = after.split_at_checked(self.format.id_bytes())?;
            entries.push(TreeEntry { mode, name, id });
            rest = after;
        }
        Some(entries)
    }

    /// The number of paths below a folder, as far as the pack has them. Few folders can contain
    /// each other so often that checking them out would fill any disk.
    pub fn paths(&self, tree: &ObjectId, deepest: usize) -> Result<u64, GitError> {
        self.count_paths(tree, deepest, &mut HashMap::new())
    }

    fn count_paths(
        &self,
        tree: &ObjectId,
        deepest: usize,
        known: &mut HashMap<ObjectId, u64>,
    ) -> Result<u64, GitError> {
        if let Some(count) = known.get(tree) {
            return Ok(*count);
        }
        if !self.objects.contains_key(tree) {
            return Ok(1);
        }
        let below = deepest
            .checked_sub(1)
            .ok_or_else(|| refused("its folders are nested too deep"))?;
        let entries = self
            .tree(tree)
            .ok_or_else(|| refused("a folder in it cannot be read"))?;
        let mut count = 0u64;
        for entry in entries {
            let more = if entry.is_tree() {
                self.count_paths(&ObjectId::of_bytes(entry.id), below, known)?
            } else {
                1
            };
            count = count.saturating_add(more);
        }
        known.insert(tree.clone(), count);
        Ok(count)
    }
}

struct Reader<'a> {
    body: &'a [u8],
    at: usize,
    format: ObjectFormat,
    bounds: &'a PackLimits,
    total: u64,
    trees: u64,
}

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8, GitError> {
        let byte = *self
            .body
            .get(self.at)
            .ok_or_else(|| refused("it ends too soon"))?;
        self.at += 1;
        Ok(byte)
    }

    /// The type and the declared size of an object.
    fn header(&mut self) -> Result<(ObjectKind, u64), GitError> {
        let first = self.byte()?;
        let kind = match first >> 4 & 7 {
            1 => ObjectKind::Commit,
            2 => ObjectKind::Tree,
            3 => ObjectKind::Blob,
            4 => ObjectKind::Tag,
            6 | 7 => return Err(refused("it has a delta")),
            _ => return Err(refused("it has an object of no known kind")),
        };
        let (mut size, mut shift, mut more) = (u64::from(first & 15), 4, first & 0x80 != 0);
        while more {
            let byte = self.byte()?;
            if shift > 46 {
                return Err(refused("an object in it is too large"));
            }
            size |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            more = byte & 0x80 != 0;
        }
        Ok((kind, size))
    }

    fn object(&mut self) -> Result<(ObjectId, Object), GitError> {
        let begin = self.at;
        let (kind, size) = self.header()?;
        self.total = self.total.saturating_add(size);
        if size > kind.limit(self.bounds) || self.total > self.bounds.total {
            return Err(refused(format!("a {} in it is too large", kind.name())));
        }
        let kept = kind != ObjectKind::Blob;
        if kept {
            self.trees += size;
            if self.trees > self.bounds.trees {
                return Err(refused("its commits and folders are too large"));
            }
        }
        let mut hasher = Hasher::new(self.format);
        hasher.update(format!("{} {size}\0", kind.name()).as_bytes());
        let content = self.inflate(size, kept, &mut hasher)?;
        let mut crc = Crc::new();
        crc.update(&self.body[begin..self.at]);
        let object = Object {
            kind,
            offset: begin as u64,
            crc: crc.sum(),
            content,
        };
        Ok((hasher.finish(), object))
    }

    /// Inflates an object, whose size must be exactly `size`.
    fn inflate(&mut self, size: u64, keep: bool, hasher: &mut Hasher) -> Result<Vec<u8>, GitError> {
        let mut stream = Decompress::new(true);
        let (mut buffer, mut kept) = (vec![0; 64 << 10], Vec::new());
        loop {
            let (read, written) = (stream.total_in(), stream.total_out());
            let status = stream
                .decompress(&self.body[self.at..], &mut buffer, FlushDecompress::None)
                .map_err(|_| refused("an object in it cannot be inflated"))?;
            let used = (stream.total_in() - read) as usize;
            let made = &buffer[..(stream.total_out() - written) as usize];
            self.at += used;
            hasher.update(made);
            if stream.total_out() > size {
                return Err(refused("an object in it is larger than it says"));
            }
            if keep {
                kept.extend_from_slice(made);
            }
            match status {
                Status::StreamEnd => break,
                Status::Ok | Status::BufError if used == 0 && made.is_empty() => {
                    return Err(refused("it ends too soon"));
                }
                Status::Ok | Status::BufError => {}
            }
        }
        if stream.total_out() != size {
            return Err(refused("an object in it is smaller than it says"));
        }
        Ok(kept)
    }
}

#[cfg(test)]
#[path = "pack_tests.rs"]
mod tests;
