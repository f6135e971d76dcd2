// What the parts of the shim share.
#pragma once

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace rljob {

using std::chrono::milliseconds;

// Timeout of another connection to a store that was reachable before.
constexpr milliseconds kReconnect{10'000};

struct Store {
  c10::intrusive_ptr<c10d::TCPStore> tcp;
};

// Runs `body`; returns null, or the message of its exception, which the caller frees.
template <class F>
char* guarded(F body) {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("unknown C++ exception");
  }
}

// A separate connection with key prefixes `prefixes` (outermost first): a TCPStore connection is
// locked while it waits for a key, so that a missing peer would delay all other process groups.
inline c10::intrusive_ptr<c10d::Store> connection(const Store& store, const char* const* prefixes,
                                                  size_t num_prefixes, int64_t timeout_ms) {
  c10d::TCPStoreOptions options;
  options.port = store.tcp->getPort();
  options.waitWorkers = false;
  // The store was reachable when `store` was opened: if it does not accept a connection soon, its
  // host has exited. The full timeout applies only to keys of other members.
  options.timeout = std::min(milliseconds(timeout_ms), kReconnect);
  c10::intrusive_ptr<c10d::Store> prefixed =
      c10::make_intrusive<c10d::TCPStore>(store.tcp->getHost(), options);
  prefixed->setTimeout(milliseconds(timeout_ms));
  for (size_t i = 0; i < num_prefixes; i++) {
    prefixed = c10::make_intrusive<c10d::PrefixStore>(prefixes[i], prefixed);
  }
  return prefixed;
}

}  // namespace rljob
