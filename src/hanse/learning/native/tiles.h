/* The matrix products of seats.c, for one width of the processor's vectors.

   seats.c includes this file once for each width, with VB (bytes of a vector) and SUFFIX set, with which every name
   ends. What comes out are five functions: forward (out += x w), step (gradient, momentum and a step of SGD in one),
   mix (sums of rows), and for convolutions pool and convolve_back.

   Rows of x are given as pointers, so that samples are read where they lie in the pool. Weights are [in][ld]: for each
   input the weights of all outputs side by side, padded with zeros to ld, a multiple of the vector. A tile keeps nr
   rows times nv vectors of sums in registers, so that each number is loaded once for many multiplications. nv and nr
   are constants wherever the functions are inlined, so the compiler unrolls all loops over them. */

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(a) JOIN(a, SUFFIX)
#define LANES (VB / 4)
#define vec NAME(vec)
#define ivec NAME(ivec)
#define bytes NAME(bytes)
#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

/* WIDEST is the most vectors of a tile. TILES has the pairs (nv, nr) that are compiled: nv x nr sums and nv vectors of
   weights fit into the registers, of which AVX-512 has 32 and the others 16. */
#if VB == 64
#define WIDEST 4
#define TILES(DO) DO(1, 12) DO(2, 12) DO(3, 8) DO(4, 6)
#elif VB == 32
#define WIDEST 7
#define TILES(DO) DO(1, 8) DO(2, 6) DO(3, 4) DO(4, 3) DO(5, 2) DO(6, 2) DO(7, 2)
#else
#define WIDEST 4
#define TILES(DO) DO(1, 8) DO(2, 4) DO(3, 3) DO(4, 2)
#endif

typedef float vec __attribute__((vector_size(VB), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(VB), aligned(4)));
typedef uint8_t bytes __attribute__((vector_size(VB / 4), aligned(1)));

INLINE vec NAME(load)(const float *p) { return *(const vec *)p; }
INLINE void NAME(store)(float *p, vec v) { *(vec *)p = v; }

/* For nr rows: out[r] += the sum over `lines` lines, each `count` numbers of x[r] from `at` on and `apart` from the one
   before, of these numbers times w. Each sum is taken in order, however rows and blocks are cut. */
INLINE void NAME(forward_tile)(const float *const *x, int64_t at, int64_t lines, int64_t apart, int64_t count,
                               int64_t next, const float *w, int64_t ld, float *out, const int nv, const int nr) {
  vec sum[12][WIDEST];
  UNROLL for (int r = 0; r < nr; r++) UNROLL for (int v = 0; v < nv; v++) sum[r][v] =
      NAME(load)(out + r * ld + v * LANES);
  for (int r = 0; r < nr; r++) /* fetch what the next block will read of these rows */
    for (int64_t k = at + count; k < at + count + next; k += 16) __builtin_prefetch(x[r] + k, 0, 2);
  for (int64_t y = 0; y < lines; y++, at += apart)
    _Pragma("GCC unroll 4") for (int64_t k = at; k < at + count; k++, w += ld) {
      vec row[WIDEST];
      UNROLL for (int v = 0; v < nv; v++) row[v] = NAME(load)(w + v * LANES);
      UNROLL for (int r = 0; r < nr; r++) {
        const float one = x[r][k];
        UNROLL for (int v = 0; v < nv; v++) sum[r][v] += one * row[v];
      }
    }
  UNROLL for (int r = 0; r < nr; r++) UNROLL for (int v = 0; v < nv; v++)
      NAME(store)(out + r * ld + v * LANES, sum[r][v]);
}

/* nv vectors of the outputs, for all rows. The weights are taken in blocks of 24 KiB, which stay in the first cache
   while all rows go by, all lines at once where they fit; rows that do not fill a tile go one at a time. */
INLINE void NAME(forward_columns)(const float *const *x, int64_t rows, int64_t lines, int64_t apart, int64_t in,
                                  const float *w, int64_t ld, float *out, const int nv, const int nr) {
  const int64_t block = 24576 / (nv * VB), once = lines * in <= block ? lines : 1;
  for (int64_t y = 0; y < lines; y += once)
    for (int64_t from = 0; from < in; from += block) {
      const int64_t left = in - from, count = left < block ? left : block, after = left - count;
      const int64_t next = after < block ? after : block, at = y * apart + from;
      const float *own = w + (y * in + from) * ld;
      int64_t b = 0;
      for (; b + nr <= rows; b += nr)
        NAME(forward_tile)(x + b, at, once, apart, count, next, own, ld, out + b * ld, nv, nr);
      for (; b < rows; b++) NAME(forward_tile)(x + b, at, once, apart, count, next, own, ld, out + b * ld, nv, 1);
    }
}

/* out [rows][ld] += x w, with w [lines][in][ld] and as many lines of each row of x, which are `apart` (one line, unless
   it is a convolution). The outputs are cut into parts of nearly the same width, none wider than the widest tile: a
   narrow rest would use its registers badly. */
