//! Functions of the C++ and CUDA code in `trainer/kernels/cuda`.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A `cudaStream_t`.
pub type Stream = *mut c_void;
/// A `cudaEvent_t`.
pub type Event = *mut c_void;
/// `cudaMemcpyDefault`: CUDA finds out which operand is memory of the host.
pub const COPY_DEFAULT: c_int = 4;
/// `cudaEventBlockingSync | cudaEventDisableTiming`: who waits sleeps.
pub const EVENT_SLEEPS_WITHOUT_TIMES: c_uint = 1 | 2;

unsafe extern "C" {
    pub fn rljob_current_stream() -> Stream;
    pub fn rljob_compute_capability(device: c_int, out: *mut c_int) -> c_int;
    pub fn rljob_device_memory(device: c_int, out: *mut i64) -> c_int;
    pub fn rljob_device_capacity(device: c_int, out: *mut u64) -> c_int;
    pub fn rljob_rms_norm(
        x: *const c_void,
        weight: *const c_void,
        y: *mut c_void,
        scale: *mut f32,
        rows: i64,
        width: i64,
        threads: i64,
        epsilon: f32,
        stream: Stream,
    ) -> c_int;
    pub fn rljob_rms_norm_backward(
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
        threads: i64,
        stream: Stream,
    ) -> c_int;
    pub fn rljob_swiglu(
        gate_up: *const c_void,
        y: *mut c_void,
        rows: i64,
        width: i64,
        stream: Stream,
    ) -> c_int;
    pub fn rljob_swiglu_backward(
        dy: *const c_void,
        gate_up: *const c_void,
        y: *mut c_void,
        dgate_up: *mut c_void,
        rows: i64,
        width: i64,
        stream: Stream,
    ) -> c_int;
    pub fn rljob_rotate(
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
    pub fn rljob_adamw(
        p: *mut f32,
        g: *mut f32,
        m: *mut f32,
        v: *mut f32,
        copy: *mut c_void,
        length: i64,
        settings: *const f32,
        scale: *const f32,
        stream: Stream,
    ) -> c_int;
    pub fn rljob_distribution(
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
    pub fn rljob_logits_gradient(
        logits: *mut c_void,
        targets: *const i64,
        gradients: *const f32,
        logsumexps: *const f32,
        entropy_gradients: *const f32,
        entropies: *const f32,
        rows: i64,
        vocabulary: i64,
        inverse_temperature: f32,
        stream: Stream,
    ) -> c_int;
    pub fn rljob_gae(
        rewards: *const f32,
        values: *const f32,
        ends: *const i64,
        end_values: *const f32,
        out: *mut f32,
        sequences: i64,
        discount: f64,
        lambdas: *const f64,
        stream: Stream,
    ) -> c_int;
    pub fn rljob_attention_build(
        sizes: *const i64,
        causal: bool,
        backward: bool,
        deterministic: bool,
        scale: f32,
        out: *mut *mut c_void,
        workspace: *mut i64,
    ) -> *mut c_char;
    pub fn rljob_attention_free(plan: *mut c_void);
    pub fn rljob_attention_run(
        plan: *mut c_void,
        pointers: *const *mut c_void,
        heads: i64,
        key_heads: i64,
        head_size: i64,
        workspace: *mut c_void,
        stream: Stream,
    ) -> *mut c_char;
    pub fn rljob_join_attention(
        out: *mut c_void,
        statistics: *const f32,
        other: *const c_void,
        other_statistics: *const f32,
        heads: i64,
        head_size: i64,
        stream: Stream,
    ) -> c_int;
    pub fn rljob_kernel_message_free(message: *mut c_char);
    pub fn rljob_call_when_done(run: extern "C" fn(), stream: Stream) -> c_int;
    pub fn cudaHostAlloc(out: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int;
    pub fn cudaFreeHost(memory: *mut c_void) -> c_int;
    pub fn cudaMemcpyAsync(
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        kind: c_int,
        stream: Stream,
    ) -> c_int;
    pub fn cudaEventCreateWithFlags(out: *mut Event, flags: c_uint) -> c_int;
    pub fn cudaEventRecord(event: Event, stream: Stream) -> c_int;
    pub fn cudaEventSynchronize(event: Event) -> c_int;
    pub fn cudaEventDestroy(event: Event) -> c_int;
    pub fn cudaGetErrorString(error: c_int) -> *const c_char;
}
