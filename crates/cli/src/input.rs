//! Where does the text come from?

use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, anyhow, bail};

use crate::args::InputArguments;
use crate::failure::usage;

/// Most bytes of a prompt. It is more text than any context holds, and less than memory.
const MOST_PROMPT_BYTES: u64 = 64 << 20;

/// Most bytes of a text to score, which takes days for so much.
const MOST_TEXT_BYTES: u64 = 256 << 20;

/// What some editors put before UTF-8 text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The text of `-p`, of the file of `-f`, or of standard input.
pub(crate) fn text(arguments: &InputArguments) -> anyhow::Result<String> {
    let text = match (&arguments.prompt, &arguments.file) {
        (Some(prompt), _) => prompt.clone(),
        (None, Some(file)) => read_path(file, MOST_PROMPT_BYTES)?,
        (None, None) if io::stdin().is_terminal() => {
            return Err(usage(
                "there is no prompt; give one with -p TEXT, -f FILE, or through a pipe",
            ));
        }
        (None, None) => read_stdin(MOST_PROMPT_BYTES)?,
    };
    if text.trim().is_empty() {
        return Err(usage(
            "the prompt is empty; give some text with -p TEXT, -f FILE, or through a pipe",
        ));
    }
    if arguments
        .question
        .as_ref()
        .is_some_and(|question| question.trim().is_empty())
    {
        return Err(usage(
            "the question is empty; leave --question out to generate right after the prompt",
        ));
    }
    Ok(text)
}

/// The text of a file of any length that can be scored; `-` is standard input.
pub(crate) fn long_text(path: &Path) -> anyhow::Result<String> {
    read_path(path, MOST_TEXT_BYTES)
}

/// The lines of standard input as they come. Bytes that are not UTF-8 are left to the caller to refuse.
pub(crate) struct Lines {
    /// Whether a byte-order mark may still come.
    at_start: bool,
}

impl Lines {
    pub(crate) fn new() -> Self {
        Self { at_start: true }
    }

    /// The next line without its end; none when the input ends.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        io::stdin()
            .lock()
            .take(MOST_PROMPT_BYTES + 1)
            .read_until(b'\n', &mut line)
            .context("cannot read what you wrote")?;
        check_size(&line, MOST_PROMPT_BYTES, "a line")?;
        if line.is_empty() {
            return Ok(None);
        }
        if line.ends_with(b"\n") {
            line.pop();
        }
        if std::mem::take(&mut self.at_start) && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(Some(line))
    }
}

fn read_path(path: &Path, most: u64) -> anyhow::Result<String> {
    if path == Path::new("-") {
        return read_stdin(most);
    }
    if path.is_dir() {
        bail!("`{}` is a folder; give a text file", path.display());
    }
    let name = format!("`{}`", path.display());
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    read(file, &name, most)
}

fn read_stdin(most: u64) -> anyhow::Result<String> {
    read(io::stdin().lock(), "standard input", most)
}

/// The text of a source that may have no end.
fn read(source: impl Read, name: &str, most: u64) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    source
        .take(most + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    check_size(&bytes, most, name)?;
    decode(bytes, name)
}

fn check_size(bytes: &[u8], most: u64, name: &str) -> anyhow::Result<()> {
    if bytes.len() as u64 > most {
        bail!(
            "{name} has more than {} MiB, the most that is read; give a part of it, for example with `head -c`",
            most >> 20
        );
    }
    Ok(())
}

/// Text must be UTF-8: guessing another encoding would change what the model reads without a word. A byte-order mark at
/// the beginning is no text and is left out.
fn decode(bytes: Vec<u8>, source: &str) -> anyhow::Result<String> {
    if let Some(encoding) = wide_encoding(&bytes) {
        bail!(
            "{source} is {encoding} text, not UTF-8; convert it first, for example with `iconv -f {encoding} -t UTF-8`"
        );
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow!("{source} is not UTF-8 text (byte {at}); convert it first, for example with `iconv -t UTF-8`")
    })?;
    if text.as_bytes().starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(text)
}

/// The encoding of text in units of two or four bytes. Without a mark it shows in a first character that is ASCII; that
/// would pass for UTF-8 with zeros in between.
fn wide_encoding(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some("UTF-32"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("UTF-16"),
        [first, 0, third, ..] if *first != 0 && *third != 0 => Some("UTF-16LE"),
        [0, second, 0, ..] if *second != 0 => Some("UTF-16BE"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{decode, read};

    #[test]
    fn a_byte_order_mark_is_no_text() {
        let text = |bytes: &[u8]| decode(bytes.to_vec(), "it").map_err(|error| error.to_string());
        assert_eq!(text("\u{feff}a\u{feff}".as_bytes()), Ok("a\u{feff}".to_owned()));
        assert_eq!(text(b""), Ok(String::new()));
        let wide: Vec<u8> = "\u{feff}hi".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (bytes, encoding) in [
            (&wide[..], "UTF-16 "),
            (&wide[2..], "UTF-16LE"),
            (b"\0h\0i", "UTF-16BE"),
        ] {
            let error = text(bytes).expect_err("not UTF-8");
            assert!(error.contains(encoding) && error.contains("iconv"), "{error}");
        }
    }

    #[test]
    fn a_source_without_an_end_is_refused() {
        assert_eq!(read(&b"abcd"[..], "it", 4).expect("small enough"), "abcd");
        let error = read(std::io::repeat(b'a'), "it", 1 << 20)
            .expect_err("too large")
            .to_string();
        assert!(error.contains("more than 1 MiB"), "{error}");
    }
}