static void NAME(forward)(const float *const *x, int64_t rows, int64_t lines, int64_t apart, int64_t in, const float *w,
                          int64_t ld, float *out) {
  for (int64_t left = ld / LANES, nv; left; left -= nv, w += nv * LANES, out += nv * LANES) {
    const int64_t blocks = (left + WIDEST - 1) / WIDEST;
    nv = (left + blocks - 1) / blocks;
    switch (nv) {
#define DO(NV, NR) \
  case NV: NAME(forward_columns)(x, rows, lines, apart, in, w, ld, out, NV, NR); break;
      TILES(DO)
#undef DO
    }
  }
}

INLINE void NAME(mix_tile)(const float *const *from, const float *shares, int64_t count, int64_t at, float *to,
                           const int nv) {
  vec sum[8];
  UNROLL for (int v = 0; v < nv; v++) sum[v] = (vec){0};
  for (int64_t i = 0; i < count; i++) UNROLL for (int v = 0; v < nv; v++) sum[v] +=
      shares[i] * NAME(load)(from[i] + at + v * LANES);
  UNROLL for (int v = 0; v < nv; v++) NAME(store)(to + v * LANES, sum[v]);
}

/* to [n] = the sum over count rows of shares[i] from[i][at ...], n being whole vectors: at most eight at a time, so
   that a share is loaded once for all */
static void NAME(mix)(const float *const *from, const float *shares, int64_t count, int64_t at, int64_t n, float *to) {
  for (int64_t left = n / LANES, nv; left; left -= nv, at += nv * LANES, to += nv * LANES) {
    const int64_t blocks = (left + 7) / 8;
    nv = (left + blocks - 1) / blocks;
    switch (nv) {
#define DO(NV) \
  case NV: NAME(mix_tile)(from, shares, count, at, to, NV); break;
      DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8)
#undef DO
    }
  }
}

/* Inputs k to k + nr of a step, for one block of samples: the sum over them of x[b][k] g[b] is added to the velocity.
   At the first block the velocity is made ready for it: v = momentum v + pull w + constant. At the last block the
   weights take their step: w -= lr v. */
INLINE void NAME(step_tile)(const float *const *x, int64_t rows, int64_t k, const float *g, int64_t ld, float *w,
                            float *v, const float *constant, const struct step *s, const int first, const int last,
                            const int nv, const int nr) {
  vec sum[12][WIDEST];
  UNROLL for (int r = 0; r < nr; r++) UNROLL for (int i = 0; i < nv; i++) sum[r][i] = (vec){0};
  for (int64_t b = 0; b < rows; b++) {
    const float *own = x[b] + k;
    vec row[WIDEST];
    UNROLL for (int i = 0; i < nv; i++) row[i] = NAME(load)(g + b * ld + i * LANES);
    UNROLL for (int r = 0; r < nr; r++) {
      const float one = own[r];
      UNROLL for (int i = 0; i < nv; i++) sum[r][i] += one * row[i];
    }
  }
  UNROLL for (int r = 0; r < nr; r++) UNROLL for (int i = 0; i < nv; i++) {
    const int64_t at = (k + r) * ld + i * LANES;
    const vec weight = NAME(load)(w + at);
    vec velocity = NAME(load)(v + at);
    if (first) {
      velocity *= s->momentum;
      if (s->pull != 0) velocity += s->pull * weight;
      if (constant) velocity += NAME(load)(constant + at);
    }
    velocity += sum[r][i];
    NAME(store)(v + at, velocity);
    if (last) NAME(store)(w + at, weight - s->lr * velocity);
  }
}

/* nv vectors of the outputs, for all inputs, in blocks of samples whose gradients (24 KiB) stay in the first cache */
INLINE void NAME(step_columns)(const float *const *x, int64_t rows, int64_t in, const float *g, int64_t ld, float *w,
                               float *v, const float *constant, const struct step *s, const int nv, const int nr) {
  const int64_t block = 24576 / (nv * VB);
  for (int64_t b = 0; b < rows; b += block) {
    const int first = b == 0, last = b + block >= rows;
    const int64_t some = last ? rows - b : block;
    int64_t k = 0;
    for (; k + nr <= in; k += nr)
      NAME(step_tile)(x + b, some, k, g + b * ld, ld, w, v, constant, s, first, last, nv, nr);
    for (; k < in; k++) NAME(step_tile)(x + b, some, k, g + b * ld, ld, w, v, constant, s, first, last, nv, 1);
  }
}

/* One step of the weights w [in][ld] with velocities v. The gradient is the sum over the samples of x[b] times g[b]; it
   is never written to memory of its own. The outputs are cut as in forward. */
static void NAME(step)(const float *const *x, int64_t rows, int64_t in, const float *g, int64_t ld, float *w, float *v,
                       const float *constant, const struct step *s) {
  for (int64_t left = ld / LANES, at = 0, nv; left; left -= nv, at += nv * LANES) {
    const int64_t blocks = (left + WIDEST - 1) / WIDEST;
    nv = (left + blocks - 1) / blocks;
    switch (nv) {
#define DO(NV, NR) \
  case NV: NAME(step_columns)(x, rows, in, g + at, ld, w + at, v + at, constant ? constant + at : 0, s, NV, NR); break;
      TILES(DO)
#undef DO
    }
  }
}

