//! Calls of the CUDA kernels. Callers have checked device, kind and layout of the operands.

#![expect(
    unsafe_code,
    reason = "calls C++ and CUDA with pointers of live tensors whose sizes are checked by callers"
)]
#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use tch::{Kind, Tensor};

use crate::operands::{
    AdamW, AttentionSaved, Bucket, Direction, Heads, NormSaved, Operands, Sequences,
};
use crate::{KernelError, rows};

/// Blocks of the derivative of RMSNorm: two for each multiprocessor of an H200. More than needed
/// elsewhere.
const NORM_BLOCKS: i64 = 264;

type Stream = *mut c_void;

unsafe extern "C" {
    fn rljob_current_stream() -> Stream;
    fn rljob_compute_capability(device: c_int, out: *mut c_int) -> c_int;
    fn rljob_device_memory(device: c_int, out: *mut i64) -> c_int;
    fn rljob_device_capacity(device: c_int, out: *mut u64) -> c_int;
    fn rljob_rms_norm(
        x: *const c_void,
        weight: *const c_void,
        y: *mut c_void,
        scale: *mut f32,
        rows: i64,
        width: i64,
        epsilon: f32,
        stream: Stream,
    ) -> c_int;
    fn rljob_rms_norm_backward(
        dy: *const c_void,
        x: *const c_void,
        scale: *const f32,
        weight: *const c_void,
        residual: *const c_void,
        dx: *mut c_void,
        partial: *mut f32,
        blocks: i64,
        rows: i64,
        width: i64,
        stream: Stream,
    ) -> c_int;
    fn rljob_swiglu(
        gate_up: *const c_void,
        y: *mut c_void,
        rows: i64,
        width: i64,
        stream: Stream,
    ) -> c_int;
    fn rljob_swiglu_backward(
        dy: *const c_void,
        gate_up: *const c_void,
        y: *mut c_void,
        dgate_up: *mut c_void,
        rows: i64,
        width: i64,
        stream: Stream,
    ) -> c_int;
    fn rljob_rotate(
        x: *mut c_void,
        cosines: *const f32,
        sines: *const f32,
        rows: i64,
        heads: i64,
        head_size: i64,
        stride: i64,
        sign: f32,
        stream: Stream,
    ) -> c_int;
    fn rljob_adamw(
        p: *mut f32,
        g: *mut f32,
        m: *mut f32,
        v: *mut f32,
        copy: *mut c_void,
        length: i64,
        settings: *const f32,
        stream: Stream,
    ) -> c_int;
    fn rljob_distribution(
        logits: *const c_void,
        targets: *const i64,
        logprobs: *mut f32,
        entropies: *mut f32,
        logsumexps: *mut f32,
        rows: i64,
        vocabulary: i64,
        inverse_temperature: f32,
        stream: Stream,
    ) -> c_int;
    fn rljob_logits_gradient(
        logits: *mut c_void,
        targets: *const i64,
        gradients: *const f32,
        logsumexps: *const f32,
        rows: i64,
        vocabulary: i64,
        inverse_temperature: f32,
        stream: Stream,
    ) -> c_int;
    fn rljob_attention_build(
        sizes: *const i64,
        backward: bool,
        deterministic: bool,
        scale: f32,
        out: *mut *mut c_void,
        workspace: *mut i64,
    ) -> *mut c_char;
    fn rljob_attention_free(plan: *mut c_void);
    fn rljob_attention_run(
        plan: *mut c_void,
        pointers: *const *mut c_void,
        heads: i64,
        key_heads: i64,
        head_size: i64,
        workspace: *mut c_void,
        stream: Stream,
    ) -> *mut c_char;
    fn rljob_kernel_message_free(message: *mut c_char);
    fn cudaGetErrorString(error: c_int) -> *const c_char;
}

fn stream() -> Stream {
    // SAFETY: reads the thread's current stream.
    unsafe { rljob_current_stream() }
}

/// Major and minor compute capability of a GPU, if it can be used.
pub fn compute_capability(device: usize) -> Option<(i32, i32)> {
    let mut out: [c_int; 2] = [0; 2];
    // SAFETY: writes two numbers.
    let code = unsafe { rljob_compute_capability(device as c_int, out.as_mut_ptr()) };
    (code == 0).then_some((out[0], out[1]))
}

