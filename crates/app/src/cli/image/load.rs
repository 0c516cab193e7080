//! `airlock image load`: an archive or an OCI layout becomes an image of this machine.

use super::{remote, shared};
use crate::{
    cli::{
        Global, conclude,
        message::{self, Failure, Line},
        print, print_json,
    },
    config::Surroundings,
};
use clap::Args;
use image::{ImageLimits, ImageSource, LoadOutcome, LoadProgress};
use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    path::PathBuf,
};

const EXAMPLES: &str = "\
Examples:
  docker save agent:1 | airlock image load -
  airlock image load agent.tar
  airlock image load ./layout --name agent:1

It takes what `docker save` writes, and OCI layouts as a folder or as an archive, also compressed by gzip or zstd.
Every digest is checked. docs/images.md says what becomes of owners, rights and devices.";

/// The options of `airlock image load`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// An archive, a folder in OCI's layout, or - for standard input
    #[arg(value_name = "FILE|DIR|-")]
    source: PathBuf,
    /// What to call it; without this, what it calls itself. Of several images in one archive, the one of this name
    #[arg(long, value_name = "REF")]
    name: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, surroundings: &Surroundings) -> u8 {
    conclude(attempt(options, global, surroundings), options.json)
}

fn attempt(options: &Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    let name = options.name.as_deref().map(shared::reference).transpose()?;
    if let Some(client) = global.server(surroundings)? {
        return crate::cli::runtime()?.block_on(remote::load(
            &client,
            &options.source,
            options.name.as_deref(),
            options.json,
        ));
    }
    let images = shared::open(global, surroundings)?;
    let problems: Vec<_> = images.sweep().into_iter().map(Line::Note).collect();
    message::say(&problems);
    let mut meter = Meter {
        shown: io::stderr().is_terminal(),
    };
    let loaded = images.load(
        source(options)?,
        name,
        &ImageLimits::default(),
        &mut |progress| meter.show(progress),
    );
    meter.clear();
    report(&loaded?, options.json)?;
    Ok(0)
}

fn source(options: &Options) -> Result<ImageSource, Failure> {
    if options.source.as_os_str() != "-" {
        return Ok(ImageSource::Path(options.source.clone()));
    }
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    let stdin =
        stdin.map_err(|error| Failure::internal(format!("cannot read standard input: {error}")))?;
    Ok(ImageSource::File(File::from(stdin)))
}

fn report(loaded: &LoadOutcome, json: bool) -> Result<(), Failure> {
    let image = &loaded.image;
    let names: Vec<_> = image.names().iter().map(spec::ImageRef::familiar).collect();
    if json {
        return print_json(&serde_json::json!({
            "names": names, "id": image.id().as_str(), "digest": image.digest().as_str(),
            "size_bytes": image.size_bytes(), "left_out": image.left_out(), "fresh": loaded.fresh,
        }));
    }
    let word = if loaded.fresh {
        "loaded"
    } else {
        "was there already:"
    };
    let text = format!(
        "{word} {} ({})\n",
        names.join(", "),
        shared::size(image.size_bytes())
    );
    print(&message::printable(text.trim_end()))?;
    print("\n")?;
    if image.left_out() > 0 {
        let text = format!(
            "{} devices and pipes were left out: a box has its own /dev",
            image.left_out()
        );
        message::say(&[Line::Note(text)]);
    }
    Ok(())
}

/// One line that is written over and over, for somebody who watches.
struct Meter {
    shown: bool,
}

impl Meter {
    fn show(&mut self, progress: LoadProgress) {
        if self.shown {
            let LoadProgress {
                layer,
                layers,
                bytes,
            } = progress;
            let line = format!("\r\x1b[Klayer {layer} of {layers}, {}", shared::size(bytes));
            // Nobody to see it is no failure of the load.
            let _ = io::stderr().lock().write_all(line.as_bytes());
        }
    }

    fn clear(&mut self) {
        if self.shown {
            let _ = io::stderr().lock().write_all(b"\r\x1b[K");
        }
    }
}
