// Packed attention, forward and backward, on cuDNN's graph API through the header-only
// cudnn-frontend. Queries, keys and values are heads of one row [(A + 2 K) · D] per token.
//
// A graph is built for at most b segments of at most s queries and t keys, and reused for every
// batch that fits: the lengths and offsets of the segments are its inputs.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <unordered_map>

namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using TensorHandle = std::shared_ptr<Tensor_attributes>;

enum Uid : int64_t {
  kQuery = 1, kKey, kValue, kOut, kStatistics, kQueryOffsets, kOutOffsets, kStatisticsOffsets,
  kKeyOffsets, kQueryLengths, kKeyLengths, kDout, kDquery, kDkey, kDvalue,
};

struct Plan {
  fe::graph::Graph graph;
  int64_t workspace = 0;
};

struct Shape {
  int64_t segments, queries, keys, tokens, heads, key_heads, head_size;
  bool causal, backward, deterministic;
  float scale;
};

void check(cudnnStatus_t status) {
  if (status != CUDNN_STATUS_SUCCESS) throw std::runtime_error(cudnnGetErrorString(status));
}

void check(fe::error_t error) {
  if (error.is_bad()) throw std::runtime_error(error.get_message());
}

// One handle per thread and device.
cudnnHandle_t handle() {
  thread_local std::unordered_map<int, cudnnHandle_t> handles;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) throw std::runtime_error("no CUDA device");
  auto [entry, is_new] = handles.try_emplace(device, nullptr);
  if (is_new) check(cudnnCreate(&entry->second));
  return entry->second;
}

class Builder {
 public:
  Builder(Plan& plan, const Shape& shape) : graph_(plan.graph), shape_(shape) {
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    queries_ = vector(shape.segments + 1, fe::DataType_t::INT64, kQueryOffsets);
    outs_ = vector(shape.segments + 1, fe::DataType_t::INT64, kOutOffsets);
    statistics_ = vector(shape.segments + 1, fe::DataType_t::INT64, kStatisticsOffsets);
    keys_ = vector(shape.segments + 1, fe::DataType_t::INT64, kKeyOffsets);
    query_lengths_ = vector(shape.segments, fe::DataType_t::INT32, kQueryLengths);
    key_lengths_ = vector(shape.segments, fe::DataType_t::INT32, kKeyLengths);
  }

  void forward() {
    auto attributes = fe::graph::SDPA_attributes()
                          .set_name("attention")
                          .set_generate_stats(true)
                          .set_causal_mask(shape_.causal)
                          .set_attn_scale(shape_.scale)
                          .set_padding_mask(true)
                          .set_seq_len_q(query_lengths_)
                          .set_seq_len_kv(key_lengths_);
    auto [out, statistics] = graph_.sdpa(query(kQuery), key(kKey), key(kValue), attributes);
    place_out(out, kOut).set_output(true);
    place_statistics(statistics).set_output(true);
  }

  void backward() {
    auto statistics = graph_.tensor(Tensor_attributes().set_name("statistics"));
    place_statistics(statistics);
    auto attributes = fe::graph::SDPA_backward_attributes()
                          .set_name("attention_backward")
                          .set_causal_mask(shape_.causal)
                          .set_attn_scale(shape_.scale)
                          .set_padding_mask(true)
                          .set_seq_len_q(query_lengths_)
                          .set_seq_len_kv(key_lengths_)
                          .set_max_total_seq_len_q(shape_.tokens)
                          .set_max_total_seq_len_kv(shape_.tokens)
                          .set_deterministic_algorithm(shape_.deterministic);
    auto [dq, dk, dv] = graph_.sdpa_backward(query(kQuery), key(kKey), key(kValue), out(kOut),
                                             out(kDout), statistics, attributes);
    place_query(dq, kDquery).set_output(true);
    place_key(dk, kDkey).set_output(true);
    place_key(dv, kDvalue).set_output(true);
  }

 private:
  int64_t row_width() const { return (shape_.heads + 2 * shape_.key_heads) * shape_.head_size; }
  int64_t out_width() const { return shape_.heads * shape_.head_size; }

