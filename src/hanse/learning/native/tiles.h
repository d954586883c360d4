/* The matrix products of seats.c, for one width of the processor's vectors.

   seats.c includes this file once for each width, with VB (bytes of a vector) and SUFFIX set, with which every name
   ends. What comes out are four functions: forward (out += x w), step (gradient, momentum and a step of SGD in one), and
   for convolutions pool, convolve and convolve_back.

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
#define quad NAME(quad)
#define oct NAME(oct)
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

INLINE vec NAME(load)(const float *p) { return *(const vec *)p; }
INLINE void NAME(store)(float *p, vec v) { *(vec *)p = v; }

/* For nr rows: out[r] += the sum over k in [from, to) of x[r][k] w[k]. Each sum is taken in the order of k, however
   rows and blocks are cut. */
INLINE void NAME(forward_tile)(const float *const *x, int64_t from, int64_t to, int64_t next, const float *w, int64_t ld,
                               float *out, const int nv, const int nr) {
  vec sum[12][WIDEST];
  UNROLL for (int r = 0; r < nr; r++) UNROLL for (int v = 0; v < nv; v++) sum[r][v] =
      NAME(load)(out + r * ld + v * LANES);
  for (int r = 0; r < nr; r++) /* fetch what the next block will read of these rows */
    for (int64_t k = to; k < next; k += 16) __builtin_prefetch(x[r] + k, 0, 2);
  for (int64_t k = from; k < to; k++) {
    vec row[WIDEST];
    UNROLL for (int v = 0; v < nv; v++) row[v] = NAME(load)(w + k * ld + v * LANES);
    UNROLL for (int r = 0; r < nr; r++) {
      const float one = x[r][k];
      UNROLL for (int v = 0; v < nv; v++) sum[r][v] += one * row[v];
    }
  }
  UNROLL for (int r = 0; r < nr; r++) UNROLL for (int v = 0; v < nv; v++)
      NAME(store)(out + r * ld + v * LANES, sum[r][v]);
}

/* nv vectors of the outputs, for all rows. The weights are taken in blocks of 24 KiB, which stay in the first cache
   while all rows go by; rows that do not fill a tile go one at a time. */
INLINE void NAME(forward_columns)(const float *const *x, int64_t rows, int64_t in, const float *w, int64_t ld,
                                  float *out, const int nv, const int nr) {
  const int64_t block = 24576 / (nv * VB);
  for (int64_t from = 0; from < in; from += block) {
    const int64_t to = from + block < in ? from + block : in, next = to + block < in ? to + block : in;
    int64_t b = 0;
    for (; b + nr <= rows; b += nr) NAME(forward_tile)(x + b, from, to, next, w, ld, out + b * ld, nv, nr);
    for (; b < rows; b++) NAME(forward_tile)(x + b, from, to, next, w, ld, out + b * ld, nv, 1);
  }
}

/* out [rows][ld] += x w, with w [in][ld]. The outputs are cut into parts of nearly the same width, none wider than the
   widest tile: a narrow rest would use its registers badly. */
