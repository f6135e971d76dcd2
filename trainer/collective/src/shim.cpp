// Features of libtorch that tch lacks, with tch's tensor pointers: c10d's TCPStore and Gloo
// collectives, fused AdamW, deterministic mode. Every function returns null, or a message that the
// caller frees with rljob_message_free. All exceptions are caught in this file.
#include <ATen/Context.h>
#include <ATen/ops/_fused_adamw.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <malloc.h>

#include "shim.h"

using rljob::guarded;
using rljob::milliseconds;
using rljob::Store;

namespace {

// Disables c10d's flight recorder, which writes a map before it takes its lock: the first
// operations of two process groups on two threads can crash the process. Set before main, while no
// other thread reads the environment; a value set by the user takes precedence.
const int recorder_off = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);

struct Group {
  // Peers may read keys after this member has joined, so that a hosted store must outlive its
  // process groups.
  c10::intrusive_ptr<c10d::TCPStore> server;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
};

void finish(const c10::intrusive_ptr<c10d::Work>& work) {
  // Gloo applies the timeout of the process group's options: it closes the connections, so that the
  // peers fail too.
  if (!work->wait()) throw std::runtime_error("the operation was not completed");
}

}  // namespace

extern "C" {

void rljob_message_free(char* message) { free(message); }

// Connects to the store at `host`. `listen_fd`: a listening socket on `port`, with which this
// process hosts the store, or -1. By itself TCPStore would listen on every interface. numWorkers is
// unset and waitWorkers off, because one store serves many process groups, whose members join at
// any time.
char* rljob_store_new(const char* host, uint16_t port, int listen_fd, int64_t timeout_ms,
                      Store** out) {
  return guarded([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = listen_fd >= 0;
    if (options.isServer) options.masterListenFd = listen_fd;
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout_ms);
    auto tcp = c10::make_intrusive<c10d::TCPStore>(host, options);
    *out = new Store{std::move(tcp)};
  });
}

void rljob_store_free(Store* store) {
  char* message = guarded([&] { delete store; });
  free(message);
}

// Joins through the store with key prefixes `prefixes` (outermost first), listening on `address`,
// which peers must reach.
char* rljob_group_new(Store* store, const char* const* prefixes, size_t num_prefixes, int rank,
                      int world, const char* address, int64_t timeout_ms, Group** out) {
  return guarded([&] {
    const auto prefixed = rljob::connection(*store, prefixes, num_prefixes, timeout_ms);
    auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(timeout_ms));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(prefixed, rank, world, options);
    *out = new Group{store->tcp, std::move(gloo)};
  });
}

void rljob_group_free(Group* group) {
  char* message = guarded([&] { delete group; });
  free(message);
}

char* rljob_group_all_reduce(Group* group, at::Tensor* tensor) {
  return guarded([&] {
    std::vector<at::Tensor> tensors{*tensor};
    finish(group->gloo->allreduce(tensors));
  });
}

char* rljob_group_all_gather(Group* group, at::Tensor* out, at::Tensor* in) {
  return guarded([&] { finish(group->gloo->_allgather_base(*out, *in)); });
}

char* rljob_group_reduce_scatter(Group* group, at::Tensor* out, at::Tensor* in) {
  return guarded([&] { finish(group->gloo->_reduce_scatter_base(*out, *in)); });
}

char* rljob_group_broadcast(Group* group, at::Tensor* tensor, int root) {
  return guarded([&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> tensors{*tensor};
    finish(group->gloo->broadcast(tensors, options));
  });
}

char* rljob_group_barrier(Group* group) {
  return guarded([&] { finish(group->gloo->barrier()); });
}

char* rljob_fused_adamw(at::Tensor* parameter, at::Tensor* gradient, at::Tensor* exp_avg,
                        at::Tensor* exp_avg_sq, double step, double learning_rate, double beta1,
                        double beta2, double weight_decay, double epsilon) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    at::_fused_adamw_({*parameter}, {*gradient}, {*exp_avg}, {*exp_avg_sq}, {},
                      {at::scalar_tensor(step, at::kFloat)}, learning_rate, beta1, beta2,
                      weight_decay, epsilon, /*amsgrad=*/false, /*maximize=*/false);
  });
}

char* rljob_set_deterministic(bool on) {
  return guarded([&] {
    at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  });
}

// By default, glibc maps and unmaps every large block, and the kernel faults in and clears the
// pages of each operation's output.
void rljob_keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

}  // extern "C"
