//! Attention by graphs of cuDNN, built once for each bucket of sequences.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use tch::{Kind, Tensor};

use super::{check, ffi, floats, launched, pointer, stream};
use crate::operands::{AttentionSaved, Bucket, Heads, Segments, Sequences};
use crate::{KernelError, rows};

/// Keys of a segment up to which the deterministic derivative is the faster one: 0.33 instead of
/// 0.43 ms for 64 segments of 256 rows, 0.51 instead of 0.54 ms for 16 of 1,024, 0.81 instead of
/// 0.78 ms for 8 of 2,048 (H100, 12 heads of 128, `cargo bench --bench cuda`).
const FAST_DETERMINISTIC: i64 = 1024;

/// A graph of cuDNN.
struct Plan {
    graph: NonNull<c_void>,
    /// Bytes.
    workspace: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PlanKey {
    bucket: Bucket,
    causal: bool,
    heads: Heads,
    backward: bool,
    deterministic: bool,
    device: usize,
}

thread_local! {
    /// Graphs of this thread, whose handles of cuDNN they belong to.
    static PLANS: RefCell<HashMap<PlanKey, Rc<Plan>>> = RefCell::new(HashMap::new());
}

impl Plan {
    fn new(key: &PlanKey) -> Result<Self, KernelError> {
        let PlanKey { bucket, causal, heads, backward, deterministic, .. } = *key;
        let Bucket { segments, queries, keys, tokens } = bucket;
        let sizes = [segments, queries, keys, tokens, heads.queries, heads.keys, heads.size];
        let (mut graph, mut workspace) = (null_mut(), 0);
        let scale = 1.0 / (heads.size as f32).sqrt();
        // SAFETY: `sizes` has seven numbers; the outputs are valid for writes.
        let message = unsafe {
            ffi::rljob_attention_build(
                sizes.as_ptr(),
                causal,
                backward,
                deterministic,
                scale,
                &raw mut graph,
                &raw mut workspace,
            )
        };
        let operation = "build a graph of attention";
        check(operation, message)?;
        let graph = NonNull::new(graph).ok_or_else(|| KernelError::Cuda {
            operation,
            message: "no graph was returned".to_owned(),
        })?;
        Ok(Self { graph, workspace })
    }

    /// The graph for these segments; built if no earlier one serves them.
    fn of(call: &Call<'_>, backward: bool, like: &Tensor) -> Result<Rc<Self>, KernelError> {
        let device = if let tch::Device::Cuda(index) = like.device() { index } else { 0 };
        let key = PlanKey {
            bucket: call.segments.bucket,
            causal: call.segments.causal,
            heads: call.heads,
            backward,
            deterministic: backward
                && (call.deterministic || call.segments.bucket.keys <= FAST_DETERMINISTIC),
            device,
        };
        let found = PLANS.with_borrow(|plans| plans.get(&key).cloned());
        if let Some(plan) = found {
            return Ok(plan);
        }
        let plan = Rc::new(Self::new(&key)?);
        PLANS.with_borrow_mut(|plans| plans.insert(key, Rc::clone(&plan)));
        Ok(plan)
    }

    fn run(
        &self,
        operation: &'static str,
        tensors: [&Tensor; 3],
        call: &Call<'_>,
        derivatives: Option<[&Tensor; 2]>,
    ) -> Result<(), KernelError> {
        let options = (Kind::Uint8, tensors[0].device());
        let workspace = Tensor::f_empty([self.workspace.max(1)], options)?;
        let heads = call.heads;
        let mut pointers = [null_mut(); 11];
        let operands = tensors.into_iter().chain(&call.segments.inputs);
        let operands = operands.chain(derivatives.into_iter().flatten());
        for (slot, tensor) in pointers.iter_mut().zip(operands) {
            *slot = pointer(tensor);
        }
        // SAFETY: the graph and the tensors are alive; libtorch frees the workspace for later
        // operations of the same stream only.
        let message = unsafe {
            ffi::rljob_attention_run(
                self.graph.as_ptr(),
                pointers.as_ptr(),
                heads.queries,
                heads.keys,
                heads.size,
                pointer(&workspace),
                stream(),
            )
        };
        check(operation, message)
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: the graph came from rljob_attention_build and is freed once.
        unsafe { ffi::rljob_attention_free(self.graph.as_ptr()) };
    }
}

/// Attention of segments of queries to segments of keys.
#[derive(Clone, Copy)]
struct Call<'a> {
    segments: &'a Segments,
    heads: Heads,
    deterministic: bool,
}

