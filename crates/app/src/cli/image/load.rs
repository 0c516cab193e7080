//! `airlock image load`: loads an archive or an OCI layout into the store.

use super::{image_store, remote};
use crate::{
    cli::{
        Global, conclude,
        message::{self, Failure, Message},
        print, print_json,
        size::human_size,
    },
    config::ProcessEnv,
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

It accepts archives of `docker save`, and OCI layouts as a folder or archive, also compressed by gzip or zstd.
Every digest is checked. docs/images.md describes owners, permissions and devices.";

/// The options of `airlock image load`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// An archive, a folder with an OCI layout, or - for standard input
    #[arg(value_name = "FILE|DIR|-")]
    source: PathBuf,
    /// The image's name [default: the archive's]; selects one of several images in an archive
    #[arg(long, value_name = "REF")]
    name: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let name = options
        .name
        .as_deref()
        .map(image_store::reference)
        .transpose()?;
    if let Some(client) = global.server(env)? {
        return crate::cli::runtime()?.block_on(remote::load(
            &client,
            &options.source,
            options.name.as_deref(),
            options.json,
        ));
    }
    let images = image_store::open(global, env)?;
    let problems: Vec<_> = images.sweep().into_iter().map(Message::Note).collect();
    message::print(&problems);
    let mut progress = ProgressLine {
        shown: io::stderr().is_terminal(),
    };
    let loaded = images.load(
        source(options)?,
        name,
        &ImageLimits::default(),
        &mut |step| progress.show(step),
    );
    progress.clear();
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
        human_size(image.size_bytes())
    );
    print(&message::printable(text.trim_end()))?;
    print("\n")?;
    if image.left_out() > 0 {
        let text = format!(
            "{} devices and pipes were omitted: a sandbox has its own /dev",
            image.left_out()
        );
        message::print(&[Message::Note(text)]);
    }
    Ok(())
}

/// Progress on a terminal, one line that is redrawn.
struct ProgressLine {
    shown: bool,
}

impl ProgressLine {
    fn show(&mut self, progress: LoadProgress) {
        if self.shown {
            let LoadProgress {
                layer,
                layers,
                bytes,
            } = progress;
            let line = format!("\r\x1b[Klayer {layer} of {layers}, {}", human_size(bytes));
            // A write error is ignored: the terminal is gone.
            let _ = io::stderr().lock().write_all(line.as_bytes());
        }
    }

    fn clear(&mut self) {
        if self.shown {
            let _ = io::stderr().lock().write_all(b"\r\x1b[K");
        }
    }
}
