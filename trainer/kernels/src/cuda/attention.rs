//! Attention by graphs of cuDNN, built once for each bucket of sequences.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use tch::{Kind, Tensor};

use super::{check, ffi, floats, pointer, stream};
use crate::operands::{AttentionSaved, Bucket, Heads, Sequences};
use crate::{KernelError, rows};

/// A graph of cuDNN.
struct Plan {
    graph: NonNull<c_void>,
    /// Bytes.
    workspace: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PlanKey {
    bucket: Bucket,
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
        let PlanKey { bucket, heads, backward, deterministic, .. } = *key;
        let sizes =
            [bucket.sequences, bucket.length, bucket.tokens, heads.queries, heads.keys, heads.size];
        let (mut graph, mut workspace) = (null_mut(), 0);
        let scale = 1.0 / (heads.size as f32).sqrt();
        // SAFETY: `sizes` has six numbers; the outputs are valid for writes.
        let message = unsafe {
            ffi::rljob_attention_build(
                sizes.as_ptr(),
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

    /// The graph for these sequences; built if no earlier one serves them.
    fn of(sequences: &Sequences, backward: bool, like: &Tensor) -> Result<Rc<Self>, KernelError> {
        let device = if let tch::Device::Cuda(index) = like.device() { index } else { 0 };
        let key = PlanKey {
            bucket: sequences.bucket(),
            heads: sequences.heads(),
            backward,
            deterministic: sequences.deterministic() && backward,
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
        sequences: &Sequences,
        derivatives: Option<[&Tensor; 2]>,
    ) -> Result<(), KernelError> {
        let options = (Kind::Uint8, tensors[0].device());
        let workspace = Tensor::f_empty([self.workspace.max(1)], options)?;
        let heads = sequences.heads();
        let mut pointers = [null_mut(); 9];
        let operands = tensors.into_iter().chain(sequences.inputs());
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

pub fn attention(qkv_TW: &Tensor, sequences: &Sequences) -> Result<AttentionSaved, KernelError> {
    let (tokens, heads) = (rows(qkv_TW), sequences.heads());
    let options = (qkv_TW.kind(), qkv_TW.device());
    let out_TH = Tensor::f_empty([tokens, heads.queries * heads.size], options)?;
    let statistics_TA = floats([tokens, heads.queries], qkv_TW)?;
    let plan = Plan::of(sequences, false, qkv_TW)?;
    plan.run("run attention", [qkv_TW, &out_TH, &statistics_TA], sequences, None)?;
    Ok(AttentionSaved { qkv_TW: qkv_TW.shallow_clone(), out_TH, statistics_TA })
}

pub fn attention_backward(
    dout_TH: &Tensor,
    saved: &AttentionSaved,
    sequences: &Sequences,
) -> Result<Tensor, KernelError> {
    let dqkv_TW = saved.qkv_TW.f_empty_like()?;
    let plan = Plan::of(sequences, true, dout_TH)?;
    plan.run(
        "run the derivative of attention",
        [&saved.qkv_TW, &saved.out_TH, &saved.statistics_TA],
        sequences,
        Some([dout_TH, &dqkv_TW]),
    )?;
    Ok(dqkv_TW)
}
