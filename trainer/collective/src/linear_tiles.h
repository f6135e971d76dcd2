// Tiling of the result: COLUMNS adjacent columns of y for ROWS rows at a time, so that the weights
// of a tile are cached for all rows. Included after `tile<T, M, N>` in the same namespace; X is the
// type of x, T that of the weights.

template <typename X, typename T, int N>
void rows(const X* x, const T* w, float* y, int64_t m, int64_t k, int64_t n) {
  int64_t a = 0;
  for (; a + ROWS <= m; a += ROWS) tile<T, ROWS, N>(x + a * k, w, y + a * n, k, n);
  for (; a + 4 <= m; a += 4) tile<T, 4, N>(x + a * k, w, y + a * n, k, n);
  for (; a + 2 <= m; a += 2) tile<T, 2, N>(x + a * k, w, y + a * n, k, n);
  for (; a < m; ++a) tile<T, 1, N>(x + a * k, w, y + a * n, k, n);
}

// Columns `first` to `last` of y.
template <typename X, typename T>
void columns(const X* x, const T* w, float* y, int64_t m, int64_t k, int64_t n, int64_t first,
             int64_t last) {
  int64_t b = first;
  for (; b + COLUMNS <= last; b += COLUMNS) rows<X, T, COLUMNS>(x, w + b * k, y + b, m, k, n);
  for (; b < last; ++b) rows<X, T, 1>(x, w + b * k, y + b, m, k, n);
}
