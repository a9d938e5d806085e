//! Where does the text come from?

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, bail};

use crate::args::InputArguments;
use crate::failure::usage;

/// The text of `-p`, of the file of `-f`, or of standard input.
pub(crate) fn text(arguments: &InputArguments) -> anyhow::Result<String> {
    let text = match (&arguments.prompt, &arguments.file) {
        (Some(prompt), _) => prompt.clone(),
        (None, Some(file)) => read_file(file)?,
        (None, None) if io::stdin().is_terminal() => {
            return Err(usage(
                "there is no prompt; give one with -p TEXT, -f FILE, or through a pipe",
            ));
        }
        (None, None) => read_stdin()?,
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

/// The text of a file; `-` is standard input.
pub(crate) fn read_file(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        return read_stdin();
    }
    if path.is_dir() {
        bail!("`{}` is a folder; give a text file", path.display());
    }
    let bytes = fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    decode(bytes, &format!("`{}`", path.display()))
}

fn read_stdin() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .context("cannot read standard input")?;
    decode(bytes, "standard input")
}

/// Text must be UTF-8: guessing another encoding would change what the model reads without a word.
fn decode(bytes: Vec<u8>, source: &str) -> anyhow::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!("{source} is not UTF-8 text (byte {at}); convert it first, for example with `iconv -t UTF-8`")
    })
}
