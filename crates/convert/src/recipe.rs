//! Which encoding a tensor gets.

use shamrock_cmf::Encoding;

use crate::error::{Error, Result};
use crate::plan::Role;

/// Encodings of the large matrices. Small tensors have no choice: those that the block operator
/// adds are f32, all others f16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Routed and shared expert matrices: `q4tp`, `q8_2f` or `f16`.
    pub experts: Encoding,
    /// Other projections, embedding and head: `q8_2f`, `q8_row` or `f16`.
    pub dense: Encoding,
}

impl Default for Recipe {
    /// `q4tp` experts, everything else `q8_2f`.
    fn default() -> Self {
        Recipe { experts: Encoding::Q4tp, dense: Encoding::Q8TwoField }
    }
}

impl Recipe {
    /// Everything in half precision.
    pub const F16: Recipe = Recipe { experts: Encoding::F16, dense: Encoding::F16 };

    /// The encoding of a tensor in this role.
    pub fn encoding(&self, role: Role) -> Encoding {
        match role {
            Role::Expert => self.experts,
            Role::Dense => self.dense,
            Role::Small => Encoding::F16,
            Role::Exact => Encoding::F32,
        }
    }

    /// Checks that both encodings are offered.
    ///
    /// # Errors
    /// [`Error::Recipe`] with the choices.
    pub fn check(&self) -> Result<()> {
        if !matches!(self.experts, Encoding::Q4tp | Encoding::Q8TwoField | Encoding::F16) {
            let (option, found) = ("--experts", self.experts);
            return Err(Error::Recipe { option, found, choices: "q4tp, q8_2f, f16" });
        }
        if !matches!(self.dense, Encoding::Q8TwoField | Encoding::Q8Row | Encoding::F16) {
            let (option, found) = ("--dense", self.dense);
            return Err(Error::Recipe { option, found, choices: "q8_2f, q8_row, f16" });
        }
        Ok(())
    }

    /// Checks that `encoding`, chosen for `role`, can hold a tensor.
    pub(crate) fn check_fit(&self, name: &str, shape: &[usize], role: Role) -> Result<()> {
        match self.encoding(role).byte_len(shape) {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::Unfit {
                tensor: name.into(),
                problem: error.to_string(),
                hint: if role == Role::Expert { "--experts q8_2f" } else { "--dense q8_2f" },
            }),
        }
    }

    /// The header's `quant_type`: informational, but other readers know a closed set of names.
    pub(crate) fn quant_type(&self) -> &'static str {
        match self.experts {
            Encoding::Q4tp => "Q4_BLOCK",
            Encoding::Q8TwoField => "Q8_2F",
            _ => "F16",
        }
    }

    /// The header's `provenance.weight_quant`.
    pub(crate) fn label(&self) -> String {
        if self.experts == self.dense {
            self.experts.to_string()
        } else {
            format!("{} experts, {} dense", self.experts, self.dense)
        }
    }
}
