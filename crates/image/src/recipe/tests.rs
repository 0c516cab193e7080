use super::*;
use proptest::prelude::*;

fn refused(text: &str) -> (usize, String) {
    let RecipeError { line, what } = Recipe::parse(text).expect_err(text);
    (line, what)
}

#[test]
fn every_recipe_of_ours_is_read_and_declares_what_it_is() {
    for profile in ImageProfile::ALL {
        let recipe =
            Recipe::parse(for_profile(profile)).unwrap_or_else(|bad| panic!("{profile:?}: {bad}"));
        assert!(
            ImageProfile::declared(&recipe.config).contains(&profile),
            "{profile:?}"
        );
        assert!(
            !matches!(recipe.config.user.as_str(), "" | "0" | "root"),
            "{profile:?}"
        );
        assert_eq!(recipe.config.working_dir, "/workspace");
        for label in ["title", "description", "licenses"] {
            assert!(
                recipe
                    .config
                    .labels
                    .contains_key(&format!("org.opencontainers.image.{label}"))
            );
        }
    }
}

#[test]
fn a_recipe_is_its_steps_and_what_it_says_of_itself() {
    let text = "\
# a comment
FROM debian:bookworm-slim
ENV A=1 B=\"two words\"
arg PIP_INDEX_URL
RUN apt-get update \\
    # in between
    && apt-get install -y jq
COPY tool.sh /usr/local/bin/
WORKDIR /workspace
USER 1000:1000
ENTRYPOINT [\"tool.sh\", \"-x\"]
";
    let env = vec![
        DEFAULT_PATH.to_owned(),
        "A=1".to_owned(),
        "B=two words".to_owned(),
    ];
    let run = BuildStep::Run {
        script: "apt-get update && apt-get install -y jq".to_owned(),
        folder: "/".to_owned(),
        env: env.clone(),
        arguments: vec!["PIP_INDEX_URL".to_owned()],
    };
    let copy = BuildStep::Copy {
        from: "tool.sh".to_owned(),
        to: "/usr/local/bin/tool.sh".to_owned(),
    };
    let config = ImageConfig {
        user: "1000:1000".to_owned(),
        env,
        entrypoint: vec!["tool.sh".to_owned(), "-x".to_owned()],
        working_dir: "/workspace".to_owned(),
        ..ImageConfig::default()
    };
    let steps = vec![run, copy, BuildStep::Folder("/workspace".to_owned())];
    let arguments = vec!["PIP_INDEX_URL".to_owned()];
    assert_eq!(
        Recipe::parse(text),
        Ok(Recipe {
            steps,
            config,
            arguments
        })
    );
}

#[test]
fn a_recipe_that_starts_from_a_profile_goes_on_where_that_ends() {
    let base = Recipe::parse(for_profile(ImageProfile::BaseTools)).unwrap();
    let more =
        Recipe::parse("FROM base-tools\nENV X=1\nUSER root\nRUN echo more\nUSER 1000:1000\n");
    let more = more.unwrap();
    assert_eq!(more.steps[..base.steps.len()], base.steps[..]);
    assert_eq!(more.steps.len(), base.steps.len() + 1);
    assert_eq!(
        (&more.config.user, &more.config.labels),
        (&base.config.user, &base.config.labels)
    );
    assert!(more.config.env.contains(&"X=1".to_owned()));
}

#[test]
fn what_is_not_known_is_refused_by_name_and_line() {
    let from = "FROM debian:bookworm-slim\n";
    let cases = [
        ("RUN true\n", 1, "begins with FROM"),
        ("", 1, "no instruction"),
        ("FROM alpine\n", 1, "`alpine` is not available here"),
        ("# escape=`\nFROM base-tools\n", 1, "directive `escape`"),
        (
            &format!("{from}HEALTHCHECK NONE\n"),
            2,
            "`HEALTHCHECK` is not known",
        ),
        (&format!("{from}ADD x /x\n"), 2, "`ADD` is not known"),
        (&format!("{from}{from}"), 2, "one FROM"),
        (
            &format!("{from}RUN --mount=type=cache true\n"),
            2,
            "without options",
        ),
        (&format!("{from}RUN [\"true\"]\n"), 2, "shell command"),
        (
            &format!("{from}USER 1\nRUN true\n"),
            3,
            "put `USER root` above RUN",
        ),
        (
            "FROM base-tools\nRUN true\n",
            2,
            "put `USER root` above RUN",
        ),
        (&format!("{from}COPY ../x /x\n"), 2, "not a plain path"),
        (
            &format!("{from}COPY /etc/shadow /x\n"),
            2,
            "not a plain path",
        ),
        (&format!("{from}COPY --chown=1 x /x\n"), 2, "one file"),
        (
            &format!("{from}COPY a x/../../y\n"),
            2,
            "not a plain absolute path",
        ),
        (&format!("{from}ENV A=$B\n"), 2, "`$` is not replaced"),
        (&format!("{from}ENV A\n"), 2, "NAME=VALUE"),
        (&format!("{from}CMD echo x\n"), 2, "JSON list"),
        (&format!("{from}ARG A=1\n"), 2, "ARG NAME"),
        (&format!("{from}RUN true \\\n"), 2, "no line follows"),
        (&format!("{from}RUN\n"), 2, "says nothing"),
        (&format!("{from}RUN echo \x1b[2J\n"), 2, "control character"),
    ];
    for (text, line, words) in cases {
        let (at, what) = refused(text);
        assert!(
            at == line && what.contains(words),
            "{text:?}: line {at}: {what}"
        );
    }
}

proptest! {
    #[test]
    fn whatever_is_read_leads_nowhere_outside(text in "(FROM base-tools\n)?((RUN|COPY|ENV|WORKDIR|LABEL|#) [a-z./=\"$ \\\\]{0,30}\n){0,6}") {
        if let Ok(recipe) = Recipe::parse(&text) {
            for step in recipe.steps {
                if let BuildStep::Copy { from, to } = step {
                    let outside = from.starts_with('/');
                    let both = format!("/{from}/{to}/");
                    prop_assert!(!outside && !both.contains("/../"));
                }
            }
        }
    }
}
