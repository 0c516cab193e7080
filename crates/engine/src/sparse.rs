//! Copies a file with its holes: what takes no room does not begin to.

use rustix::{fs::SeekFrom, io::Errno};
use std::{
    fs::File,
    io::{self, Read, Seek},
};

/// Copies the first `size` bytes to an empty file; how many there were.
pub(crate) fn copy(from: &File, to: &File, size: u64) -> io::Result<u64> {
    let mut done = 0;
    while done < size {
        let data = match rustix::fs::seek(from, SeekFrom::Data(done)) {
            Ok(data) => data.min(size),
            // A hole to the end, or a file system that knows of none.
            Err(Errno::NXIO) => break,
            Err(_) => done,
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(data)).unwrap_or(size).clamp(data, size);
        let (mut source, mut target) = (from, to);
        source.seek(io::SeekFrom::Start(data))?;
        target.seek(io::SeekFrom::Start(data))?;
        done = data + io::copy(&mut source.take(end - data), &mut target)?;
        if done < end {
            to.set_len(done)?;
            return Ok(done);
        }
    }
    let length = from.metadata()?.len().min(size);
    to.set_len(length)?;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn holes_stay_holes_and_every_byte_is_where_it_was() {
        let folder = std::env::temp_dir().join(format!("airlock-sparse-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let file = |name: &str| {
            File::options().read(true).write(true).create_new(true).open(folder.join(name)).unwrap()
        };
        let (from, to) = (file("from"), file("to"));
        from.write_all_at(b"begin", 0).unwrap();
        from.write_all_at(b"middle", 512 << 20).unwrap();
        from.set_len(1 << 30).unwrap();
        assert_eq!(copy(&from, &to, 1 << 30).unwrap(), 1 << 30);
        let mut seen = [0; 6];
        to.read_exact_at(&mut seen, 512 << 20).unwrap();
        assert_eq!((&seen, to.metadata().unwrap().len()), (b"middle", 1 << 30));
        assert!(to.metadata().unwrap().blocks() * 512 < 1 << 20, "it takes no more room than before");
        let (full, short) = (file("full"), file("short"));
        full.write_all_at(&[b'x'; 5000], 0).unwrap();
        assert_eq!(copy(&full, &short, 3000).unwrap(), 3000, "no more than was asked for");
        assert_eq!(std::fs::read(folder.join("short")).unwrap(), [b'x'; 3000]);
        assert_eq!(copy(&full, &file("all"), 9000).unwrap(), 5000, "and no more than there is");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
