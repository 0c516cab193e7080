//! The one file of the suite with `unsafe`: calls to the kernel that must be refused have no safe wrapper.
#![allow(unsafe_code)]

use std::{ffi::CStr, io, os::fd::RawFd};

/// One argument of a call. Memory is passed only as a slice that lives over it.
pub(super) enum Word<'a> {
    Number(i64),
    Read(&'a [u8]),
    Write(&'a mut [u8]),
}

impl From<i64> for Word<'_> {
    fn from(number: i64) -> Self {
        Word::Number(number)
    }
}

impl From<i32> for Word<'_> {
    fn from(number: i32) -> Self {
        Word::Number(number.into())
    }
}

impl From<u64> for Word<'_> {
    fn from(number: u64) -> Self {
        Word::Number(number as i64)
    }
}

impl From<usize> for Word<'_> {
    fn from(number: usize) -> Self {
        Word::Number(number as i64)
    }
}

impl<'a> From<&'a CStr> for Word<'a> {
    fn from(text: &'a CStr) -> Self {
        Word::Read(text.to_bytes_with_nul())
    }
}

impl<'a> From<&'a [u8]> for Word<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Word::Read(bytes)
    }
}

impl<'a> From<&'a mut [u8]> for Word<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Word::Write(bytes)
    }
}

/// Any call of the kernel's.
pub(super) fn call(number: libc::c_long, words: &mut [Word<'_>]) -> io::Result<i64> {
    let mut raw = [0i64; 6];
    for (place, word) in raw.iter_mut().zip(words) {
        *place = match word {
            Word::Number(number) => *number,
            Word::Read(bytes) => bytes.as_ptr() as i64,
            Word::Write(bytes) => bytes.as_mut_ptr() as i64,
        };
    }
    let [a, b, c, d, e, f] = raw;
    // SAFETY: memory of ours is passed only as slices that live over the call, of the size the call's other
    // arguments state; no call that unmaps or shares memory goes this way.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// A child like this process; `None` in the child.
pub(super) fn fork() -> io::Result<Option<i32>> {
    // SAFETY: attacks that fork have one thread; the child goes on with all that memory for itself.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// A child by `clone` with these flags; it waits until standard input ends.
pub(super) fn clone_child(flags: i64) -> io::Result<i64> {
    // SAFETY: without a stack of its own and without shared memory it is a fork.
    match unsafe {
        libc::syscall(
            libc::SYS_clone,
            flags | i64::from(libc::SIGCHLD),
            0,
            0,
            0,
            0,
        )
    } {
        -1 => Err(io::Error::last_os_error()),
        0 => wait_and_exit(),
        pid => Ok(pid),
    }
}

/// The same by `clone3`, whose flags lie in memory.
pub(super) fn clone3_child(flags: u64) -> io::Result<i64> {
    let mut arguments = [0u64; 8];
    (arguments[0], arguments[4]) = (flags, libc::SIGCHLD as u64);
    // SAFETY: the struct has that size and lives over the call; without a stack it is a fork.
    match unsafe {
        libc::syscall(
            libc::SYS_clone3,
            arguments.as_mut_ptr(),
            size_of_val(&arguments),
        )
    } {
        -1 => Err(io::Error::last_os_error()),
        0 => wait_and_exit(),
        pid => Ok(pid),
    }
}

fn wait_and_exit() -> ! {
    let mut byte = [0u8; 1];
    // SAFETY: the kernel writes at most one byte of ours.
    unsafe { libc::read(0, byte.as_mut_ptr().cast(), 1) };
    exit(0)
}

/// Ends this process without running anything of its parent's.
pub(super) fn exit(code: i32) -> ! {
    // SAFETY: takes an integer and does not return.
    unsafe { libc::_exit(code) }
}

/// What a signal does to this process.
pub(super) fn on_signal(signal: i32, what: libc::sighandler_t) {
    // SAFETY: only called with `SIG_DFL` and `SIG_IGN`.
    unsafe { libc::signal(signal, what) };
}

/// Memory of our own, all of it touched; given back at the end of the process.
pub(super) fn take_memory(bytes: usize, descriptor: Option<RawFd>) -> io::Result<()> {
    let kind = match descriptor {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    };
    let (null, access) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a fresh mapping at a place of the kernel's choice.
    let memory = unsafe { libc::mmap(null, bytes, access, kind, descriptor.unwrap_or(-1), 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    for page in (0..bytes).step_by(4096) {
        // SAFETY: within the mapping.
        unsafe { memory.cast::<u8>().add(page).write_volatile(1) };
    }
    Ok(())
}

/// Huge pages, touched; given back at the end of the process.
pub(super) fn take_huge(bytes: usize) -> io::Result<()> {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    let (null, access) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a fresh mapping at a place of the kernel's choice.
    let memory = unsafe { libc::mmap(null, bytes, access, kind, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: within the mapping.
    unsafe { memory.cast::<u8>().write_volatile(1) };
    Ok(())
}

/// A segment of System V shared memory, at a place of the kernel's choice.
pub(super) fn attach_segment(segment: i64, length: usize) -> io::Result<&'static mut [u8]> {
    // SAFETY: the kernel chooses a free place; the segment has at least that length and stays until the end.
    unsafe {
        match libc::shmat(segment as i32, std::ptr::null(), 0) {
            failed if failed as isize == -1 => Err(io::Error::last_os_error()),
            place => Ok(std::slice::from_raw_parts_mut(place.cast(), length)),
        }
    }
}

/// `getpid` through the entry of 32-bit programs.
#[cfg(target_arch = "x86_64")]
pub(super) fn foreign_call() -> i32 {
    let mut value: u64 = 20;
    // SAFETY: getpid has no arguments; the entry may clobber r8 to r11.
    unsafe {
        std::arch::asm!("int 0x80", inout("rax") value, out("r8") _, out("r9") _, out("r10") _, out("r11") _)
    };
    value as i32
}

/// There is no such entry on other machines.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn foreign_call() -> i32 {
    -libc::ENOSYS
}

/// A crash, as the processor makes it.
pub(super) fn crash() -> ! {
    on_signal(libc::SIGSEGV, libc::SIG_DFL);
    // SAFETY: takes two integers; the signal ends this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGSEGV) };
    exit(1)
}
