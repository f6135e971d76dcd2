//! Kernels that compute rows or elements independently.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use tch::{Kind, Tensor};

use super::{ffi, floats, launched, pointer, stream};
use crate::operands::{AdamW, Direction, NormSaved, Operands};
use crate::{KernelError, rows};

/// Threads of all blocks of the derivative of RMSNorm: 512 for each multiprocessor of an H200. More
/// than needed elsewhere.
const NORM_THREADS: i64 = 512 * 132;

/// Threads that share a row of `width` values in RMSNorm: the fewest warps with which each has up
/// to 32 values in registers, at most 8 warps.
fn threads_of_row(width: i64) -> i64 {
    [32, 64, 128].into_iter().find(|threads| width <= threads * 32).unwrap_or(256)
}

pub fn rms_norm(
    x_TH: &Tensor,
    weight_H: &Tensor,
    epsilon: f64,
) -> Result<(Tensor, Tensor), KernelError> {
    let (y_TH, scale_T1) = (x_TH.f_empty_like()?, floats([rows(x_TH), 1], x_TH)?);
    let width = weight_H.numel() as i64;
    // SAFETY: the tensors are alive, contiguous and of these sizes.
    let code = unsafe {
        ffi::rljob_rms_norm(
            pointer(x_TH),
            pointer(weight_H),
            pointer(&y_TH),
            pointer(&scale_T1),
            rows(x_TH),
            width,
            threads_of_row(width),
            epsilon as f32,
            stream(),
        )
    };
    launched("run RMSNorm", code)?;
    Ok((y_TH, scale_T1))
}

pub fn rms_norm_backward(
    dy_TH: &Tensor,
    saved: &NormSaved,
    weight_H: &Tensor,
    residual_TH: Option<&Tensor>,
) -> Result<(Tensor, Tensor), KernelError> {
    let (num_rows, width) = (rows(dy_TH), weight_H.numel() as i64);
    let threads = threads_of_row(width);
    let blocks = (NORM_THREADS / threads).min(num_rows);
    let (dx_TH, partial) = (dy_TH.f_empty_like()?, floats([blocks, width], dy_TH)?);
    // SAFETY: as for rms_norm; a null residual is not read.
    let code = unsafe {
        ffi::rljob_rms_norm_backward(
            pointer(dy_TH),
            pointer(&saved.x_TH),
            pointer(&saved.scale_T1),
            pointer(weight_H),
            residual_TH.map_or(std::ptr::null(), |tensor| pointer::<c_void>(tensor).cast_const()),
            pointer(&dx_TH),
            pointer(&partial),
            blocks,
            num_rows,
            width,
            threads,
            stream(),
        )
    };
    launched("run the derivative of RMSNorm", code)?;
    let dweight_H = partial.f_sum_dim_intlist([0].as_slice(), false, Kind::Float)?;
    Ok((dx_TH, dweight_H))
}

pub fn swiglu(gate_up_T2F: &Tensor) -> Result<Tensor, KernelError> {
    let (num_rows, width) = (rows(gate_up_T2F), gate_up_T2F.size()[1] / 2);
    let options = (gate_up_T2F.kind(), gate_up_T2F.device());
    let y_TF = Tensor::f_empty([num_rows, width], options)?;
    // SAFETY: the tensors are alive, contiguous and of these sizes.
    let code = unsafe {
        ffi::rljob_swiglu(pointer(gate_up_T2F), pointer(&y_TF), num_rows, width, stream())
    };
    launched("run SwiGLU", code)?;
    Ok(y_TF)
}

pub fn swiglu_backward(
    dy_TF: &Tensor,
    gate_up_T2F: &Tensor,
) -> Result<(Tensor, Tensor), KernelError> {
    let (y_TF, dgate_up_T2F) = (dy_TF.f_empty_like()?, gate_up_T2F.f_empty_like()?);
    // SAFETY: the tensors are alive, contiguous and of these sizes.
    let code = unsafe {
        ffi::rljob_swiglu_backward(
            pointer(dy_TF),
            pointer(gate_up_T2F),
            pointer(&y_TF),
            pointer(&dgate_up_T2F),
            rows(dy_TF),
            dy_TF.size()[1],
            stream(),
        )
    };
    launched("run the derivative of SwiGLU", code)?;
    Ok((y_TF, dgate_up_T2F))
}

