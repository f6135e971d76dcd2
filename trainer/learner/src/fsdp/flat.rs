//! Vectors of all blocks in one allocation, so that an operation on all of them is one kernel.

use rljob_kernels::pinned::PinnedVector;
use tch::{Device, Kind, Tensor};

use crate::model::ModelError;

/// Blocks start at multiples of this, as kernels and libraries expect.
const ALIGNMENT: i64 = 64;

/// A vector with a part for each block, and zeros between them.
#[derive(Debug)]
pub struct Flat {
    /// All blocks.
    pub whole: Tensor,
    /// Views of `whole`, by block.
    pub blocks: Vec<Tensor>,
    /// The memory, if it is the host's.
    _pinned: Option<PinnedVector>,
}

impl Flat {
    /// Zeros, with parts of these lengths.
    ///
    /// # Errors
    /// libtorch cannot allocate it.
    pub fn zeros(lengths: &[i64], kind: Kind, device: Device) -> Result<Self, ModelError> {
        let whole = Tensor::f_zeros([total(lengths)], (kind, device))?;
        Self::over(whole, lengths, None)
    }

    /// fp32 zeros in memory of the host that the GPU `device` accesses over PCIe.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn pinned(lengths: &[i64], device: Device) -> Result<Self, ModelError> {
        let pinned = PinnedVector::zeros(total(lengths), device)?;
        Self::over(pinned.tensor().shallow_clone(), lengths, Some(pinned))
    }

    /// An fp32 copy of `parts` in memory of the host that the GPU `device` accesses over PCIe.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn pinned_copy(parts: &[Tensor], device: Device) -> Result<Self, ModelError> {
        Self::pinned(&lengths(parts), device)?.filled(parts)
    }

    fn over(
        whole: Tensor,
        lengths: &[i64],
        pinned: Option<PinnedVector>,
    ) -> Result<Self, ModelError> {
        let mut start = 0;
        let mut blocks = Vec::with_capacity(lengths.len());
        for length in lengths {
            blocks.push(whole.f_narrow(0, start, *length)?);
            start += padded(*length);
        }
        Ok(Self { whole, blocks, _pinned: pinned })
    }

    /// A copy of `parts` on a device.
    ///
    /// # Errors
    /// libtorch cannot allocate it.
    pub fn of(parts: &[Tensor], kind: Kind, device: Device) -> Result<Self, ModelError> {
        Self::zeros(&lengths(parts), kind, device)?.filled(parts)
    }

    /// With the values of `parts`.
    fn filled(self, parts: &[Tensor]) -> Result<Self, ModelError> {
        for (target, part) in self.blocks.iter().zip(parts) {
            target.shallow_clone().f_copy_(part)?;
        }
        Ok(self)
    }
}

fn lengths(parts: &[Tensor]) -> Vec<i64> {
    parts.iter().map(|part| part.numel() as i64).collect()
}

fn padded(length: i64) -> i64 {
    (length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
}

fn total(lengths: &[i64]) -> i64 {
    lengths.iter().map(|length| padded(*length)).sum()
}

#[cfg(test)]
mod tests {
    use super::Flat;
    use tch::{Device, Kind, Tensor};

    #[test]
    fn parts_are_aligned_views_with_zeros_between() {
        let parts = [Tensor::from_slice(&[1_f32, 2.0, 3.0]), Tensor::from_slice(&[4_f32])];
        let flat = Flat::of(&parts, Kind::Float, Device::Cpu).unwrap();
        assert_eq!(flat.blocks, parts);
        let values = Vec::<f32>::try_from(&flat.whole).unwrap();
        assert_eq!((values.len(), &values[..4], values[64]), (128, &[1., 2., 3., 0.][..], 4.0));
    }
}
