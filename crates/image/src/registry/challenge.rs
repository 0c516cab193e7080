//! Parser for `WWW-Authenticate`. Strict: a malformed header contains no challenges.

/// An authentication scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// Name and password with every request.
    Basic,
    /// A token from `realm`. The suggested scope is ignored: the client requests only what it
    /// needs.
    Bearer {
        /// URL of the token server.
        realm: String,
        /// Service name for the token server.
        service: Option<String>,
    },
}

/// The supported challenges of one header; other schemes are ignored.
pub fn parse(header: &str) -> Vec<Challenge> {
    let mut reader = HeaderReader { rest: header };
    let mut schemes: Vec<Scheme<'_>> = Vec::new();
    while !reader.at_end() {
        if reader.scheme_or_parameter(&mut schemes).is_none() {
            return Vec::new();
        }
    }
    schemes.into_iter().filter_map(Scheme::challenge).collect()
}

struct Scheme<'h> {
    name: &'h str,
    parameters: Vec<(String, String)>,
}

impl Scheme<'_> {
    fn challenge(mut self) -> Option<Challenge> {
        match self.name.to_ascii_lowercase().as_str() {
            "basic" => Some(Challenge::Basic),
            "bearer" => Some(Challenge::Bearer {
                realm: self.take("realm")?,
                service: self.take("service"),
            }),
            _ => None,
        }
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self
            .parameters
            .iter()
            .position(|(known, _)| known == name)?;
        Some(self.parameters.swap_remove(at).1)
    }
}

/// The rest of the header.
struct HeaderReader<'h> {
    rest: &'h str,
}

impl<'h> HeaderReader<'h> {
    fn at_end(&mut self) -> bool {
        self.rest = self.rest.trim_start_matches([' ', '\t', ',']);
        self.rest.is_empty()
    }

    /// A word followed by `=` is a parameter of the current scheme; any other word starts the next
    /// scheme.
    fn scheme_or_parameter(&mut self, schemes: &mut Vec<Scheme<'h>>) -> Option<()> {
        let word = self.token()?;
        let Some(value) = self.rest.trim_start_matches([' ', '\t']).strip_prefix('=') else {
            let separated = self.rest.is_empty() || self.rest.starts_with([' ', '\t', ',']);
            schemes.push(Scheme {
                name: word,
                parameters: Vec::new(),
            });
            return separated.then_some(());
        };
        self.rest = value.trim_start_matches([' ', '\t']);
        let value = self.value()?;
        let parameters = &mut schemes.last_mut()?.parameters;
        let name = word.to_ascii_lowercase();
        // A repeated parameter is ambiguous.
        if parameters.iter().any(|(known, _)| *known == name) {
            return None;
        }
        parameters.push((name, value));
        Some(())
    }

    fn token(&mut self) -> Option<&'h str> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        let end = self.rest.find(|c| !fits(c)).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!token.is_empty()).then_some(token)
    }

    /// A token or a quoted string; a parameter ends at a comma or at the end of the header.
    fn value(&mut self) -> Option<String> {
        let value = match self.rest.strip_prefix('"') {
            Some(rest) => {
                self.rest = rest;
                self.quoted()?
            }
            None => self.token()?.to_owned(),
        };
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        (self.rest.is_empty() || self.rest.starts_with(',')).then_some(value)
    }

    fn quoted(&mut self) -> Option<String> {
        let mut value = String::new();
        let mut escaped = false;
        for (at, character) in self.rest.char_indices() {
            match character {
                _ if escaped => {
                    value.push(character);
                    escaped = false;
                }
                '\\' => escaped = true,
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return Some(value);
                }
                other => value.push(other),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bearer(realm: &str, service: Option<&str>) -> Challenge {
        Challenge::Bearer {
            realm: realm.into(),
            service: service.map(str::to_owned),
        }
    }

    #[test]
    fn the_headers_of_real_registries_are_understood() {
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/x:pull,push""#;
        assert_eq!(
            parse(hub),
            [bearer(
                "https://auth.docker.io/token",
                Some("registry.docker.io")
            )]
        );
        assert_eq!(parse(r#"Basic realm="Registry Realm""#), [Challenge::Basic]);
        assert_eq!(parse("basic"), [Challenge::Basic]);
        let both = r#"Basic realm="a, b", Bearer Realm = "https://x/\"t" , error=invalid_token"#;
        assert_eq!(
            parse(both),
            [Challenge::Basic, bearer("https://x/\"t", None)]
        );
        assert_eq!(
            parse(r#"Digest realm="x", nonce=1, Basic realm="y""#),
            [Challenge::Basic]
        );
    }

    #[test]
    fn what_is_not_well_formed_asks_for_nothing() {
        let headers = [
            "",
            ",,",
            "=",
            "realm=\"x\"",
            "Bearer",
            "Bearer service=\"x\"",
            "Bearer realm=\"x",
            "Bearer realm=\"x\\",
            "Bearer realm=",
            "Bearer realm=\"x\" service=\"y\"",
            "Bearer realm=\"x\", realm=\"y\"",
            "Basic realm=\"x\"\u{e4}",
            "Basic\"",
        ];
        for header in headers {
            assert_eq!(parse(header), [], "{header}");
        }
    }

    proptest! {
        #[test]
        fn no_header_makes_it_panic(header in "(Bearer|Basic|[a-z=\", \\\\])*|\\PC{0,40}") {
            parse(&header);
        }

        #[test]
        fn what_is_quoted_comes_out_as_it_was(realm in "[^\\x00-\\x1f]{0,30}", service in "[a-z.]{1,10}") {
            let quoted = realm.replace('\\', "\\\\").replace('"', "\\\"");
            let header = format!("Bearer realm=\"{quoted}\", service={service}, scope=\"a:b:pull\"");
            prop_assert_eq!(parse(&header), [bearer(&realm, Some(&service))]);
        }
    }
}
