// The CUDA stream on which libtorch's operations of this thread run.
#include <c10/cuda/CUDAStream.h>

extern "C" cudaStream_t rljob_current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }
