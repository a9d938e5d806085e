//! Is one method better than another, and how sure is that?
//!
//! Everything is paired: two methods answer the same examples. Definitions are those of the project's benchmark
//! specification; scores lie in [0, 1], so differences and intervals do too (times 100 they are points).

mod bootstrap;
mod correlation;
mod distribution;
mod paired;

pub use bootstrap::{Bootstrap, Interval, Unit};
pub use correlation::{pearson, spearman};
pub use distribution::{Summary, quantile};
pub(crate) use distribution::{mean_of_defined, refuse_nan};
pub use paired::{Anatomy, Outcomes, TTest, differences, holm};
