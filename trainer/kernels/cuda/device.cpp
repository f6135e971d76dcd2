// What libtorch knows of a GPU: the stream of this thread's operations, and its memory.
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

namespace at::cuda {
// Declared here, because its header needs the headers of cuBLAS, cuSPARSE and cuSOLVER.
C10_IMPORT cudaDeviceProp* getDeviceProperties(c10::DeviceIndex device);
}  // namespace at::cuda

extern "C" cudaStream_t rljob_current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

// Major and minor compute capability. It also keeps libtorch_cuda.so loaded, which a linker drops
// from a program that names none of its symbols.
extern "C" int rljob_compute_capability(int device, int out[2]) {
  try {
    const cudaDeviceProp* properties =
        at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device));
    out[0] = properties->major;
    out[1] = properties->minor;
    return 0;
  } catch (...) {
    return 1;
  }
}

// Bytes that tensors use now, bytes that they used at most, bytes that the allocator holds.
extern "C" int rljob_device_memory(int device, int64_t out[3]) {
  try {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(
        static_cast<c10::DeviceIndex>(device));
    out[0] = stats.allocated_bytes[0].current;
    out[1] = stats.allocated_bytes[0].peak;
    out[2] = stats.reserved_bytes[0].current;
    return 0;
  } catch (...) {
    return 1;
  }
}

// Calls `run` on a thread of CUDA once the operations queued on `stream` so far are done.
extern "C" int rljob_call_when_done(void (*run)(), cudaStream_t stream) {
  return cudaLaunchHostFunc(
      stream, [](void* data) { reinterpret_cast<void (*)()>(data)(); },
      reinterpret_cast<void*>(run));
}

// Free and total bytes of a GPU that this process may use: all, or the part of the GPU that the
// allocator is limited to (per_process_memory_fraction of PYTORCH_CUDA_ALLOC_CONF).
extern "C" int rljob_device_capacity(int device, uint64_t out[2]) {
  size_t free = 0;
  size_t total = 0;
  if (cudaSetDevice(device) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess) {
    return 1;
  }
  const double fraction = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::per_process_memory_fraction();
  const auto usable = static_cast<uint64_t>(fraction * static_cast<double>(total));
  out[0] = std::min<uint64_t>(free, usable);
  out[1] = usable;
  return 0;
}
