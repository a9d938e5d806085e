//! What was typed after `cargo xtask peers`.

use std::path::PathBuf;

use super::machine;
use super::points::MODELS;
use crate::usage::{self, Usage, at_least_one};

/// The settings of a run.
#[derive(Debug, PartialEq)]
pub(super) struct Options {
    pub(super) quick: bool,
    pub(super) json: bool,
    pub(super) models: Vec<&'static str>,
    pub(super) threads: usize,
    pub(super) rounds: usize,
    pub(super) llama_bench: Option<PathBuf>,
    pub(super) inertiakv: Option<PathBuf>,
}

/// Rounds of a run that is not quick.
const ROUNDS: usize = 3;

impl Options {
    pub(super) fn parse(arguments: &[&str]) -> Result<Self, Usage> {
        let mut options = Self {
            quick: false,
            json: false,
            models: MODELS.to_vec(),
            threads: machine::cores(),
            rounds: ROUNDS,
            llama_bench: None,
            inertiakv: None,
        };
        let mut rounds = None;
        let mut arguments = arguments.iter();
        while let Some(&name) = arguments.next() {
            let mut value = || usage::value(name, &mut arguments);
            match name {
                "--quick" => options.quick = true,
                "--json" => options.json = true,
                "--models" => options.models = models(value()?)?,
                "--threads" => options.threads = at_least_one(name, value()?)?,
                "--rounds" => rounds = Some(at_least_one(name, value()?)?),
                "--llama-bench" => options.llama_bench = Some(value()?.into()),
                "--inertiakv" => options.inertiakv = Some(value()?.into()),
                _ => return Err(Usage(format!("unknown option `{name}` of `peers`"))),
            }
        }
        if options.quick && rounds.is_some() {
            return Err(Usage("`--quick` is one round; leave `--rounds` out".to_owned()));
        }
        options.rounds = if options.quick { 1 } else { rounds.unwrap_or(ROUNDS) };
        Ok(options)
    }
}

fn models(text: &str) -> Result<Vec<&'static str>, Usage> {
    text.split(',')
        .map(|name| {
            let known = MODELS.into_iter().find(|model| *model == name);
            known.ok_or_else(|| {
                Usage(format!(
                    "no targets for the model `{name}`; there are {}",
                    MODELS.join(" and ")
                ))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn options_are_read() {
        let options = Options::parse(&["--models", "qwen2.5-coder-0.5b", "--threads", "3", "--rounds", "5"]).unwrap();
        assert_eq!(
            (options.models.as_slice(), options.threads, options.rounds),
            (&["qwen2.5-coder-0.5b"][..], 3, 5)
        );
        assert_eq!(Options::parse(&["--quick"]).unwrap().rounds, 1);
        assert_eq!(Options::parse(&[]).unwrap().rounds, 3);
    }

    #[test]
    fn mistakes_say_what_is_right() {
        let message = |arguments: &[&str]| Options::parse(arguments).unwrap_err().to_string();
        assert!(message(&["--models", "gpt"]).contains("smollm2-135m"));
        assert!(message(&["--threads", "0"]).contains("at least 1"));
        assert!(message(&["--threads"]).contains("needs a value"));
        assert!(message(&["--quick", "--rounds", "2"]).contains("one round"));
        assert!(message(&["fast"]).contains("`fast`"));
    }
}
