//! `airlock image admit`: whether an image may be used here, and why. Runs nothing and notes nothing.

use super::entry;
use crate::{
    cli::{
        Global, conclude,
        message::{self, Failure, Line, printable},
        print, print_json,
    },
    config::{self, Config, Surroundings},
};
use clap::{Args, ValueEnum};
use serde_json::json;
use spec::{CandidateImage, Digest, ImageAdmission, ImageRef, ImageRefusal, ImageUse};

/// The answer is no.
const NOT_ADMITTED: u8 = 1;

const EXAMPLES: &str = "\
Examples:
  airlock image admit python:3.12
  airlock image admit python:3.12 --for session --json

What is not said about the image is taken as absent. Exit status: 0 if it may be used, 1 if not.";

/// The options of `airlock image admit`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// The image
    #[arg(value_name = "REF")]
    reference: ImageRef,
    /// What it is wanted for: one command, or a sandbox that an agent lives in
    #[arg(long = "for", value_name = "USE", default_value = "run")]
    purpose: Purpose,
    /// The digest it has
    #[arg(long, value_name = "DIGEST", value_parser = entry::digest_of)]
    digest: Option<Digest>,
    /// A label it has; repeatable
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
pub(super) fn execute(options: Options, global: &Global, surroundings: &Surroundings) -> u8 {
    let json = options.json;
    conclude(attempt(options, global, surroundings), json)
}

fn attempt(options: Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    let mut config = global.configure(surroundings)?;
    // The answer is the one that a run in this folder would get.
    config::narrow(&mut config, None, surroundings)?;
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

/// Without the policy nobody needs a list, nor a folder to keep it in.
fn decision(
    config: &Config,
    facts: &CandidateImage,
    use_: ImageUse,
) -> Result<Result<ImageAdmission, ImageRefusal>, Failure> {
    let policy = &config.policy.images;
    match entry::is_open(config) {
        true => Ok(spec::admit_image(policy, &[], facts, use_, &[])),
        false => Ok(entry::open(config)?.admit(policy, facts, use_, &[])),
    }
}

fn tell(decision: Result<ImageAdmission, ImageRefusal>, json: bool) -> Result<u8, Failure> {
    let (allowed, by, reason, hint) = match decision {
        Ok(ImageAdmission::Unrestricted) => {
            (true, None, "every image may be used here".to_owned(), None)
        }
        Ok(ImageAdmission::By(entry)) => {
            let name = entry::name(&entry.pattern, entry.pin.as_ref());
            (
                true,
                Some(name.clone()),
                format!("by the entry `{name}`"),
                None,
            )
        }
        Err(refused) => (false, None, refused.message, Some(refused.hint)),
    };
    match json {
        true => {
            print_json(&json!({ "allowed": allowed, "by": by, "reason": reason, "hint": hint }))?
        }
        false => {
            let word = if allowed { "allowed" } else { "refused" };
            print(&format!("{word}: {}\n", printable(&reason)))?;
            message::say(&hint.into_iter().map(Line::Hint).collect::<Vec<_>>());
        }
    }
    Ok(if allowed { 0 } else { NOT_ADMITTED })
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a label is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
