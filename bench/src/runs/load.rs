//! How long it takes to load an image, beside `tar -x` of its layer, and how much memory. The layer is made here: many
//! files of mixed sizes, 60 % of their bytes random, the rest zeros; once plain and once compressed.

use crate::runs::{
    Options,
    archive::{self, Hashed, LAYER, NAME},
    report::{ImageLoad, NotRun, Report},
    schedule::Random,
    statistics::{middle, ratio},
    ways::{Reason, fresh_folder},
};
use std::{
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Of each way; the median counts.
const ROUNDS: usize = 3;
/// On average; half of the files are much smaller, one in sixteen much larger.
const FILE_BYTES: u64 = 128 << 10;
const FILES_A_GROUP: u64 = 16;
const BLOCK: usize = 512;
/// Of this size are the stretches that are random or zeros.
const STRETCH: usize = 64 << 10;
/// How often the peak of memory is looked at, which the kernel keeps.
const LOOK: Duration = Duration::from_millis(5);

/// What was asked for, if it was: it takes a minute and three times its size on the disk.
pub(crate) fn size(options: &Options) -> Option<u64> {
    const GIB: u64 = 1 << 30;
    match options.only.iter().any(|only| only == "image-load") {
        true => Some(options.image_size.unwrap_or(GIB)),
        false => options.image_size.filter(|_| options.only.is_empty()),
    }
}

pub(crate) fn measure(options: &Options, random: &mut Random, report: &mut Report) {
    let Some(size) = size(options) else { return };
    (options.progress)(&format!("image-load: making a layer of {} MiB", size >> 20));
    if let Err(reason) = both(size, options, random, report) {
        report.not_run.push(NotRun {
            name: "image-load".to_owned(),
            reason,
        });
    }
}

fn both(
    size: u64,
    options: &Options,
    random: &mut Random,
    report: &mut Report,
) -> Result<(), Reason> {
    let failed = |error: io::Error| format!("cannot make the image: {error}");
    let folder = fresh_folder(options, "image-load")?;
    let layer = fs::File::create(folder.join(LAYER)).map_err(failed)?;
    let mut layer = Hashed::new(BufWriter::with_capacity(1 << 20, layer));
    let files = write_layer(&mut layer, size, random).map_err(failed)?;
    let digest = layer.finish().map_err(failed)?;
    for layer in ["plain", "gzip"] {
        if layer == "gzip" {
            compress(&folder).map_err(failed)?;
        }
        let archive = archive::save(&folder, &digest).map_err(failed)?;
        (options.progress)(&format!("image-load: {layer}"));
        let image = Image {
            layer,
            bytes: size,
            files,
            archive,
            folder: folder.clone(),
        };
        report.image_loads.push(image.measure(options, random)?);
    }
    // Before anybody else is measured beside it.
    fs::remove_dir_all(folder).map_err(failed)
}

/// An image that is loaded and a layer that is unpacked.
struct Image {
    layer: &'static str,
    bytes: u64,
    files: u64,
    archive: PathBuf,
    folder: PathBuf,
}

impl Image {
    fn measure(&self, options: &Options, random: &mut Random) -> Result<ImageLoad, Reason> {
        let (mut loads, mut unpacks, mut peak_bytes) = (Vec::new(), Vec::new(), 0);
        for _ in 0..ROUNDS {
            for which in random.order(2) {
                let to = fresh_folder(options, "unpacked")?;
                let mut command = if which == 0 {
                    self.load(&to, options)
                } else {
                    self.unpack(&to)
                };
                let measured = watched(&mut command, &to);
                fs::remove_dir_all(&to)
                    .map_err(|error| format!("`{}` stays: {error}", to.display()))?;
                let (took, peak) = measured?;
                let seconds = (took.as_secs_f64() * 1000.0).round() / 1000.0;
                if which == 0 {
                    loads.push(seconds);
                    peak_bytes = peak.max(peak_bytes);
                } else {
                    unpacks.push(seconds);
                }
            }
        }
        let (load_s, tar_s) = (middle(&loads), middle(&unpacks));
        let to_tar = ratio(load_s, tar_s);
        let (layer, bytes, files) = (self.layer, self.bytes, self.files);
        Ok(ImageLoad {
            layer,
            bytes,
            files,
            load_s,
            tar_s,
            to_tar,
            peak_bytes,
            loads,
            unpacks,
        })
    }

    fn load(&self, state: &Path, options: &Options) -> Command {
        let mut load = Command::new(&options.airlock);
        load.arg("--state")
            .arg(state)
            .args(["image", "load", "--name", NAME])
            .arg(&self.archive);
        load
    }

    fn unpack(&self, to: &Path) -> Command {
        let mut unpack = Command::new("tar");
        unpack
            .arg("-C")
            .arg(to)
            .arg("-xf")
            .arg(self.folder.join(LAYER));
        unpack
    }
}

/// Runs a command to its end: how long that took, and the most memory that it had.
fn watched(command: &mut Command, to: &Path) -> Result<(Duration, u64), Reason> {
    let program = command.get_program().to_owned();
    let failed = |error: io::Error| format!("cannot run `{}`: {error}", program.display());
    // What the one before wrote must not be paid for by this one.
    let disk = fs::File::open(to).map_err(failed)?;
    rustix::fs::syncfs(&disk).map_err(|error| failed(error.into()))?;
    let start = Instant::now();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let child = child.map_err(failed)?;
    let (over, ended) = mpsc::channel::<()>();
    let pid = child.id();
    let watcher = thread::spawn(move || peak_until(&ended, pid));
    let told = child.wait_with_output();
    let took = start.elapsed();
    drop(over);
    let peak = watcher.join().unwrap_or_default();
    let told = told.map_err(failed)?;
    match told.status.success() {
        true => Ok((took, peak)),
        false => Err(format!(
            "{}: {}",
            told.status,
            String::from_utf8_lossy(&told.stderr).trim()
        )),
    }
}

/// The kernel tells the peak only of those who live, and to whoever waits for them only by a call that nobody offers
/// safely; it never falls, so the last look is good.
fn peak_until(ended: &mpsc::Receiver<()>, pid: u32) -> u64 {
    let mut peak = 0;
    while ended.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
        peak = peak_of(pid).unwrap_or_default().max(peak);
    }
    peak
}

