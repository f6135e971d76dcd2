// NCCL communicators with a stream each, for tensors on a GPU, with tch's tensor pointers. As in
// shim.cpp, every function returns null or a message, and all exceptions are caught here.
//
// Operations are enqueued: streams wait for each other through events, and the host waits only in
// rljob_nccl_finish. A communicator may be non-blocking, so that a missing peer ends in a timeout,
// at the cost of some time of the host for each call.
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "shim.h"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{1};
// Time for which a call in progress is polled without sleeping.
constexpr milliseconds kSpin{2};

struct Nccl {
  ncclComm_t comm = nullptr;
  c10::cuda::CUDAStream stream;
  milliseconds timeout;

  ~Nccl() {
    // Abort instead of destroy, which waits for peers.
    if (comm != nullptr) ncclCommAbort(comm);
  }
};

void cuda(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

std::string described(ncclComm_t comm, ncclResult_t code) {
  const char* last = ncclGetLastError(comm);
  std::string text = ncclGetErrorString(code);
  if (last != nullptr && *last != '\0') text += std::string(": ") + last;
  return text;
}

[[noreturn]] void abort_with(Nccl& group, const std::string& message) {
  ncclCommAbort(group.comm);
  group.comm = nullptr;
  throw std::runtime_error(message);
}

ncclComm_t usable(const Nccl& group) {
  if (group.comm == nullptr) throw std::runtime_error("the process group failed before");
  return group.comm;
}

// Waits while a call on a non-blocking communicator is in progress.
void settle(Nccl& group, ncclResult_t code) {
  const auto started = Clock::now();
  while (code == ncclInProgress) {
    const auto elapsed = Clock::now() - started;
    if (elapsed > group.timeout) abort_with(group, "timed out; a peer may be missing");
    if (elapsed > kSpin) std::this_thread::sleep_for(kPoll);
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(group.comm, &state);
    code = asked == ncclSuccess ? state : asked;
  }
  if (code != ncclSuccess) abort_with(group, described(group.comm, code));
}

ncclDataType_t type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble: return ncclFloat64;
    case at::kFloat: return ncclFloat;
    case at::kBFloat16: return ncclBfloat16;
    case at::kByte: return ncclUint8;
    default: 
      throw std::runtime_error("the tensor must be float64, float32, bfloat16 or uint8");
  }
}

// The id of rank 0's communicator, which other ranks wait for in the store.
ncclUniqueId exchange_id(const c10::intrusive_ptr<c10d::Store>& store, int rank) {
  ncclUniqueId id;
  if (rank == 0) {
    const ncclResult_t code = ncclGetUniqueId(&id);
    if (code != ncclSuccess) throw std::runtime_error(described(nullptr, code));
    store->set("0", std::vector<uint8_t>(id.internal, id.internal + sizeof id.internal));
    return id;
  }
  const std::vector<uint8_t> bytes = store->get("0");
  if (bytes.size() != sizeof id.internal) throw std::runtime_error("the id has another size");
  std::memcpy(id.internal, bytes.data(), sizeof id.internal);
  return id;
}

}  // namespace

using rljob::guarded;