/// Bytes in use, the most that were in use, and bytes held by libtorch's allocator.
pub fn memory(device: usize) -> Option<[i64; 3]> {
    let mut out = [0; 3];
    // SAFETY: writes three numbers.
    let code = unsafe { rljob_device_memory(device as c_int, out.as_mut_ptr()) };
    (code == 0).then_some(out)
}

/// Free and total bytes of a GPU.
pub fn capacity(device: usize) -> Option<[u64; 2]> {
    let mut out = [0; 2];
    // SAFETY: writes two numbers.
    let code = unsafe { rljob_device_capacity(device as c_int, out.as_mut_ptr()) };
    (code == 0).then_some(out)
}

fn pointer<T>(tensor: &Tensor) -> *mut T {
    tensor.data_ptr().cast()
}

fn launched(operation: &'static str, code: c_int) -> Result<(), KernelError> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the CUDA runtime returns a static string.
    let message = unsafe { CStr::from_ptr(cudaGetErrorString(code)) };
    Err(KernelError::Cuda { operation, message: message.to_string_lossy().into_owned() })
}

fn check(operation: &'static str, message: *mut c_char) -> Result<(), KernelError> {
    let Some(message) = NonNull::new(message) else { return Ok(()) };
    // SAFETY: a NUL-terminated string from strdup, which is read and freed once, here.
    let text = unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned();
    // SAFETY: as above.
    unsafe { rljob_kernel_message_free(message.as_ptr()) };
    Err(KernelError::Cuda { operation, message: text })
}

/// fp32 on the device of `like`.
fn floats<const N: usize>(shape: [i64; N], like: &Tensor) -> Result<Tensor, KernelError> {
    Ok(Tensor::f_empty(shape, (Kind::Float, like.device()))?)
}

pub fn rms_norm(
    x_TH: &Tensor,
    weight_H: &Tensor,
    epsilon: f64,
) -> Result<(Tensor, Tensor), KernelError> {
    let (y_TH, scale_T1) = (x_TH.f_empty_like()?, floats([rows(x_TH), 1], x_TH)?);
    // SAFETY: the tensors are alive, contiguous and of these sizes.
    let code = unsafe {
        rljob_rms_norm(
            pointer(x_TH),
            pointer(weight_H),
            pointer(&y_TH),
            pointer(&scale_T1),
            rows(x_TH),
            weight_H.numel() as i64,
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
    let blocks = NORM_BLOCKS.min(num_rows);
    let (dx_TH, partial) = (dy_TH.f_empty_like()?, floats([blocks, width], dy_TH)?);
    // SAFETY: as for rms_norm; a null residual is not read.
    let code = unsafe {
        rljob_rms_norm_backward(
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
    let code =
        unsafe { rljob_swiglu(pointer(gate_up_T2F), pointer(&y_TF), num_rows, width, stream()) };
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
        rljob_swiglu_backward(
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
        rljob_rotate(
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
    // SAFETY: the tensors are alive, contiguous and of one length; a null copy is not written.
    let code = unsafe {
        rljob_adamw(
            pointer(operands.weights),
            pointer(operands.gradient),
            pointer(operands.first_moment),
            pointer(operands.second_moment),
            operands.copy.map_or(null_mut(), pointer),
            operands.weights.numel() as i64,
            numbers.as_ptr(),
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
        rljob_distribution(
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

pub fn logits_gradient(
    logits_CV: &Tensor,
    targets_C: &Tensor,
    gradient_C: &Tensor,
    logsumexp_C: &Tensor,
    temperature: f64,
) -> Result<(), KernelError> {
    let targets_C = targets_C.f_contiguous()?;
    // SAFETY: as for distribution.
    let code = unsafe {
        rljob_logits_gradient(
            pointer(logits_CV),
            pointer(&targets_C),
            pointer(gradient_C),
            pointer(logsumexp_C),
            rows(logits_CV),
            logits_CV.size()[1],
            (1.0 / temperature) as f32,
            stream(),
        )
    };
    launched("compute the derivative of log-probabilities", code)
}

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
            rljob_attention_build(
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
            rljob_attention_run(
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
        unsafe { rljob_attention_free(self.graph.as_ptr()) };
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