static void NAME(forward)(const float *const *x, int64_t rows, int64_t in, const float *w, int64_t ld, float *out) {
  for (int64_t left = ld / LANES, nv; left; left -= nv, w += nv * LANES, out += nv * LANES) {
    const int64_t blocks = (left + WIDEST - 1) / WIDEST;
    nv = (left + blocks - 1) / blocks;
    switch (nv) {
#define DO(NV, NR) \
  case NV: NAME(forward_columns)(x, rows, in, w, ld, out, NV, NR); break;
      TILES(DO)
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

/* Outputs x to x + nv vectors of one line of filters f to f + nf: their kernels over the image's lines from `image` on.
   `apart`: floats between two filters in `to`. */
INLINE void NAME(convolve_tile)(const struct convolution *k, const float *image, const float *w, const float *b,
                                float *to, const int nv, const int nf) {
  const int64_t apart = 2 * k->line, filter = k->channels * k->kernel * k->kp;
  vec sum[8][2];
  UNROLL for (int f = 0; f < nf; f++) UNROLL for (int v = 0; v < nv; v++) sum[f][v] = (vec){0} + b[f];
  for (int64_t c = 0; c < k->channels; c++)
    for (int64_t i = 0; i < k->kernel; i++) {
      const float *line = image + c * k->plane + i * k->line, *own = w + (c * k->kernel + i) * k->kp;
      for (int64_t j = 0; j < k->kernel; j++) {
        vec row[2];
        UNROLL for (int v = 0; v < nv; v++) row[v] = NAME(load)(line + j + v * LANES);
        UNROLL for (int f = 0; f < nf; f++) UNROLL for (int v = 0; v < nv; v++) sum[f][v] += own[f * filter + j] * row[v];
      }
    }
  UNROLL for (int f = 0; f < nf; f++) UNROLL for (int v = 0; v < nv; v++)
      NAME(store)(to + f * apart + v * LANES, sum[f][v]);
}

/* nv vectors of a line's outputs for all filters: as many at a time as the registers hold, then fewer */
INLINE void NAME(convolve_columns)(const struct convolution *k, const float *image, const float *w, const float *b,
                                   float *to, const int nv) {
  const int64_t apart = 2 * k->line, filter = k->channels * k->kernel * k->kp;
  int64_t f = 0;
#define FILTERS(NF)   for (; f + NF <= k->filters; f += NF) NAME(convolve_tile)(k, image, w + f * filter, b + f, to + f * apart, nv, NF);
#if VB == 64
  FILTERS(8)
#endif
  FILTERS(4) FILTERS(2) FILTERS(1)
#undef FILTERS
}

/* Line y of a convolution's outputs, bias included, to [filters][2 line]. Behind the last column stand numbers that
   mean nothing. */
static void NAME(convolve)(const struct convolution *k, const float *w, const float *b, int64_t y, float *to) {
  const float *image = k->image + y * k->line;
  for (int64_t x = 0; x < k->columns; x += 2 * LANES)
    if (k->columns - x > LANES) NAME(convolve_columns)(k, image + x, w, b, to + x, 2);
    else NAME(convolve_columns)(k, image + x, w, b, to + x, 1);
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

/* The largest of every 2 x 2 of two lines, and which it is, from 0 (upper left) to 3. */
static void NAME(pool)(const float *upper, const float *lower, int64_t columns, float *to, uint8_t *at) {
  ivec even, odd;
  UNROLL for (int i = 0; i < LANES; i++) even[i] = 2 * i, odd[i] = 2 * i + 1;
  for (int64_t x = 0; x < columns; x += LANES) {
    const int64_t some = columns - x < LANES ? columns - x : LANES;
    const vec u = NAME(load)(upper + 2 * x), v = NAME(load)(upper + 2 * x + LANES);
    const vec m = NAME(load)(lower + 2 * x), n = NAME(load)(lower + 2 * x + LANES);
    vec above = __builtin_shuffle(u, v, even), below = __builtin_shuffle(m, n, even);
    ivec first = (ivec){0}, second = (ivec){0} + 2;
    NAME(larger)(&above, &first, __builtin_shuffle(u, v, odd), (ivec){0} + 1);
    NAME(larger)(&below, &second, __builtin_shuffle(m, n, odd), (ivec){0} + 3);
    NAME(larger)(&above, &first, below, second);
    for (int64_t i = 0; i < some; i++) to[x + i] = above[i], at[x + i] = first[i];
  }
}

/* For each size of a kernel two functions. slopes: the gradient of one channel of a filter [kernel][kp], the sum over n
   outputs of their gradients times what the kernel saw there; two sums in turn hide the time of a multiplication.
   below: what one output's gradient gives that at the padded image, through a filter w [channels][kernel][kp]. */
#define SLOPES(KERNEL, kvec, kp) \
  INLINE void NAME(slopes_##KERNEL)(const float *image, int64_t line, const int32_t *from, const float *ones, int64_t n, \
                                    float *to) { \
    kvec even[KERNEL], odd[KERNEL]; \
    UNROLL for (int j = 0; j < KERNEL; j++) even[j] = odd[j] = (kvec){0}; \
    int64_t i = 0; \
    for (; i + 2 <= n; i += 2) { \
      const float *one = image + from[i], *two = image + from[i + 1]; \
      UNROLL for (int j = 0; j < KERNEL; j++) even[j] += ones[i] * *(const kvec *)(one + j * line); \
      UNROLL for (int j = 0; j < KERNEL; j++) odd[j] += ones[i + 1] * *(const kvec *)(two + j * line); \
    } \
    if (i < n) UNROLL for (int j = 0; j < KERNEL; j++) even[j] += ones[i] * *(const kvec *)(image + from[i] + j * line); \
    UNROLL for (int j = 0; j < KERNEL; j++) *(kvec *)(to + j * kp) += even[j] + odd[j]; \
  } \
  INLINE void NAME(below_##KERNEL)(const struct convolution *k, float *to, float one, const float *w) { \
    for (int64_t c = 0; c < k->channels; c++, to += k->plane, w += KERNEL * kp) { \
      float *own = to; \
      UNROLL for (int j = 0; j < KERNEL; j++, own += k->line) *(kvec *)own += one * *(const kvec *)(w + j * kp); \
    } \
  }
#define KERNELS(DO) \
  DO(1, quad, 4) DO(2, quad, 4) DO(3, quad, 4) DO(4, quad, 4) DO(5, oct, 8) DO(6, oct, 8) DO(7, oct, 8) DO(8, oct, 8)
typedef float quad __attribute__((vector_size(16), aligned(4)));
typedef float oct __attribute__((vector_size(32), aligned(4)));
KERNELS(SLOPES)

/* From the gradient g [out] at one sample's outputs after pooling, add to the gradients of weights and biases, and
   (below) to that at the padded image. Pooling and ReLU leave few gradients that are not 0: only these are used. */
static void NAME(convolve_back)(const struct convolution *k, const float *w, const float *g, const uint8_t *at,
                                int below) {
  const int64_t rows = k->rows >> k->pooled, columns = k->columns >> k->pooled, channel = k->kernel * k->kp;
  for (int64_t f = 0; f < k->filters; f++) {
    const float *own = w + f * k->channels * channel;
    float total = 0;
    int64_t n = 0;
    for (int64_t y = 0; y < rows; y++)
      for (int64_t x = 0; x < columns; x++, g++, at++) {
        const int64_t down = k->pooled ? 2 * y + (*at >> 1) : y, right = k->pooled ? 2 * x + (*at & 1) : x;
        k->from[n] = (int32_t)(down * k->line + right), k->ones[n] = *g;
        n += *g != 0;
      }
    for (int64_t i = 0; i < n; i++) total += k->ones[i];
    k->bias_slope[f] += total;
    switch (k->kernel) {
#define DO(KERNEL, kvec, kp) \
  case KERNEL: \
    for (int64_t c = 0; c < k->channels; c++) \
      NAME(slopes_##KERNEL)(k->image + c * k->plane, k->line, k->from, k->ones, n, \
                            k->slope + (f * k->channels + c) * channel); \
    for (int64_t i = 0; below && i < n; i++) NAME(below_##KERNEL)(k, k->below + k->from[i], k->ones[i], own); \
    break;
      KERNELS(DO)
#undef DO
    }
  }
}

#undef JOIN_
#undef JOIN
#undef NAME
#undef LANES
#undef vec
#undef ivec
#undef quad
#undef oct
#undef SLOPES
#undef KERNELS
#undef UNROLL
#undef INLINE
#undef WIDEST
#undef TILES
#undef VB
#undef SUFFIX
