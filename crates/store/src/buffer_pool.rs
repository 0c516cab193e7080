//! A pool of read buffers: a buffer is handed out as `Bytes` and reused once the last handle is
//! dropped, so a large file passes through a few buffers instead of a new allocation for each
//! chunk.

use bytes::Bytes;
use rustix::{buffer::spare_capacity, io::Errno};
use std::{
    io,
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
};

type FreeList = Arc<Mutex<Vec<Vec<u8>>>>;

/// The buffers of one reader; it holds as many as the reader has in flight.
#[derive(Clone, Debug, Default)]
pub struct BufferPool(FreeList);

struct PooledBuffer {
    bytes: Vec<u8>,
    free: FreeList,
}

impl BufferPool {
    /// Reads up to `length` bytes of a file from this offset; empty at its end.
    pub fn read(&self, file: impl AsFd, at: u64, length: usize) -> io::Result<Bytes> {
        let mut bytes = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
            .unwrap_or_default();
        bytes.clear();
        bytes.reserve_exact(length);
        while let Err(error) = rustix::io::pread(&file, spare_capacity(&mut bytes), at) {
            if error != Errno::INTR {
                return Err(error.into());
            }
        }
        bytes.truncate(length);
        Ok(Bytes::from_owner(PooledBuffer {
            bytes,
            free: self.0.clone(),
        }))
    }
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        self.free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::{fs::File, io::Write};

    #[test]
    fn what_is_dropped_is_read_into_again_and_what_is_held_is_not() {
        let mut file = File::from(memfd_create("file", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(b"0123456789").unwrap();
        let (buffers, read) = (
            BufferPool::default(),
            |buffers: &BufferPool, file: &File, at, length| buffers.read(file, at, length).unwrap(),
        );
        let held = read(&buffers, &file, 0, 4);
        let place = read(&buffers, &file, 4, 4).as_ptr();
        let again = read(&buffers, &file, 2, 3);
        assert_eq!(
            (again.as_ptr(), &again[..], &held[..]),
            (place, &b"234"[..], &b"0123"[..])
        );
        assert_eq!(
            &read(&buffers, &file, 8, 100)[..],
            b"89",
            "not more than there is"
        );
        assert!(read(&buffers, &file, 10, 4).is_empty());
    }
}
