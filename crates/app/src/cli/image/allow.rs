//! `airlock image allow`: puts images on the list of those that may be used.

use super::entry;
use crate::{
    cli::{
        Global, conclude,
        message::{self, Failure, Line},
        print, print_json,
    },
    config::Surroundings,
};
use clap::Args;
use spec::{Capability, Digest};
use store::NewAllowedImage;

const EXAMPLES: &str = "\
Examples:
  airlock image allow python:3.12
  airlock image allow 'ghcr.io/example/tools/*' --capability python-tools --note 'built by us'
  airlock image allow debian@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

A name says where an image claims to come from; only a digest says what it is. The same name
may have several digests. Of several entries that mean an image the nearest decides: a tag before
a repository before a path, and with a digest before without.";

/// The options of `airlock image allow`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// REPOSITORY (any tag), REPOSITORY:TAG or PATH/* (all below)
    #[arg(value_name = "REF")]
    reference: String,
    /// The one digest the image may have
    #[arg(long, value_name = "DIGEST", value_parser = entry::digest_of)]
    digest: Option<Digest>,
    /// What it is good for: base-tools, python-tools, node-tools, go-tools, secops-tools or a word of your own;
    /// repeatable
    #[arg(long = "capability", value_name = "NAME", value_parser = capability)]
    capabilities: Vec<Capability>,
    /// Why it is allowed
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    note: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, surroundings: &Surroundings) -> u8 {
    let json = options.json;
    conclude(attempt(options, global, surroundings), json)
}

fn attempt(options: Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    let config = global.configure(surroundings)?;
    let (pattern, pin) = entry::parse(&options.reference, options.digest.as_ref())?;
    let new = NewAllowedImage {
        pattern,
        pin,
        capabilities: options.capabilities.into_iter().collect(),
        marked: None,
        note: options.note,
    };
    entry::open(&config)?.allow(&config.policy.images, &new, &entry::who())?;
    let name = entry::name(&new.pattern, new.pin.as_ref());
    match options.json {
        true => print_json(&serde_json::json!({ "allowed": name }))?,
        false => print(&format!("{name}\n"))?,
    }
    if entry::is_open(&config) {
        message::say(&[Line::Note(entry::POLICY_IS_OPEN.to_owned())]);
    }
    Ok(0)
}

fn capability(text: &str) -> Result<Capability, String> {
    Capability::new(text).ok_or_else(|| "a capability is 1 to 64 of a-z 0-9 and -".to_owned())
}
