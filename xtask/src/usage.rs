//! What is typed after a task, and what is wrong with it.

use std::fmt;

/// What is wrong with what was typed; the program ends with code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The value of the option `name`, which comes next.
pub(crate) fn value<'a>(name: &str, arguments: &mut std::slice::Iter<'_, &'a str>) -> Result<&'a str, Usage> {
    let value = arguments.next().copied();
    value.ok_or_else(|| Usage(format!("`{name}` needs a value")))
}

/// The value of the option `name` as a number.
pub(crate) fn at_least_one(name: &str, text: &str) -> Result<usize, Usage> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| Usage(format!("`{name}` is a whole number of at least 1, not `{text}`")))
}
