//! Numbers of an update that stay on the device.

use tch::{Kind, TchError, Tensor};

/// The factor of a gradient with these squares, fp32 of one element; not a number if loss or norm
/// is not finite.
pub fn scale(loss: &Tensor, squares: &Tensor, clip: f64) -> Result<Tensor, TchError> {
    let norm = squares.f_sqrt()?;
    let scale = if clip > 0.0 {
        norm.f_full_like(clip)?.f_div(&norm.f_add_scalar(1e-6)?)?.f_clamp_max(1.0)?
    } else {
        norm.f_ones_like()?
    };
    let finite = loss.f_isfinite()?.f_logical_and(&norm.f_isfinite()?)?;
    let none = norm.f_full_like(f64::NAN)?;
    scale.f_where_self(&finite, &none)?.f_to_kind(Kind::Float)
}

/// Sum of the squares of `flat` in fp32, `part` elements at a time, added in fp64. In fp64 alone,
/// libtorch makes a copy first, which takes five times as long.
pub fn squares(flat: &Tensor, part: i64) -> Result<Tensor, TchError> {
    let length = flat.numel() as i64;
    let sum = Tensor::f_zeros([], (Kind::Double, flat.device()))?;
    for start in (0..length).step_by(part as usize) {
        let norm = flat
            .f_narrow(0, start, part.min(length - start))?
            .f_norm_scalaropt_dtype(2, Kind::Float)?;
        let _ = sum.shallow_clone().f_add_(&norm.f_to_kind(Kind::Double)?.f_square()?)?;
    }
    Ok(sum)
}
