//! Linear layers over quantised weights: `out[row][feature] = sum over k of x[row][k] * weight[feature][k]`.
//!
//! A [`Linear`] is made from the bytes of a GGUF tensor. They are repacked once, at load, into blocks of 16 output
//! features by 32 inputs, so that one vector register holds the same four inputs of 16 features; every stored number
//! is kept as it is ([`Linear::row`] equals the definition of the format bit for bit). The input is quantised to 8-bit
//! integers with one scale per 32 values ([`Activations`]); products are summed exactly in integers inside a block and
//! by one chain of fused multiply-adds over the blocks, in order. Hence
//!
//! **Invariant:** an output value depends on its input row and its weight row alone: not on the number of rows computed
//! together, not on the number of threads and not on the instruction set. All of them give the same bits.

mod activations;
pub(crate) mod arena;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod encode;
mod gguf;
mod layout;
mod matmul;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
mod stored;
mod weight_type;

use std::fmt;

pub use activations::Activations;
pub use matmul::{matmul, matmul_beside, matmul_with};
pub use stored::StoredType;
pub use weight_type::WeightType;

use arena::Region;
use layout::Layout;

/// Why a weight cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinearError {
    /// The file uses a number format without kernels.
    #[error(
        "tensor type number {id} is not supported; use a file with weights in one of {supported}", supported = StoredType::names()
    )]
    UnsupportedType {
        /// The number in the tensor header.
        id: u32,
    },
    /// No number format is called so.
    #[error("there is no weight type `{name}`; choose one of {types}", types = StoredType::names())]
    UnknownName {
        /// The name given.
        name: String,
    },
    /// A dimension is zero.
    #[error("a weight of {out_features} x {in_features} holds nothing; the file is corrupt, fetch it again")]
    Empty {
        /// Rows of the weight.
        out_features: usize,
        /// Columns of the weight.
        in_features: usize,
    },
    /// A row does not consist of whole blocks.
    #[error(
        "rows of {in_features} values do not fill the blocks of {block} that {ty} stores; requantise the model to \
         another type"
    )]
    PartialBlock {
        /// Columns of the weight.
        in_features: usize,
        /// Values in a block.
        block: usize,
        /// Format of the weight.
        ty: WeightType,
    },
    /// The size of the weight exceeds the address space.
    #[error("a weight of {out_features} x {in_features} is too large for this machine; the file may be corrupt")]
    TooLarge {
        /// Rows of the weight.
        out_features: usize,
        /// Columns of the weight.
        in_features: usize,
    },
    /// The data is shorter or longer than the shape says.
    #[error(
        "the weight needs {expected} bytes, but {found} were given; the file is truncated or corrupt, fetch it again"
    )]
    WrongLength {
        /// Bytes that shape and type ask for.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The system refused memory.
    #[error("no memory for a weight of {bytes} bytes; close other programs or use a smaller model")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
}

/// The weight of a linear layer, repacked for the kernels and held once.
pub struct Linear {
    out_features: usize,
    in_features: usize,
    layout: Layout,
    data: Region,
}

impl Linear {
    /// Repacks the bytes of a GGUF tensor with `out_features` rows of `in_features` values.
    ///
    /// Nothing is allocated before the length of `data` has been checked against the shape.
    pub fn from_gguf(
        ty: WeightType,
        out_features: usize,
        in_features: usize,
        data: &[u8],
    ) -> Result<Self, LinearError> {
        if out_features == 0 || in_features == 0 {
            return Err(LinearError::Empty {
                out_features,
                in_features,
            });
        }
        if !in_features.is_multiple_of(ty.block_size()) {
            return Err(LinearError::PartialBlock {
                in_features,
                block: ty.block_size(),
                ty,
            });
        }
        let too_large = LinearError::TooLarge {
            out_features,
            in_features,
        };
        let expected = out_features
            .checked_mul(in_features)
            .and_then(|elements| ty.bytes_of(elements))
            .ok_or_else(|| too_large.clone())?;
        if data.len() != expected {
            return Err(LinearError::WrongLength {
                expected,
                found: data.len(),
            });
        }
        let layout = Layout::new(ty, out_features, in_features).ok_or(too_large)?;
        let mut region = Region::new(layout.bytes())?;
        layout.repack(data, region.as_mut_slice());
        Ok(Self {
            out_features,
            in_features,
            layout,
            data: region,
        })
    }

    /// Values of an input row.
    #[must_use]
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Values of an output row.
    #[must_use]
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// The number format of the weight.
    #[must_use]
    pub fn weight_type(&self) -> WeightType {
        self.layout.weight_type()
    }

    /// Bytes of memory that the repacked weight occupies.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layout.bytes()
    }

    /// Whether this weight multiplies the float rows of [`Activations`] rather than the quantised ones (F32, F16 and BF16).
    #[must_use]
    pub fn needs_floats(&self) -> bool {
        self.weight_type().is_float()
    }

    /// Writes row `index` of the weight as floats: the embedding of a token when the matrix is tied or a lookup table.
    ///
    /// The values are those of the format's definition, bit for bit ([`encode::decode`]).
    ///
    /// # Panics
    /// If `index` is not below [`out_features`](Self::out_features), or `out` does not hold
    /// [`in_features`](Self::in_features) values.
    pub fn row(&self, index: usize, out: &mut [f32]) {
        assert!(
            index < self.out_features,
            "row {index} of a weight with {} rows",
            self.out_features
        );
        assert_eq!(out.len(), self.in_features, "one value per input feature");
        self.layout.row(self.data.as_slice(), index, out);
    }
}

impl fmt::Debug for Linear {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Linear({} [{}, {}])",
            self.weight_type(),
            self.out_features,
            self.in_features
        )
    }
}