extern "C" {

// Joins on the current device, through the store with key prefixes `prefixes` (outermost first).
char* rljob_nccl_new(rljob::Store* store, const char* const* prefixes, size_t num_prefixes,
                     int rank, int world, int device, bool blocking, int64_t timeout_ms,
                     Nccl** out) {
  return guarded([&] {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    const auto prefixed = rljob::connection(*store, prefixes, num_prefixes, timeout_ms);
    const ncclUniqueId id = exchange_id(prefixed, rank);
    const milliseconds timeout(timeout_ms);
    auto group = std::make_unique<Nccl>(
        Nccl{nullptr, c10::cuda::getStreamFromPool(/*isHighPriority=*/true), timeout});
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    const ncclResult_t code = ncclCommInitRankConfig(&group->comm, world, id, rank, &config);
    settle(*group, code);
    *out = group.release();
  });
}

void rljob_nccl_free(Nccl* group) {
  char* message = guarded([&] { delete group; });
  free(message);
}

char* rljob_nccl_all_gather(Nccl* group, at::Tensor* out, at::Tensor* in) {
  return guarded([&] {
    settle(*group, ncclAllGather(in->data_ptr(), out->data_ptr(), in->numel(), type_of(*in),
                                 usable(*group), group->stream.stream()));
  });
}

char* rljob_nccl_reduce_scatter(Nccl* group, at::Tensor* out, at::Tensor* in) {
  return guarded([&] {
    settle(*group, ncclReduceScatter(in->data_ptr(), out->data_ptr(), out->numel(), type_of(*in),
                                     ncclSum, usable(*group), group->stream.stream()));
  });
}

char* rljob_nccl_all_reduce(Nccl* group, at::Tensor* tensor) {
  return guarded([&] {
    settle(*group, ncclAllReduce(tensor->data_ptr(), tensor->data_ptr(), tensor->numel(),
                                 type_of(*tensor), ncclSum, usable(*group),
                                 group->stream.stream()));
  });
}

char* rljob_nccl_broadcast(Nccl* group, at::Tensor* tensor, int root) {
  return guarded([&] {
    settle(*group, ncclBroadcast(tensor->data_ptr(), tensor->data_ptr(), tensor->numel(),
                                 type_of(*tensor), root, usable(*group), group->stream.stream()));
  });
}

// Adds `term` to `sum` on the group's stream.
char* rljob_nccl_add(Nccl* group, at::Tensor* sum, at::Tensor* term) {
  return guarded([&] {
    const c10::cuda::CUDAStreamGuard guard(group->stream);
    sum->add_(*term);
  });
}

// Copies `in` to `out`, whose kind may be another, on the group's stream.
char* rljob_nccl_copy(Nccl* group, at::Tensor* out, at::Tensor* in) {
  return guarded([&] {
    const c10::cuda::CUDAStreamGuard guard(group->stream);
    out->copy_(*in, /*non_blocking=*/true);
  });
}

// Waits on the host until every operation of the group is complete, or `given_up` is true, which may
// be null.
char* rljob_nccl_finish(Nccl* group, const bool* given_up) {
  return guarded([&] {
    const auto deadline = Clock::now() + group->timeout;
    for (cudaError_t code; (code = cudaStreamQuery(group->stream.stream())) != cudaSuccess;) {
      if (code != cudaErrorNotReady) cuda(code);
      ncclResult_t state = ncclSuccess;
      ncclCommGetAsyncError(usable(*group), &state);
      if (state != ncclSuccess && state != ncclInProgress) {
        abort_with(*group, described(group->comm, state));
      }
      if (given_up != nullptr && __atomic_load_n(given_up, __ATOMIC_RELAXED)) {
        abort_with(*group, "the peer was given up");
      }
      if (Clock::now() > deadline) abort_with(*group, "timed out; a peer may have ended");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
}

char* rljob_event_new(cudaEvent_t* out) {
  return guarded([&] { cuda(cudaEventCreateWithFlags(out, cudaEventDisableTiming)); });
}

void rljob_event_free(cudaEvent_t event) { cudaEventDestroy(event); }

// Records the event on the group's stream, or on that of libtorch's operations if `group` is null.
char* rljob_event_record(cudaEvent_t event, Nccl* group) {
  return guarded([&] {
    const auto stream = group != nullptr ? group->stream : c10::cuda::getCurrentCUDAStream();
    cuda(cudaEventRecord(event, stream.stream()));
  });
}

// Lets the group's stream, or that of libtorch's operations if `group` is null, wait for the event.
char* rljob_event_wait(cudaEvent_t event, Nccl* group) {
  return guarded([&] {
    const auto stream = group != nullptr ? group->stream : c10::cuda::getCurrentCUDAStream();
    cuda(cudaStreamWaitEvent(stream.stream(), event));
  });
}

}  // extern "C"
