//! Splits matrix products into items of fixed size and hands them to the kernels of an instruction set.

use std::ops::Range;

use super::activations::{Activations, TILE};
use super::layout::{GROUP, Layout};
use super::{Linear, scalar};
use crate::isa::Isa;
use crate::threads::ThreadPool;

#[cfg(target_arch = "aarch64")]
use super::neon;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// Weight bytes of an item when there are few rows: long enough to hide the hand-over, short enough to balance.
const BYTES_PER_ITEM: usize = 32 << 10;

/// Up to this many rows weights are better unpacked again than kept unpacked: reading them takes longest.
pub(super) const FEW_ROWS: usize = 16;

/// Groups of 16 output features of an item when there are several rows.
pub(super) const PANEL_GROUPS: usize = 2;

/// Rows of an item: each unpacks the weights once.
const ROWS_PER_ITEM: usize = 256;

/// Multiplies the rows of `x` by several weights in one job of the pool: each `out` is `[rows][out_features]`.
///
/// # Panics
/// If the columns of `x` are not the input features of a weight, an output has the wrong length, or a weight needs
/// floats and `x` was set without.
pub fn matmul(pool: &ThreadPool, x: &Activations, jobs: &mut [(&Linear, &mut [f32])]) {
    matmul_beside(pool, x, jobs, &mut || ());
}

/// [`matmul`], but the calling thread does something else first, while the others begin; see
/// [`ThreadPool::run_beside`].
///
/// # Panics
/// As [`matmul`], and if `beside` does.
pub fn matmul_beside(pool: &ThreadPool, x: &Activations, jobs: &mut [(&Linear, &mut [f32])], beside: &mut dyn FnMut()) {
    run_jobs(Isa::detect(), pool, x, jobs, beside);
}

/// [`matmul`] on a chosen instruction set, for tests and benchmarks.
///
/// # Panics
/// As [`matmul`], and if this machine lacks the set.
#[doc(hidden)]
pub fn matmul_with(isa: Isa, pool: &ThreadPool, x: &Activations, jobs: &mut [(&Linear, &mut [f32])]) {
    assert!(isa.is_available(), "this machine has no {isa}");
    run_jobs(isa, pool, x, jobs, &mut || ());
}

/// Runs the jobs on a set that this machine has.
fn run_jobs(
    isa: Isa,
    pool: &ThreadPool,
    x: &Activations,
    jobs: &mut [(&Linear, &mut [f32])],
    beside: &mut dyn FnMut(),
) {
    if x.rows() == 0 {
        return beside();
    }
    let tasks: Vec<Task> = jobs.iter_mut().map(|(linear, out)| Task::new(x, linear, out)).collect();
    let items = tasks.iter().map(|task| task.items).sum();
    let run_item = |mut item| {
        for task in &tasks {
            if item < task.items {
                let unit = task.unit(x, item);
                // SAFETY: the set is available; units are in bounds and write disjoint parts of outputs that outlive
                // this call.
                unsafe { run(isa, &unit) };
                return;
            }
            item -= task.items;
        }
    };
    pool.run_beside(items, &run_item, beside);
}

/// Calls one of two functions that are compiled once per storage format: the first for quantised weights, the second for
/// floats.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! by_format {
    ($unit:expr, $quantised:ident, $floats:ident) => {{
        use $crate::linear::{WeightType, layout::format};
        match $unit.layout.weight_type() {
            WeightType::Q4_0 => $quantised::<{ format::Q4_0 }>($unit),
            WeightType::Q4_1 => $quantised::<{ format::Q4_1 }>($unit),
            WeightType::Q5_0 => $quantised::<{ format::Q5_0 }>($unit),
            WeightType::Q5_1 => $quantised::<{ format::Q5_1 }>($unit),
            WeightType::Q8_0 => $quantised::<{ format::Q8_0 }>($unit),
            WeightType::Q4K => $quantised::<{ format::Q4K }>($unit),
            WeightType::Q5K => $quantised::<{ format::Q5K }>($unit),
            WeightType::Q6K => $quantised::<{ format::Q6K }>($unit),
            WeightType::F16 => $floats::<{ format::F16 }>($unit),
            WeightType::BF16 => $floats::<{ format::BF16 }>($unit),
            WeightType::F32 => $floats::<{ format::F32 }>($unit),
        }
    }};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use by_format;

