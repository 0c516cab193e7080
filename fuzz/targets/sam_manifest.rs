//! Manifests of tools, and what tools say of themselves. No bytes make the readers panic or take long; what is left out has a
//! reason on one line; what is read is within its bounds, and no path in it leads out of the folder of the tools.
//!
//! The worker's crate brings engine and store along, so that this target takes the modules from their files.

#![no_main]

#[path = "../../crates/worker/src/wire/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "what the worker alone uses")]
mod wire;

/// What that module needs of its own crate.
mod transport {
    pub(crate) type Properties = std::collections::BTreeMap<String, String>;
}

/// What the modules below need of it.
mod call {
    pub(crate) mod profile {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum ToolProfile {
            Restrictive,
            Standard,
            Permissive,
        }

        impl ToolProfile {
            pub(crate) fn named(name: &str) -> Option<ToolProfile> {
                let known = [ToolProfile::Restrictive, ToolProfile::Standard, ToolProfile::Permissive];
                let is_it = |one: &ToolProfile| format!("{one:?}").to_lowercase() == name;
                known.into_iter().find(is_it)
            }
        }
    }
}

#[path = "../../crates/worker/src/tools"]
#[allow(dead_code, unreachable_pub, reason = "what the worker alone uses")]
mod tools {
    pub(crate) mod schema;
    mod limits;
    pub(crate) mod manifest;
    pub(crate) mod problem;
    mod requirement;
    mod yaml;

    pub(crate) use limits::ToolLimits;
}

use libfuzzer_sys::fuzz_target;
use std::path::{Component, Path};
use tools::{
    schema,
    manifest::{self, ManifestEntry, ManifestTarget},
    problem::ToolProblem,
};
use wire::{answer, topic::TopicBase};

fuzz_target!(|input: &[u8]| {
    let base = TopicBase::new("n", "").expect("it is one");
    match manifest::read(input, &base) {
        Ok(manifest) => {
            manifest
                .entries
                .iter()
                .for_each(|entry| look_at_entry(entry, &base));
            manifest.problems.iter().for_each(look_at_problem);
        }
        Err(problem) => look_at_problem(&problem),
    }
    let tools = schema::read(input).unwrap_or_default().into_values();
    for said in tools.chain([schema::read_one(input)]) {
        match said {
            Ok(said) => {
                assert!(
                    said.timeout
                        .is_none_or(|time| (1..=86_400).contains(&time.as_secs()))
                );
                let card = answer::init_broadcast(&said.card("t"), usize::MAX).expect("it fits");
                assert!(serde_json::from_slice::<serde_json::Value>(&card).is_ok());
            }
            Err(problem) => look_at_problem(&problem),
        }
    }
});

fn look_at_problem(problem: &ToolProblem) {
    let text = problem.to_string();
    assert!(
        !text.is_empty() && text.len() < 8192 && !text.contains(char::is_control),
        "{text:?}"
    );
}

fn look_at_entry(entry: &ManifestEntry, base: &TopicBase) {
    assert!(base.invoke(&entry.name).is_ok() && !entry.name.contains('/'));
    assert!(
        entry
            .timeout
            .is_none_or(|time| (1..=86_400).contains(&time.as_secs()))
    );
    let is_plain = |path: &Path| {
        path.components()
            .all(|part| matches!(part, Component::Normal(_)))
    };
    match &entry.wanted {
        ManifestTarget::Executable {
            tool_dir,
            executable,
        } => {
            assert!(is_plain(tool_dir) && is_plain(executable) && executable.file_name().is_some());
        }
        ManifestTarget::Function {
            module,
            function: name,
        }
        | ManifestTarget::Class {
            module,
            class_name: name,
        } => {
            assert!(
                !format!("{module}{name}").contains(['/', ' ', '-', '\0'])
                    && !module.contains("..")
            );
        }
    }
    if let Some(requirement) = &entry.requirement {
        let text = requirement.to_string();
        assert!(
            text.starts_with(|letter: char| letter.is_ascii_alphanumeric())
                && !text.contains(['/', ' ', '@', ';'])
        );
    }
}