fn peak_of(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

/// Compresses the layer in place. How hard changes the making, hardly the reading.
fn compress(folder: &Path) -> io::Result<()> {
    let (plain, packed) = (folder.join(LAYER), folder.join("packed"));
    let mut gzip = Command::new("gzip");
    gzip.args(["-1", "--stdout"])
        .arg(&plain)
        .stdin(Stdio::null())
        .stdout(fs::File::create(&packed)?);
    match gzip.status()?.success() {
        true => fs::rename(packed, plain),
        false => Err(io::Error::other("`gzip` could not compress it")),
    }
}

/// Writes files until their bytes are so many, and how many files they are.
fn write_layer(to: &mut impl Write, bytes: u64, random: &mut Random) -> io::Result<u64> {
    let (mut left, mut files, mut group) = (bytes, 0, 0);
    while left > 0 {
        let number = files % FILES_A_GROUP;
        // Twelve of up to 16 KiB, three of up to 256 KiB, and one with the rest of what is due to the group.
        let size = match number {
            0..12 => 1 + random.next() % (16 << 10),
            12..15 => (64 << 10) + random.next() % (192 << 10),
            _ => (FILE_BYTES * FILES_A_GROUP).saturating_sub(group),
        };
        let size = size.clamp(1, left);
        group = if number == FILES_A_GROUP - 1 {
            0
        } else {
            group + size
        };
        write_file(
            to,
            &format!("folder-{:03}/file-{files:06}", files / 100),
            size,
            random,
        )?;
        (left, files) = (left - size, files + 1);
    }
    to.write_all(&[0; 2 * BLOCK])?;
    Ok(files)
}

fn write_file(to: &mut impl Write, name: &str, size: u64, random: &mut Random) -> io::Result<()> {
    to.write_all(&header(name, size))?;
    let (mut left, mut stretch) = (size as usize, vec![0; STRETCH]);
    while left > 0 {
        let part = left.min(STRETCH);
        match random.next() % 10 < 6 {
            true => stretch
                .chunks_mut(8)
                .for_each(|eight| eight.copy_from_slice(&random.next().to_le_bytes())),
            false => stretch.fill(0),
        }
        to.write_all(&stretch[..part])?;
        left -= part;
    }
    to.write_all(&vec![
        0;
        (size as usize).next_multiple_of(BLOCK) - size as usize
    ])
}

/// Of a file, as POSIX has it.
fn header(name: &str, size: u64) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{size:011o}\0"));
    put(136, "00000000000\0");
    // The sum is taken with blanks in its own place.
    put(148, "        0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_has_files_of_mixed_sizes_that_tar_can_read() {
        let mut layer = Vec::new();
        let files =
            write_layer(&mut layer, 4 << 20, &mut Random::new(1)).expect("memory is written");
        let mut tar = Command::new("tar");
        let list = tar
            .args(["-tv"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut list = list.expect("tar starts");
        let mut stdin = list.stdin.take().expect("a pipe");
        let writer = thread::spawn(move || stdin.write_all(&layer).expect("tar reads"));
        let told = list.wait_with_output().expect("tar ends");
        writer.join().expect("it wrote");
        let text = String::from_utf8(told.stdout).expect("names are plain");
        let sizes: Vec<u64> = text
            .lines()
            .map(|line| {
                line.split_whitespace()
                    .nth(2)
                    .and_then(|size| size.parse().ok())
                    .expect("a size")
            })
            .collect();
        assert!(told.status.success());
        assert_eq!(
            (sizes.len() as u64, sizes.iter().sum::<u64>()),
            (files, 4 << 20)
        );
        assert!(
            sizes.iter().any(|size| *size < 16 << 10) && sizes.iter().any(|size| *size > 512 << 10)
        );
    }
}
