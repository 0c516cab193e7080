//! `airlock image admit`: whether an image may be used here, and why. Runs and records nothing.

use super::allowed_entry;
use crate::{
    cli::{
        Global, conclude,
        message::{self, Failure, Message, printable},
        print, print_json,
    },
    config::{self, Config, ProcessEnv},
};
use clap::{Args, ValueEnum};
use serde_json::json;
use spec::{CandidateImage, Digest, ImageAdmission, ImageRef, ImageRefusal, ImageUse};

/// Exit status for an image that may not be used.
const NOT_ADMITTED: u8 = 1;

const EXAMPLES: &str = "\
Examples:
  airlock image admit python:3.12
  airlock image admit python:3.12 --for session --json

Properties that are not given count as absent. Exit status: 0 if it may be used, 1 if not.";

/// The options of `airlock image admit`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// The image
    #[arg(value_name = "REF")]
    reference: ImageRef,
    /// The intended use: one command (run), or a sandbox that an agent lives in (session)
    #[arg(long = "for", value_name = "USE", default_value = "run")]
    purpose: Purpose,
    /// The image's digest
    #[arg(long, value_name = "DIGEST", value_parser = allowed_entry::parse_digest)]
    digest: Option<Digest>,
    /// A label of the image; repeatable
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Purpose {
    Run,
    Session,
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, env: &ProcessEnv) -> u8 {
    let json = options.json;
    conclude(attempt(options, global, env), json)
}

fn attempt(options: Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let mut config = global.configure(env)?;
    // The local `airlock.toml` applies, as for a run in this folder.
    config::narrow(&mut config, None, env)?;
    let use_ = match options.purpose {
        Purpose::Run => ImageUse::Run,
        Purpose::Session => ImageUse::Session,
    };
    let digest = options
        .digest
        .or_else(|| options.reference.digest().cloned());
    let labels = options.labels.into_iter().collect();
    let facts = CandidateImage {
        reference: Some(options.reference),
        digest,
        labels,
    };
    tell(decision(&config, &facts, use_)?, options.json)
}

/// An open policy needs neither the list nor a state folder.
fn decision(
    config: &Config,
    facts: &CandidateImage,
    use_: ImageUse,
) -> Result<Result<ImageAdmission, ImageRefusal>, Failure> {
    let policy = &config.policy.images;
    if allowed_entry::is_policy_open(config) {
        Ok(spec::admit_image(policy, &[], facts, use_, &[]))
    } else {
        Ok(allowed_entry::open(config)?.admit(policy, facts, use_, &[]))
    }
}

fn tell(decision: Result<ImageAdmission, ImageRefusal>, json: bool) -> Result<u8, Failure> {
    let (allowed, by, reason, hint) = match decision {
        Ok(ImageAdmission::Unrestricted) => {
            (true, None, "every image may be used here".to_owned(), None)
        }
        Ok(ImageAdmission::By(entry)) => {
            let name = allowed_entry::entry_name(&entry.pattern, entry.pin.as_ref());
            (
                true,
                Some(name.clone()),
                format!("by the entry `{name}`"),
                None,
            )
        }
        Err(refused) => (false, None, refused.message, Some(refused.hint)),
    };
    if json {
        print_json(&json!({ "allowed": allowed, "by": by, "reason": reason, "hint": hint }))?
    } else {
        let word = if allowed { "allowed" } else { "refused" };
        print(&format!("{word}: {}\n", printable(&reason)))?;
        message::print(&hint.into_iter().map(Message::Hint).collect::<Vec<_>>());
    }
    Ok(if allowed { 0 } else { NOT_ADMITTED })
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a label is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