  TensorHandle vector(int64_t length, fe::DataType_t type, int64_t uid) {
    return graph_.tensor(Tensor_attributes()
                             .set_dim({length, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(type)
                             .set_uid(uid));
  }

  // `width`: elements from one token to the next.
  Tensor_attributes& place(const TensorHandle& tensor, int64_t heads, int64_t length, int64_t width,
                           const TensorHandle& offsets, int64_t uid) {
    return tensor->set_dim({shape_.segments, heads, length, shape_.head_size})
        .set_stride({length * width, shape_.head_size, width, 1})
        .set_ragged_offset(offsets)
        .set_uid(uid);
  }

  Tensor_attributes& place_query(const TensorHandle& tensor, int64_t uid) {
    return place(tensor, shape_.heads, shape_.queries, row_width(), queries_, uid);
  }

  Tensor_attributes& place_key(const TensorHandle& tensor, int64_t uid) {
    return place(tensor, shape_.key_heads, shape_.keys, row_width(), keys_, uid);
  }

  Tensor_attributes& place_out(const TensorHandle& tensor, int64_t uid) {
    return place(tensor, shape_.heads, shape_.queries, out_width(), outs_, uid);
  }

  Tensor_attributes& place_statistics(const TensorHandle& tensor) {
    return tensor->set_data_type(fe::DataType_t::FLOAT)
        .set_dim({shape_.segments, shape_.heads, shape_.queries, 1})
        .set_stride({shape_.heads * shape_.queries, 1, shape_.heads, 1})
        .set_ragged_offset(statistics_)
        .set_uid(kStatistics);
  }

  TensorHandle query(int64_t uid) {
    auto tensor = graph_.tensor(Tensor_attributes());
    place_query(tensor, uid);
    return tensor;
  }

  TensorHandle key(int64_t uid) {
    auto tensor = graph_.tensor(Tensor_attributes());
    place_key(tensor, uid);
    return tensor;
  }

  TensorHandle out(int64_t uid) {
    auto tensor = graph_.tensor(Tensor_attributes());
    place_out(tensor, uid);
    return tensor;
  }

  fe::graph::Graph& graph_;
  const Shape& shape_;
  TensorHandle queries_, outs_, statistics_, keys_, query_lengths_, key_lengths_;
};

template <class F>
char* guarded(F body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    return strdup(error.what());
  }
}

}  // namespace

extern "C" {

void rljob_kernel_message_free(char* message) { free(message); }

// `sizes`: segments, queries and keys of the longest, tokens, heads, key heads, head size.
char* rljob_attention_build(const int64_t sizes[7], bool causal, bool backward, bool deterministic,
                            float scale, Plan** out, int64_t* workspace) {
  return guarded([&] {
    const Shape shape{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6],
                      causal, backward, deterministic, scale};
    auto plan = std::make_unique<Plan>();
    Builder builder(*plan, shape);
    backward ? builder.backward() : builder.forward();
    auto& graph = plan->graph;
    check(graph.validate());
    check(graph.build_operation_graph(handle()));
    check(graph.create_execution_plans({fe::HeurMode_t::A}));
    check(graph.check_support(handle()));
    check(graph.build_plans(handle()));
    check(graph.get_workspace_size(plan->workspace));
    *workspace = plan->workspace;
    *out = plan.release();
  });
}

void rljob_attention_free(Plan* plan) { delete plan; }

// `pointers`: row (queries, keys, values), out, statistics, offsets of queries, outs, statistics
// and keys, lengths of queries and keys, and for the derivative dout and drow.
char* rljob_attention_run(Plan* plan, void* const pointers[11], int64_t heads, int64_t key_heads,
                          int64_t head_size, void* workspace, cudaStream_t stream) {
  return guarded([&] {
    auto at = [&](void* row, int64_t head) {
      return static_cast<char*>(row) + head * head_size * 2;  // bfloat16
    };
    void* const row = pointers[0];
    std::unordered_map<int64_t, void*> tensors{
        {kQuery, row},
        {kKey, at(row, heads)},
        {kValue, at(row, heads + key_heads)},
        {kOut, pointers[1]},
        {kStatistics, pointers[2]},
        {kQueryOffsets, pointers[3]},
        {kOutOffsets, pointers[4]},
        {kStatisticsOffsets, pointers[5]},
        {kKeyOffsets, pointers[6]},
        {kQueryLengths, pointers[7]},
        {kKeyLengths, pointers[8]},
    };
    if (pointers[9] != nullptr) {
      void* const drow = pointers[10];
      tensors[kDout] = pointers[9];
      tensors[kDquery] = drow;
      tensors[kDkey] = at(drow, heads);
      tensors[kDvalue] = at(drow, heads + key_heads);
    }
    check(cudnnSetStream(handle(), stream));
    check(plan->graph.execute(handle(), tensors, workspace));
  });
}

}  // extern "C"
