//! Linear layer for few rows, as in a decode step. It reads the weights once, in order; libtorch's
//! implementation copies or reorders them on every call.

#![expect(
    unsafe_code,
    reason = "calls C++ with pointers of live, contiguous tensors whose sizes are checked here"
)]
#![expect(
    non_snake_case,
    reason = "tensors carry capital shape suffixes: M rows, K inputs, N outputs"
)]

use std::ffi::{c_char, c_void};
use std::sync::OnceLock;

use tch::{Device, Kind, Tensor};

use crate::{CollectiveError, ffi};

unsafe extern "C" {
    fn rljob_linear_supported() -> bool;
    fn rljob_linear(
        x: *const c_void,
        w: *const c_void,
        half: bool,
        y: *mut f32,
        m: i64,
        k: i64,
        n: i64,
    ) -> *mut c_char;
}

/// Maximum rows of this kernel; libtorch's matrix multiplication is faster for more.
const FEW: i64 = 32;

/// `x · weightᵀ`, `[M, K]` and `[N, K]` to `[M, N]`, both fp32 or both bfloat16 and on the CPU.
/// Sums are fp32. With few rows and AVX2, the bits of a row's result do not depend on other rows;
/// otherwise libtorch computes the product.
///
/// # Errors
/// Shapes or kinds do not match.
pub fn linear(x_MK: &Tensor, weight_NK: &Tensor) -> Result<Tensor, CollectiveError> {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    // SAFETY: reads the processor's features.
    let supported = *SUPPORTED.get_or_init(|| unsafe { rljob_linear_supported() });
    let place = || format!("{:?} by {:?}", x_MK.size(), weight_NK.size());
    let failed = |message| CollectiveError {
        operation: "compute a linear layer".to_owned(),
        place: place(),
        message,
    };
    let computed = if supported && fits(x_MK, weight_NK) {
        few_rows(x_MK, weight_NK)
    } else {
        Ok(x_MK.f_linear(weight_NK, None::<Tensor>))
    };
    computed.map_err(failed)?.map_err(|error| failed(error.to_string()))
}

/// [`linear`] in parts of few rows, so that with AVX2 the bits of a row's result do not depend on
/// the number of rows.
///
/// # Errors
/// As [`linear`].
pub fn linear_by_rows(x_MK: &Tensor, weight_NK: &Tensor) -> Result<Tensor, CollectiveError> {
    if x_MK.size().first().is_none_or(|rows| *rows <= FEW) {
        return linear(x_MK, weight_NK);
    }
    let failed = |error: tch::TchError| CollectiveError {
        operation: "split a linear layer".to_owned(),
        place: format!("{:?}", x_MK.size()),
        message: error.to_string(),
    };
    let parts = x_MK.f_split(FEW, 0).map_err(failed)?;
    let parts = parts.iter().map(|part| linear(part, weight_NK)).collect::<Result<Vec<_>, _>>()?;
    Tensor::f_cat(&parts, 0).map_err(failed)
}

fn fits(x_MK: &Tensor, weight_NK: &Tensor) -> bool {
    let (x, weight) = (x_MK.size(), weight_NK.size());
    let shapes =
        matches!((x.as_slice(), weight.as_slice()), ([m, k], [_, l]) if *m <= FEW && k == l);
    let kinds =
        x_MK.kind() == weight_NK.kind() && matches!(x_MK.kind(), Kind::Float | Kind::BFloat16);
    shapes
        && kinds
        && x_MK.device() == Device::Cpu
        && weight_NK.device() == Device::Cpu
        && weight_NK.is_contiguous()
}

/// The outer error is from the kernel, the inner one from libtorch.
fn few_rows(x_MK: &Tensor, weight_NK: &Tensor) -> Result<Result<Tensor, tch::TchError>, String> {
    let (m, k, n) = (x_MK.size()[0], x_MK.size()[1], weight_NK.size()[0]);
    let kind = x_MK.kind();
    let prepared = x_MK
        .f_contiguous()
        .and_then(|x| Ok((x, Tensor::f_empty([m, n], (Kind::Float, Device::Cpu))?)));
    let (x, y) = match prepared {
        Ok(tensors) => tensors,
        Err(error) => return Ok(Err(error)),
    };
    // SAFETY: `x` and the weights are contiguous, with m·k and n·k elements of the kind that `half`
    // selects; `y` has m·n fp32 elements; all outlive the call.
    let message = unsafe {
        rljob_linear(
            x.data_ptr().cast_const(),
            weight_NK.data_ptr().cast_const(),
            kind == Kind::BFloat16,
            y.data_ptr().cast(),
            m,
            k,
            n,
        )
    };
    ffi::check(message).map(|()| y.f_to_kind(kind))
}