/// A weight, its output, and how the work on them is divided.
struct Task<'a> {
    linear: &'a Linear,
    out: *mut f32,
    groups_per_item: usize,
    /// Items over the groups; each is repeated for every [`ROWS_PER_ITEM`] rows.
    panels: usize,
    items: usize,
}

// SAFETY: `out` is written in disjoint parts, see `Task::unit`; the rest is shared and immutable.
unsafe impl Sync for Task<'_> {}

/// A rectangle of one output: groups of features and rows.
pub(super) struct Unit<'a> {
    pub(super) layout: &'a Layout,
    /// All groups of the weight.
    pub(super) weights: &'a [u8],
    pub(super) x: &'a Activations,
    pub(super) groups: Range<usize>,
    /// Starts at a multiple of [`TILE`].
    pub(super) rows: Range<usize>,
    /// `[rows of x][out_features]`
    pub(super) out: *mut f32,
    pub(super) out_features: usize,
}

impl Unit<'_> {
    /// The bytes of a group of 16 features.
    pub(super) fn group(&self, group: usize) -> &[u8] {
        &self.weights[group * self.layout.group_bytes()..][..self.layout.group_bytes()]
    }

    /// The part of the unit for some of its groups.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) fn part(&self, groups: Range<usize>) -> Self {
        Self {
            groups,
            rows: self.rows.clone(),
            ..*self
        }
    }

    /// Features of a group that exist: 16 but for the last group.
    pub(super) fn columns(&self, group: usize) -> usize {
        GROUP.min(self.out_features - group * GROUP)
    }

    /// The place of an output value.
    ///
    /// # Safety
    /// Row and group must be inside the unit.
    pub(super) unsafe fn place(&self, row: usize, group: usize) -> *mut f32 {
        debug_assert!(self.rows.contains(&row) && self.groups.contains(&group));
        // SAFETY: inside the output, whose length `Task::new` has checked.
        unsafe { self.out.add(row * self.out_features + group * GROUP) }
    }

    /// Tiles of rows: number in `x`, and the rows that exist.
    pub(super) fn tiles(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        self.rows
            .clone()
            .step_by(TILE)
            .map(|row| (row / TILE, row..self.rows.end.min(row + TILE)))
    }
}

impl<'a> Task<'a> {
    fn new(x: &Activations, linear: &'a Linear, out: &mut [f32]) -> Self {
        assert_eq!(
            x.columns(),
            linear.in_features,
            "input columns and input features of {linear:?}"
        );
        assert_eq!(
            Some(out.len()),
            x.rows().checked_mul(linear.out_features),
            "one output value per row and output feature of {linear:?}"
        );
        assert!(
            !linear.needs_floats() || x.floats().len() == x.rows() * x.columns(),
            "{linear:?} needs floats; use Activations::set"
        );
        let groups_per_item = if x.rows() <= FEW_ROWS {
            (BYTES_PER_ITEM / linear.layout.group_bytes()).max(1)
        } else {
            PANEL_GROUPS
        };
        let panels = linear.layout.groups().div_ceil(groups_per_item);
        Self {
            linear,
            out: out.as_mut_ptr(),
            groups_per_item,
            panels,
            items: panels * x.rows().div_ceil(ROWS_PER_ITEM),
        }
    }

    /// Units of different items do not overlap, and together they cover the output.
    fn unit<'b>(&'b self, x: &'b Activations, item: usize) -> Unit<'b> {
        let group = item % self.panels * self.groups_per_item;
        let row = item / self.panels * ROWS_PER_ITEM;
        Unit {
            layout: &self.linear.layout,
            weights: self.linear.data.as_slice(),
            x,
            groups: group..self.linear.layout.groups().min(group + self.groups_per_item),
            rows: row..x.rows().min(row + ROWS_PER_ITEM),
            out: self.out,
            out_features: self.linear.out_features,
        }
    }
}

/// # Safety
/// The machine has the set, the unit is inside its weight and output, and nobody else touches its part of the output.
unsafe fn run(isa: Isa, unit: &Unit) {
    // SAFETY: as promised by the caller.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::run(unit),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::run(unit),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::run(unit),
            _ => scalar::run(unit),
        }
    }
}
