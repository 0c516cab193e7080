//! Which program to run: from variables, from arguments, or as one line for a shell. More than one
//! of these sources is an error.

use super::EntryError;

/// More than any command needs, and less than the kernel accepts.
const MAX_ARGUMENTS: usize = 4096;
/// Bytes of `AGENT_COMMAND_JSON`.
const MAX_JSON_BYTES: usize = 128 << 10;

/// The variables that name a command.
#[derive(Debug, Default)]
pub struct CommandSettings {
    /// `AGENT_COMMAND`: a program.
    pub command: Option<Vec<u8>>,
    /// `AGENT_ARGS`: its arguments, separated by white space.
    pub arguments: Option<Vec<u8>>,
    /// `AGENT_COMMAND_JSON`: program and arguments, exactly.
    pub json: Option<Vec<u8>>,
}

/// Program and arguments, from exactly one source.
pub fn choose(asked: CommandSettings, given: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, EntryError> {
    let from_arguments = "the arguments of airlock-init";
    let ways = [
        (asked.command.is_some(), "AGENT_COMMAND"),
        (asked.json.is_some(), "AGENT_COMMAND_JSON"),
        (!given.is_empty(), from_arguments),
    ];
    let used: Vec<_> = ways
        .into_iter()
        .filter(|(is_used, _)| *is_used)
        .map(|(_, name)| name)
        .collect();
    if let [one, other, ..] = used[..] {
        return Err(EntryError::new(format!(
            "both {one} and {other} name a command; give one of them"
        )));
    }
    if asked.command.is_none() && asked.arguments.is_some() {
        let remedy = "set AGENT_COMMAND, or move them to where the command is named";
        return Err(EntryError::new(format!(
            "AGENT_ARGS is set, but AGENT_COMMAND is not; {remedy}"
        )));
    }
    let command = match (asked.command, asked.json) {
        (Some(program), _) => {
            [vec![program], split(&asked.arguments.unwrap_or_default()).map(<[u8]>::to_vec).collect()]
                .concat()
        }
        (None, Some(json)) => parse_json(&json).map_err(|why| {
            EntryError::new(format!(
                "AGENT_COMMAND_JSON is not a JSON list of strings, like [\"sh\", \"-c\", \"ls\"]: {why}"
            ))
        })?,
        (None, None) => from_line(given)?,
    };
    check(command)
}

fn check(command: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, EntryError> {
    match command.first() {
        None => Err(EntryError::new(
            "no command; set AGENT_COMMAND (and AGENT_ARGS) or AGENT_COMMAND_JSON, or give it as arguments",
        )),
        Some(program) if program.is_empty() => {
            Err(EntryError::new("the name of the program is empty"))
        }
        Some(_) if command.len() > MAX_ARGUMENTS => Err(EntryError::new(format!(
            "the command has more than {MAX_ARGUMENTS} arguments"
        ))),
        Some(_) => Ok(command),
    }
}

/// `PROGRAM ARG…`, `-- PROGRAM ARG…`, or `--shell LINE`.
fn from_line(mut given: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, EntryError> {
    match given.first().map(Vec::as_slice) {
        Some(b"--") => Ok(given.split_off(1)),
        Some(b"--shell") => match &mut given[1..] {
            [line] if !line.is_empty() => Ok(vec![
                b"bash".to_vec(),
                b"-lc".to_vec(),
                std::mem::take(line),
            ]),
            _ => Err(EntryError::new(
                "--shell takes one argument: the line that `bash -lc` runs",
            )),
        },
        Some([b'-', ..]) => Err(EntryError::new(
            "unknown option; before a program whose name begins with `-`, write `--`",
        )),
        Some(_) | None => Ok(given),
    }
}

/// Splits `AGENT_ARGS` at white space: no quotes, no escapes, no empty words.
pub fn split(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| byte.is_ascii_whitespace() || *byte == 0x0b)
        .filter(|word| !word.is_empty())
}

/// Parses a JSON array of strings; any other value, a NUL or trailing text is an error.
pub fn parse_json(text: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    if text.len() > MAX_JSON_BYTES {
        return Err("it is longer than 128 KiB");
    }
    let mut reader = Reader {
        rest: std::str::from_utf8(text).map_err(|_| "it is not UTF-8")?,
    };
    let list = reader.list()?;
    reader.skip_space();
    if reader.rest.is_empty() {
        Ok(list)
    } else {
        Err("something follows the list")
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn take(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let first = characters.next();
        self.rest = characters.as_str();
        first
    }

    /// The next character that is not white space.
    fn next(&mut self) -> Option<char> {
        self.skip_space();
        self.take()
    }

    fn list(&mut self) -> Result<Vec<Vec<u8>>, &'static str> {
        if self.next() != Some('[') {
            return Err("it does not begin with `[`");
        }
        let mut found = Vec::new();
        let mut next = self.next();
        if next == Some(']') {
            return Ok(found);
        }
        loop {
            if next != Some('"') {
                return Err("one of its values is not a string");
            }
            if found.len() == MAX_ARGUMENTS {
                return Err("it has more than 4096 values");
            }
            found.push(self.string()?);
            match self.next() {
                Some(']') => return Ok(found),
                Some(',') => next = self.next(),
                _ => return Err("it does not end with `]`"),
            }
        }
    }

    /// After its opening quote.
    fn string(&mut self) -> Result<Vec<u8>, &'static str> {
        let mut found = String::new();
        loop {
            let character = match self.take().ok_or("a string does not end")? {
                '"' => return Ok(found.into_bytes()),
                '\\' => self.escape()?,
                '\0'..='\x1f' => {
                    return Err("a string has a control character that is not escaped");
                }
                other => other,
            };
            match character {
                '\0' => return Err("a string has a NUL, which no argument can hold"),
                _ => found.push(character),
            }
        }
    }

    fn escape(&mut self) -> Result<char, &'static str> {
        match self.take() {
            Some(same @ ('"' | '\\' | '/')) => Ok(same),
            Some('b') => Ok('\u{8}'),
            Some('f') => Ok('\u{c}'),
            Some('n') => Ok('\n'),
            Some('r') => Ok('\r'),
            Some('t') => Ok('\t'),
            Some('u') => self.code_point(),
            _ => Err("a string has an unknown escape"),
        }
    }

    fn code_point(&mut self) -> Result<char, &'static str> {
        const WRONG: &str = "a string has half of a surrogate pair";
        let first = self.hex()?;
        let code = match first {
            0xd800..=0xdbff => {
                if (self.take(), self.take()) != (Some('\\'), Some('u')) {
                    return Err(WRONG);
                }
                let second = self.hex()?;
                if !(0xdc00..=0xdfff).contains(&second) {
                    return Err(WRONG);
                }
                0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            other => other,
        };
        char::from_u32(code).ok_or(WRONG)
    }

    fn hex(&mut self) -> Result<u32, &'static str> {
        (0..4).try_fold(0, |number, _| {
            let digit = self.take().and_then(|character| character.to_digit(16));
            digit
                .map(|digit| number << 4 | digit)
                .ok_or("a string has an escape without four digits")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(list: &[&str]) -> Vec<Vec<u8>> {
        list.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    fn bytes(text: &str) -> Option<Vec<u8>> {
        Some(text.as_bytes().to_vec())
    }

    #[test]
    fn a_command_and_its_words_come_from_the_variables() {
        let asked = CommandSettings {
            command: bytes("my prog"),
            arguments: bytes("  a\t'b c'\n d "),
            json: None,
        };
        assert_eq!(
            choose(asked, vec![]).unwrap(),
            texts(&["my prog", "a", "'b", "c'", "d"])
        );
    }

    #[test]
    fn json_keeps_spaces_quotes_and_empty_arguments() {
        let json = r#" [ "a", "b c", "", "\"\\\/\b\f\n\r\t", "\u00e9\ud83d\ude00" ] "#;
        let expected = texts(&["a", "b c", "", "\"\\/\u{8}\u{c}\n\r\t", "é😀"]);
        assert_eq!(parse_json(json.as_bytes()), Ok(expected));
    }

    #[test]
    fn what_is_no_list_of_strings_is_refused() {
        for wrong in [
            "",
            "null",
            "{}",
            "\"a\"",
            "[",
            "[\"a\"",
            "[\"a\",]",
            "[,]",
            "[1]",
            "[[\"a\"]]",
            "[\"a\"] x",
            "[\"\\u0000\"]",
            "[\"\\ud800\"]",
            "[\"\\ud800\\u0041\"]",
            "[\"\\x\"]",
            "[\"\\u12\"]",
            "[\"a\" \"b\"]",
            "[\"\0\"]",
            "[\"\\udc00\"]",
        ] {
            assert!(parse_json(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
        assert!(parse_json(b"[\"\xff\"]").is_err());
        assert!(
            parse_json(&[b"[\"".to_vec(), vec![b'a'; MAX_JSON_BYTES], b"\"]".to_vec()].concat())
                .is_err()
        );
    }

    #[test]
    fn two_ways_at_once_are_refused_by_name() {
        let both = CommandSettings {
            command: bytes("a"),
            json: bytes("[\"b\"]"),
            arguments: None,
        };
        assert!(
            choose(both, vec![])
                .unwrap_err()
                .0
                .contains("AGENT_COMMAND and AGENT_COMMAND_JSON")
        );
        let command = || CommandSettings {
            command: bytes("a"),
            ..CommandSettings::default()
        };
        let refused = choose(command(), texts(&["b"])).unwrap_err().0;
        assert!(
            refused.contains("AGENT_COMMAND and the arguments"),
            "{refused}"
        );
        let lone = CommandSettings {
            arguments: bytes("x"),
            ..CommandSettings::default()
        };
        assert!(
            choose(lone, texts(&["b"]))
                .unwrap_err()
                .0
                .contains("AGENT_ARGS is set")
        );
        assert!(
            choose(CommandSettings::default(), vec![])
                .unwrap_err()
                .0
                .contains("no command")
        );
    }

    #[test]
    fn arguments_are_a_program_or_a_line_for_a_shell() {
        let from = |list: &[&str]| choose(CommandSettings::default(), texts(list));
        assert_eq!(
            from(&["a", "--shell", ""]).unwrap(),
            texts(&["a", "--shell", ""])
        );
        assert_eq!(from(&["--", "--shell"]).unwrap(), texts(&["--shell"]));
        assert_eq!(
            from(&["--shell", "a b"]).unwrap(),
            texts(&["bash", "-lc", "a b"])
        );
        for wrong in [
            &["--shell"][..],
            &["--shell", "a", "b"],
            &["--shell", ""],
            &["--"],
            &["-x"],
            &[""],
        ] {
            assert!(from(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_list_of_texts_survives_json(list in proptest::collection::vec("[^\0]{0,20}", 1..10)) {
            let quoted: Vec<_> = list.iter().map(|text| {
                let inner = text.chars().map(|c| match c {
                    '"' | '\\' => format!("\\{c}"),
                    _ if c.is_control() => c.to_string().encode_utf16().map(|u| format!("\\u{u:04x}")).collect(),
                    _ => c.to_string(),
                });
                format!("\"{}\"", inner.collect::<String>())
            }).collect();
            let json = format!("[{}]", quoted.join(","));
            let list: Vec<_> = list.into_iter().map(String::into_bytes).collect();
            prop_assert_eq!(parse_json(json.as_bytes()), Ok(list));
        }

        #[test]
        fn words_hold_no_white_space_and_lose_nothing_else(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
            let words: Vec<_> = split(&text).collect();
            prop_assert!(words.iter().all(|word| !word.is_empty() && !word.iter().any(is_space)));
            let rest: Vec<_> = text.iter().copied().filter(|byte| !is_space(byte)).collect();
            prop_assert_eq!(words.concat(), rest);
        }
    }
}