impl Call<'_> {
    /// Writes outputs and statistics of the rows that are queries.
    fn forward(
        &self,
        qkv_TW: &Tensor,
        out_TH: &Tensor,
        statistics_TA: &Tensor,
    ) -> Result<(), KernelError> {
        let plan = Plan::of(self, false, qkv_TW)?;
        plan.run("run attention", [qkv_TW, out_TH, statistics_TA], self, None)
    }

    /// Writes the derivatives of the rows that are queries or keys.
    fn backward(
        &self,
        dout_TH: &Tensor,
        saved: &AttentionSaved,
        dqkv_TW: &Tensor,
    ) -> Result<(), KernelError> {
        let tensors = [&saved.qkv_TW, &saved.out_TH, &saved.statistics_TA];
        let plan = Plan::of(self, true, dout_TH)?;
        plan.run("run the derivative of attention", tensors, self, Some([dout_TH, dqkv_TW]))
    }
}

impl Sequences {
    fn call<'a>(&self, segments: &'a Segments) -> Call<'a> {
        Call { segments, heads: self.heads, deterministic: self.deterministic }
    }
}

pub fn attention(qkv_TW: &Tensor, sequences: &Sequences) -> Result<AttentionSaved, KernelError> {
    let (tokens, heads) = (rows(qkv_TW), sequences.heads);
    let options = (qkv_TW.kind(), qkv_TW.device());
    let out_TH = Tensor::f_empty([tokens, heads.queries * heads.size], options)?;
    let mut statistics_TA = floats([tokens, heads.queries], qkv_TW)?;
    sequences.call(&sequences.within_spans).forward(qkv_TW, &out_TH, &statistics_TA)?;
    if let Some(prefixes) = &sequences.over_prefixes {
        let other_TH = out_TH.f_empty_like()?;
        // Rows without a prefix have no sum over one.
        let other_TA = statistics_TA.f_full_like(f64::NEG_INFINITY)?;
        sequences.call(prefixes).forward(qkv_TW, &other_TH, &other_TA)?;
        join(&out_TH, &statistics_TA, &other_TH, &other_TA, heads)?;
        statistics_TA = statistics_TA.f_logaddexp(&other_TA)?;
    }
    Ok(AttentionSaved { qkv_TW: qkv_TW.shallow_clone(), out_TH, statistics_TA })
}

/// Joins `out` with the attention over other keys, in place. Rows whose other logarithm is −∞ keep
/// their output.
fn join(
    out_TH: &Tensor,
    statistics_TA: &Tensor,
    other_TH: &Tensor,
    other_TA: &Tensor,
    heads: Heads,
) -> Result<(), KernelError> {
    // SAFETY: the tensors are contiguous; their sizes were chosen by the caller, `attention`.
    let code = unsafe {
        ffi::rljob_join_attention(
            pointer(out_TH),
            pointer(statistics_TA),
            pointer(other_TH),
            pointer(other_TA),
            rows(out_TH) * heads.queries,
            heads.size,
            stream(),
        )
    };
    launched("join attention over prefixes", code)
}

pub fn attention_backward(
    dout_TH: &Tensor,
    saved: &AttentionSaved,
    sequences: &Sequences,
) -> Result<Tensor, KernelError> {
    let mut dqkv_TW = saved.qkv_TW.f_empty_like()?;
    sequences.call(&sequences.within_spans).backward(dout_TH, saved, &dqkv_TW)?;
    if let Some(prefixes) = &sequences.over_prefixes {
        let other_TW = dqkv_TW.f_zeros_like()?;
        sequences.call(prefixes).backward(dout_TH, saved, &other_TW)?;
        let _ = dqkv_TW.f_add_(&other_TW)?;
    }
    Ok(dqkv_TW)
}
