//! `airlock image allow`: adds images to the list of allowed images.

use super::allowed_entry;
use crate::{
    cli::{
        Global, conclude,
        message::{self, Failure, Message},
        print, print_json,
    },
    config::ProcessEnv,
};
use clap::Args;
use spec::{Capability, Digest};
use store::NewAllowedImage;

const EXAMPLES: &str = "\
Examples:
  airlock image allow python:3.12
  airlock image allow 'ghcr.io/example/tools/*' --capability python-tools --note 'built by us'
  airlock image allow debian@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855

A name only claims where an image comes from; a digest identifies its contents. A name may have
several digests. If several entries match an image, the most specific decides: a tag before a
repository before a path, and with a digest before without.";

/// The options of `airlock image allow`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// REPOSITORY (any tag), REPOSITORY:TAG or PATH/* (all below)
    #[arg(value_name = "REF")]
    reference: String,
    /// The one digest the image may have
    #[arg(long, value_name = "DIGEST", value_parser = allowed_entry::parse_digest)]
    digest: Option<Digest>,
    /// What the image provides: base-tools, python-tools, node-tools, go-tools, secops-tools or a
    /// word of your own; repeatable
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
pub(super) fn execute(options: Options, global: &Global, env: &ProcessEnv) -> u8 {
    let json = options.json;
    conclude(attempt(options, global, env), json)
}

fn attempt(options: Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let config = global.configure(env)?;
    let (pattern, pin) = allowed_entry::parse(&options.reference, options.digest.as_ref())?;
    let new = NewAllowedImage {
        pattern,
        pin,
        capabilities: options.capabilities.into_iter().collect(),
        marked: None,
        note: options.note,
    };
    allowed_entry::open(&config)?.allow(
        &config.policy.images,
        &new,
        &allowed_entry::current_user(),
    )?;
    let name = allowed_entry::entry_name(&new.pattern, new.pin.as_ref());
    if options.json {
        print_json(&serde_json::json!({ "allowed": name }))?
    } else {
        print(&format!("{name}\n"))?
    }
    if allowed_entry::is_policy_open(&config) {
        message::print(&[Message::Note(allowed_entry::POLICY_IS_OPEN.to_owned())]);
    }
    Ok(0)
}

fn capability(text: &str) -> Result<Capability, String> {
    Capability::new(text).ok_or_else(|| "a capability is 1 to 64 of a-z 0-9 and -".to_owned())
}
