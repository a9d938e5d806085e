//! What was typed after `cargo xtask load`, `gap` and `soak`.

use std::path::PathBuf;

use crate::usage::{self, Usage, at_least_one};

/// The settings of all.
#[derive(Debug, PartialEq)]
pub(super) struct Options {
    pub(super) json: bool,
    pub(super) model: String,
    pub(super) methods: Vec<String>,
    pub(super) kv_mebibytes: usize,
    pub(super) prompt_tokens: usize,
    pub(super) tokens: usize,
    pub(super) requests: usize,
    pub(super) prefill_chunk: usize,
    pub(super) threads: Option<usize>,
    pub(super) inertiakv: Option<PathBuf>,
}

impl Options {
    /// Conversations of 4,096 tokens, more than fit.
    pub(super) fn load() -> Self {
        Self {
            json: false,
            model: "smollm2-135m".to_owned(),
            methods: vec!["full".to_owned(), "inertia:ratio=0.9".to_owned()],
            kv_mebibytes: 448,
            prompt_tokens: 4096,
            tokens: 512,
            requests: 48,
            prefill_chunk: 512,
            threads: None,
            inertiakv: None,
        }
    }

    /// Four short conversations that are still answered when a long prompt has been prefilled.
    pub(super) fn gap() -> Self {
        Self {
            methods: vec!["full".to_owned()],
            tokens: 1500,
            requests: 4,
            ..Self::load()
        }
    }

    /// A mix that never fits all at once.
    pub(super) fn soak() -> Self {
        Self {
            kv_mebibytes: 160,
            prompt_tokens: 1500,
            tokens: 96,
            requests: 240,
            prefill_chunk: 256,
            methods: [
                "inertia",
                "full",
                "h2o:tokens=64",
                "inertia:coupling=per-head",
                "snapkv:ratio=0.5+inertia",
            ]
            .map(str::to_owned)
            .to_vec(),
            ..Self::load()
        }
    }

    pub(super) fn parse(mut self, task: &str, arguments: &[&str]) -> Result<Self, Usage> {
        let mut arguments = arguments.iter();
        while let Some(&name) = arguments.next() {
            let mut value = || usage::value(name, &mut arguments);
            match name {
                "--json" => self.json = true,
                "--model" => value()?.clone_into(&mut self.model),
                "--methods" => self.methods = value()?.split(';').map(str::to_owned).collect(),
                "--kv-mib" => self.kv_mebibytes = at_least_one(name, value()?)?,
                "--prompt-tokens" => self.prompt_tokens = at_least_one(name, value()?)?,
                "--tokens" => self.tokens = at_least_one(name, value()?)?,
                "--requests" => self.requests = at_least_one(name, value()?)?,
                "--prefill-chunk" => self.prefill_chunk = at_least_one(name, value()?)?,
                "--threads" => self.threads = Some(at_least_one(name, value()?)?),
                "--inertiakv" => self.inertiakv = Some(value()?.into()),
                _ => return Err(Usage(format!("unknown option `{name}` of `{task}`"))),
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn options_replace_the_defaults() {
        let options = Options::load().parse("load", &["--methods", "full;h2o", "--kv-mib", "64"]);
        let options = options.expect("they are right");
        assert_eq!(options.methods, ["full", "h2o"]);
        assert_eq!((options.kv_mebibytes, options.tokens), (64, Options::load().tokens));
        for wrong in [&["--kv-mib"][..], &["--kv-mib", "0"], &["--fast"]] {
            assert!(Options::load().parse("load", wrong).is_err(), "{wrong:?}");
        }
    }
}
