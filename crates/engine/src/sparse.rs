//! Copies a file sparsely: holes stay holes. Where the file system supports reflinks, the copy
//! shares its blocks until one of the two is written.

use rustix::{fs::SeekFrom, io::Errno};
use std::{
    fs::File,
    io::{self, Read, Seek},
    ops::Range,
};

/// The bytes that are copied between two checks for cancellation.
const CHUNK_BYTES: u64 = 64 << 20;

/// Copies the first `size` bytes to an empty file, as long as `goes_on` is true; returns the bytes
/// copied.
pub(crate) fn copy(
    from: &File,
    to: &File,
    size: u64,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<u64> {
    // File systems report missing reflink support in many ways; every error falls back to a copy.
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        let length = to.metadata()?.len().min(size);
        to.set_len(length)?;
        return Ok(length);
    }
    let mut done = 0;
    while done < size {
        let data = match rustix::fs::seek(from, SeekFrom::Data(done)) {
            Ok(data) => data.min(size),
            // A hole to the end, or no support for SEEK_DATA.
            Err(Errno::NXIO) => break,
            Err(_) => done,
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(data))
            .unwrap_or(size)
            .clamp(data, size);
        done = copy_range(from, to, data..end, goes_on)?;
        if done < end {
            to.set_len(done)?;
            return Ok(done);
        }
    }
    let length = from.metadata()?.len().min(size);
    to.set_len(length)?;
    Ok(length)
}

/// Copies the bytes between two offsets; returns how far it came.
fn copy_range(
    from: &File,
    to: &File,
    range: Range<u64>,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<u64> {
    let mut source = from;
    let mut target = to;
    source.seek(io::SeekFrom::Start(range.start))?;
    target.seek(io::SeekFrom::Start(range.start))?;
    let mut done = range.start;
    while done < range.end {
        if !goes_on() {
            return Err(io::Error::other("it was stopped on the way"));
        }
        match io::copy(
            &mut source.take(CHUNK_BYTES.min(range.end - done)),
            &mut target,
        )? {
            0 => break,
            copied => done += copied,
        }
    }
    Ok(done)
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
            File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(folder.join(name))
                .unwrap()
        };
        let (from, to) = (file("from"), file("to"));
        from.write_all_at(b"begin", 0).unwrap();
        from.write_all_at(b"middle", 512 << 20).unwrap();
        from.set_len(1 << 30).unwrap();
        assert_eq!(copy(&from, &to, 1 << 30, &|| true).unwrap(), 1 << 30);
        let mut seen = [0; 6];
        to.read_exact_at(&mut seen, 512 << 20).unwrap();
        assert_eq!((&seen, to.metadata().unwrap().len()), (b"middle", 1 << 30));
        assert!(
            to.metadata().unwrap().blocks() * 512 < 1 << 20,
            "it takes no more room than before"
        );
        let (full, short) = (file("full"), file("short"));
        full.write_all_at(&[b'x'; 5000], 0).unwrap();
        assert_eq!(
            copy(&full, &short, 3000, &|| true).unwrap(),
            3000,
            "no more than was asked for"
        );
        assert_eq!(std::fs::read(folder.join("short")).unwrap(), [b'x'; 3000]);
        assert_eq!(
            copy(&full, &file("all"), 9000, &|| true).unwrap(),
            5000,
            "and no more than there is"
        );
        let stopped = copy(&full, &file("stopped"), 5000, &|| false);
        // Shared blocks are there at once: nothing is left to stop.
        assert!(stopped.is_err() || rustix::fs::ioctl_ficlone(file("shared"), &full).is_ok());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