pub fn rotate(
    x_TW: &Tensor,
    tables: &[Tensor; 2],
    heads: i64,
    direction: Direction,
) -> Result<(), KernelError> {
    let sign = if direction == Direction::Forward { 1.0 } else { -1.0 };
    let [cos, sin] = tables;
    // SAFETY: the tensors are alive and contiguous; the rotated heads are within a row.
    let code = unsafe {
        ffi::rljob_rotate(
            pointer(x_TW),
            pointer(cos),
            pointer(sin),
            rows(x_TW),
            heads,
            2 * cos.size()[1],
            x_TW.size()[1],
            sign,
            stream(),
        )
    };
    launched("rotate heads", code)
}

pub fn adamw(operands: &Operands<'_>, settings: &AdamW) -> Result<(), KernelError> {
    let numbers = settings.numbers();
    // SAFETY: the tensors are alive, contiguous and of one length, the scale has one element; null
    // as a copy is not written, and a null scale not read.
    let code = unsafe {
        ffi::rljob_adamw(
            pointer(operands.weights),
            pointer(operands.gradient),
            pointer(operands.first_moment),
            pointer(operands.second_moment),
            operands.copy.map_or(null_mut(), pointer),
            operands.weights.numel() as i64,
            numbers.as_ptr(),
            operands.scale.map_or(null(), |scale| pointer::<f32>(scale).cast_const()),
            stream(),
        )
    };
    launched("run AdamW", code)
}

/// Log-probabilities, entropies and logarithms of the sums of exponentials, `[C]` each.
pub fn distribution(
    logits_CV: &Tensor,
    targets_C: &Tensor,
    temperature: f64,
) -> Result<[Tensor; 3], KernelError> {
    let num_rows = rows(logits_CV);
    let outputs = [
        floats([num_rows], logits_CV)?,
        floats([num_rows], logits_CV)?,
        floats([num_rows], logits_CV)?,
    ];
    let [logprobs_C, entropy_C, logsumexp_C] = &outputs;
    let targets_C = targets_C.f_contiguous()?;
    // SAFETY: the tensors are alive, contiguous and of these sizes; targets are in the vocabulary.
    let code = unsafe {
        ffi::rljob_distribution(
            pointer(logits_CV),
            pointer(&targets_C),
            pointer(logprobs_C),
            pointer(entropy_C),
            pointer(logsumexp_C),
            num_rows,
            logits_CV.size()[1],
            (1.0 / temperature) as f32,
            stream(),
        )
    };
    launched("compute log-probabilities", code)?;
    Ok(outputs)
}

/// Overwrites the logits by their derivative. `of_entropy` has the derivative with respect to the
/// entropy, and the entropy.
pub fn logits_gradient(
    logits_CV: &Tensor,
    targets_C: &Tensor,
    [gradient_C, logsumexp_C]: [&Tensor; 2],
    of_entropy: Option<[&Tensor; 2]>,
    temperature: f64,
) -> Result<(), KernelError> {
    let targets_C = targets_C.f_contiguous()?;
    let of_entropy = |index: usize| of_entropy.map_or(std::ptr::null(), |of| pointer(of[index]));
    // SAFETY: as for distribution.
    let code = unsafe {
        ffi::rljob_logits_gradient(
            pointer(logits_CV),
            pointer(&targets_C),
            pointer(gradient_C),
            pointer(logsumexp_C),
            of_entropy(0),
            of_entropy(1),
            rows(logits_CV),
            logits_CV.size()[1],
            (1.0 / temperature) as f32,
            stream(),
        )
    };
    launched("compute the derivative of log-probabilities", code)
}