/* a where the mask is set, else b */
INLINE ivec NAME(either)(ivec mask, ivec a, ivec b) { return (mask & a) | (~mask & b); }

/* The larger of two numbers and the place that belongs to it: of equal ones the first, and NaN before all numbers, as
   in PyTorch. */
INLINE void NAME(larger)(vec *a, ivec *at, vec b, ivec other) {
  const ivec second = (b > *a) | ((b != b) & (*a == *a));
  *a = (vec)NAME(either)(second, (ivec)b, (ivec)*a);
  *at = NAME(either)(second, other, *at);
}

/* The largest of every 2 x 2 of a convolution's outputs to a [rows][columns][filters], and which it is, from 0 (upper
   left) to 3, unless `at` is NULL. Whole vectors are written: what follows the last filter is overwritten by the next
   place. */
static void NAME(pool)(const struct convolution *k, float *a, uint8_t *at) {
  for (int64_t y = 0; y < k->rows / 2; y++)
    for (int64_t x = 0; x < k->columns / 2; x++, a += k->filters) {
      const float *upper = k->maps + (2 * y * k->columns + 2 * x) * k->ld, *lower = upper + k->columns * k->ld;
      for (int64_t f = 0; f < k->filters; f += LANES) {
        vec most = NAME(load)(upper + f);
        ivec which = (ivec){0};
        if (!at) {
          NAME(larger)(&most, &which, NAME(load)(upper + k->ld + f), which);
          NAME(larger)(&most, &which, NAME(load)(lower + f), which);
          NAME(larger)(&most, &which, NAME(load)(lower + k->ld + f), which);
          NAME(store)(a + f, most);
          continue;
        }
        NAME(larger)(&most, &which, NAME(load)(upper + k->ld + f), (ivec){0} + 1);
        NAME(larger)(&most, &which, NAME(load)(lower + f), (ivec){0} + 2);
        NAME(larger)(&most, &which, NAME(load)(lower + k->ld + f), (ivec){0} + 3);
        NAME(store)(a + f, most);
        *(bytes *)(at + f) = __builtin_convertvector(which, bytes);
      }
      if (at) at += k->filters;
    }
}

/* nv vectors of a filter's gradient: the sum over n outputs of their gradients times what these vectors saw there */
INLINE void NAME(slope_tile)(const float *image, const int64_t *sees, const int32_t *from, const float *ones, int64_t n,
                             float *to, const int nv) {
  vec sum[8];
  UNROLL for (int v = 0; v < nv; v++) sum[v] = NAME(load)(to + v * LANES);
  for (int64_t i = 0; i < n; i++)
    UNROLL for (int v = 0; v < nv; v++) sum[v] += ones[i] * NAME(load)(image + from[i] + sees[v]);
  UNROLL for (int v = 0; v < nv; v++) NAME(store)(to + v * LANES, sum[v]);
}

/* From the gradient g [places][filters] at one sample's outputs after pooling, add to the gradients of weights w and of
   biases, and (below) to that at the padded image. Pooling and ReLU leave few gradients that are not 0: only these are
   used. */
static void NAME(convolve_back)(const struct convolution *k, const float *w, const float *g, const uint8_t *at,
                                int below) {
  const int64_t rows = k->rows >> k->pooled, columns = k->columns >> k->pooled, vectors = k->kernel * k->span / LANES;
  for (int64_t f = 0; f < k->filters; f++) {
    float *to = k->slope + f * vectors * LANES;
    float total = 0;
    int64_t n = 0;
    for (int64_t y = 0, p = f; y < rows; y++)
      for (int64_t x = 0; x < columns; x++, p += k->filters) {
        const int64_t down = k->pooled ? 2 * y + (at[p] >> 1) : y, right = k->pooled ? 2 * x + (at[p] & 1) : x;
        k->from[n] = (int32_t)(down * k->line + right * k->channels), k->ones[n] = g[p];
        n += g[p] != 0;
      }
    for (int64_t i = 0; i < n; i++) total += k->ones[i];
    k->bias_slope[f] += total;
    for (int64_t v = 0, left = vectors; left > 0; left -= 8, v += 8)
      switch (left) {
#define DO(NV) \
  case NV: NAME(slope_tile)(k->image, k->sees + v, k->from, k->ones, n, to + v * LANES, NV); break;
        DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#undef DO
        default: NAME(slope_tile)(k->image, k->sees + v, k->from, k->ones, n, to + v * LANES, 8);
      }
    for (int64_t i = 0; below && i < n; i++)
      for (int64_t v = 0; v < vectors; v++) {
        float *there = k->below + k->from[i] + k->sees[v];
        NAME(store)(there, NAME(load)(there) + k->ones[i] * NAME(load)(w + (f * vectors + v) * LANES));
      }
  }
}

#undef JOIN_
#undef JOIN
#undef NAME
#undef LANES
#undef vec
#undef ivec
#undef bytes
#undef UNROLL
#undef INLINE
#undef WIDEST
#undef TILES
#undef VB
#undef SUFFIX
