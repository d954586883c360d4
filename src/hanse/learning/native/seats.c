/* Local SGD of one seat's model after another: convolutions with pooling and ReLU, then linear layers
   with ReLU or tanh between them, in 32-bit floats.

   The PyTorch engines do the same arithmetic. This one keeps a seat's weights, velocities and batch in the second cache
   from its first step to its last, reads samples where they lie, and makes momentum and the step part of the gradient's
   product. The order of every sum is fixed, and a seat knows nothing of the others: its bits do not depend on how many
   seats or threads there are. They do depend on the width of the processor's vectors (hanse_vectors).

   engine.py loads this file with ctypes, and calls its functions. Nothing is checked here: engine.py sees to it that
   every position, label and size is within bounds. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* what follows a linear layer; engine.py has the same numbers */
enum activation { NONE, RELU, TANH };

/* as Layer in engine.py, field by field */
struct layer {
  int64_t in, out, activation, bias; /* bias: whether there is one */
  /* of a convolution with stride 1; a linear layer's kernel is 0. in = channels height width; pooled: whether the
     largest of every 2 x 2 outputs is taken. kernel is its height and width, pad is below it. */
  int64_t channels, height, width, filters, kernel, pad, pooled;
};

/* A convolution at work. Images and outputs have their channels last: [height][width][channels], so that a product's
   row, kernel x channels numbers of one line, lies together. */
struct convolution {
  int64_t channels, height, width, filters, kernel, pad, pooled;
  const struct vectors *by;      /* for its products and pooling: not wider than its filters need */
  int64_t rows, columns, places; /* of the outputs before pooling that are used, and how many these are */
  int64_t line;              /* floats from one line of the padded image to the next, a whole vector behind its end */
  int64_t wide, span;        /* kernel x channels; the same, padded to whole vectors */
  int64_t ld;                /* filters, padded to whole vectors */
  float *image, *below;      /* one sample, padded, and the gradient at it: [height + 2 pad][line] */
  float *maps;               /* its outputs before pooling: [places][ld] */
  float *turned;             /* the weights as products take them: [kernel][wide][ld] */
  float *slope, *bias_slope; /* a batch's gradient, as the weights and the biases */
  float *ones;               /* of one filter, the gradients that are not 0, and where the kernel stood there */
  int32_t *from;
  int64_t *sees;             /* how far from there each vector of a filter looks */
  const float **lines;       /* [places]: where the kernel's first line stands for each output */
  uint8_t *at;               /* [width][out]: which of the 2 x 2 was the largest */
};

/* as Seat in engine.py, field by field; [P] is a row as PyTorch has it, each layer's weights [out][in], then biases */
struct seat {
  const float *start, *constant; /* rows [P]: the first weights; what is added to every gradient (or NULL) */
  float *row;                    /* row [P] of the trained weights */
  float *velocity;               /* row [P] to go on from and to leave behind; NULL: zero at first, and not kept */
  const int64_t *batches;        /* [steps][width] positions in the pool, -1 where a batch is short */
  int64_t steps, width, reported; /* losses count from step `reported` on */
  int64_t counted;               /* samples whose losses were counted so far; train adds to it */
  double pull, loss;             /* times the weights, is added to every gradient; the sum of the losses counted */
};

/* the settings of a step of SGD */
struct step {
  float lr, momentum, pull;
};

/* tiles.h once for each width of vectors. The file is compiled for any processor of the architecture; only these
   functions may use wider instructions, and hanse_use_vectors sees which of them the processor has. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define VB 32
#define SUFFIX avx2
#include "tiles.h"
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx2,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma")
#endif
#define VB 64
#define SUFFIX avx512
#include "tiles.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
#define VB 16
#define SUFFIX plain
#include "tiles.h"

/* the functions of tiles.h for one width; lanes is how many floats are in a vector */
struct vectors {
  const char *name;
  int64_t lanes;
  const struct vectors *narrower; /* the next narrower ones that are as fast a number, or NULL */
  void (*forward)(const float *const *, int64_t, int64_t, int64_t, int64_t, const float *, int64_t, float *);
  void (*mix)(const float *const *, const float *, int64_t, int64_t, int64_t, float *);
  void (*step)(const float *const *, int64_t, int64_t, const float *, int64_t, float *, float *, const float *,
               const struct step *);
  void (*pool)(const struct convolution *, float *, uint8_t *);
  void (*convolve_back)(const struct convolution *, const float *, const float *, const uint8_t *, int);
};

static const struct vectors *chosen;

/* Choose vectors by name ("plain", "avx2", "avx512"), or the widest that this processor has (NULL). Returns 0, or 1 if
   it has none of that name. */
int hanse_use_vectors(const char *name) {
  static const struct vectors plain = {"plain", 4, NULL, forward_plain, mix_plain, step_plain, pool_plain,
                                       convolve_back_plain};
  const struct vectors *found[3], **end = found;
#if defined(__x86_64__)
  static const struct vectors avx2 = {"avx2", 8, NULL, forward_avx2, mix_avx2, step_avx2, pool_avx2,
                                       convolve_back_avx2};
  static const struct vectors avx512 = {"avx512", 16, &avx2, forward_avx512, mix_avx512, step_avx512, pool_avx512,
                                       convolve_back_avx512};
  if (__builtin_cpu_supports("avx512f")) *end++ = &avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) *end++ = &avx2;
#endif
  *end++ = &plain;
  for (const struct vectors **one = found; one < end; one++)
    if (!name || !strcmp(name, (*one)->name)) {
      chosen = *one;
      return 0;
    }
  return 1;
}

static const struct vectors *vectors(void) {
  if (!chosen) hanse_use_vectors(NULL);
  return chosen;
}

/* the name of the vectors in use */
const char *hanse_vectors(void) { return vectors()->name; }

/* To be raised with every change of what the functions below take. engine.py refuses a compiled file whose number is
   not its own VERSION. */
int hanse_native_version(void) { return 4; }

/* One layer at work. w, v, c: weights, their velocities and constants, [in][ld], of a convolution
   [filters][kernel][span]: `weights` floats each. b, bv, bc: the same of the biases, `biases` floats each.
   a: activations, g: the gradients at them, [width][ld]. ld is the number of outputs, padded to whole vectors. */
struct work {
  int64_t in, out, ld, activation, bias, weights, biases;
  int64_t maps; /* of a linear layer above a convolution, the filters of that; else 1 */
  float *w, *v, *c, *b, *bv, *bc, *a, *g;
  struct convolution k; /* its kernel is 0 for a linear layer */
};

/* the next multiple of `to` */
static int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* How many floats the largest of the weights takes that below() turns. The first layer's are never turned. */
static int64_t transposed_size(const struct layer *layers, int64_t depth, int64_t lanes) {
  int64_t most = 0;
  for (int64_t i = 1; i < depth; i++) {
    const int64_t n = layers[i].kernel ? 0 : layers[i].out * padded(layers[i].in, lanes);
    most = n > most ? n : most;
  }
  return most;
}

/* Describe a layer above another (or NULL); the buffers come with cut. */
static struct work shape_of(const struct layer *l, const struct layer *lower, const struct vectors *by) {
  const int64_t lanes = by->lanes, ld = padded(l->out, lanes);
  struct work w = {.in = l->in, .out = l->out, .ld = ld, .activation = l->activation, .bias = l->bias};
  w.weights = l->in * ld, w.biases = ld, w.maps = lower && lower->kernel ? lower->filters : 1;
  if (l->kernel) {
    struct convolution *k = &w.k;
    k->channels = l->channels, k->height = l->height, k->width = l->width, k->filters = l->filters;
    k->kernel = l->kernel, k->pad = l->pad, k->pooled = l->pooled;
    k->rows = l->height + 2 * l->pad - l->kernel + 1, k->columns = l->width + 2 * l->pad - l->kernel + 1;
    if (k->pooled) k->rows -= k->rows % 2, k->columns -= k->columns % 2; /* pooling leaves out an odd one */
    k->places = k->rows * k->columns, k->line = padded((l->width + 2 * l->pad) * l->channels, lanes) + lanes;
    k->wide = l->kernel * l->channels, k->span = padded(k->wide, lanes);
    k->by = by->narrower && l->filters <= by->narrower->lanes ? by->narrower : by;
    k->ld = padded(l->filters, k->by->lanes);
    w.weights = l->filters * l->kernel * k->span, w.biases = k->ld;
  }
  return w;
}

/* Give a layer its buffers from `memory` on, unless it is NULL; return how many floats they take. */
static int64_t cut(struct work *w, int64_t lanes, int64_t width, float *memory) {
  struct convolution *k = &w->k;
  float **const all[] = {&w->w, &w->v, &w->c, &w->b, &w->bv, &w->bc, &w->a, &w->g,
                         &k->image, &k->below, &k->maps, &k->turned, &k->slope, &k->bias_slope, &k->ones,
                         (float **)&k->from, (float **)&k->sees, (float **)&k->lines, (float **)&k->at};
  const int64_t image = (k->height + 2 * k->pad) * k->line, acts = width * w->ld + 16; /* pool writes whole vectors */
  const int64_t sizes[] = {w->weights, w->weights, w->weights, w->biases, w->biases, w->biases, acts, acts,
                           image, image, k->places * k->ld, k->kernel * k->wide * k->ld, k->kernel ? w->weights : 0,
                           k->ld, k->places + 1, k->places + 1, 2 * k->kernel * k->span / lanes, 2 * k->places,
                           k->pooled ? acts / 4 + 16 : 0};
  int64_t taken = 0;
  for (int64_t i = 0; i < 19; taken += padded(sizes[i++], 16))
    if (memory) *all[i] = memory + taken;
  for (int64_t i = 0; memory && i < k->places; i++)
    k->lines[i] = k->image + i / k->columns * k->line + i % k->columns * k->channels;
  for (int64_t i = 0; memory && i < k->kernel * k->span / lanes; i++)
    k->sees[i] = i * lanes / k->span * k->line + i * lanes % k->span;
  return taken;
}

/* Where the weight i of PyTorch's input stands here: a linear layer above a convolution meets its channels last. */
static int64_t input_of(const struct work *l, int64_t i) {
  const int64_t places = l->in / l->maps;
  return i % places * l->maps + i / places;
}

/* Where the weight i of a filter [channels][kernel][kernel] stands in [kernel][span]. */
static int64_t weight_of(const struct convolution *k, int64_t i) {
  const int64_t x = i % k->kernel, y = i / k->kernel % k->kernel, c = i / (k->kernel * k->kernel);
  return y * k->span + x * k->channels + c;
}

/* Read a layer from a row, with weights turned to [in][ld] and zeros as padding; return where the next layer begins. */
static const float *take(const float *row, const struct work *l, float *w, float *b) {
  const struct convolution *k = &l->k;
  const int64_t each = k->kernel * k->wide;
  memset(w, 0, sizeof(float) * l->weights);
  memset(b, 0, sizeof(float) * l->biases);
  if (k->kernel)
    for (int64_t f = 0; f < k->filters; f++, row += each)
      for (int64_t i = 0; i < each; i++) w[f * k->kernel * k->span + weight_of(k, i)] = row[i];
  else
    for (int64_t o = 0; o < l->out; o++, row += l->in)
      for (int64_t i = 0; i < l->in; i++) w[input_of(l, i) * l->ld + o] = row[i];
  if (!l->bias) return row;
  const int64_t biases = k->kernel ? k->filters : l->out;
  memcpy(b, row, sizeof(float) * biases);
  return row + biases;
}

/* Write a layer to a row as PyTorch has it; return where the next layer begins. */
static float *put(float *row, const struct work *l, const float *w, const float *b) {
  const struct convolution *k = &l->k;
  const int64_t each = k->kernel * k->wide;
  if (k->kernel)
    for (int64_t f = 0; f < k->filters; f++, row += each)
      for (int64_t i = 0; i < each; i++) row[i] = w[f * k->kernel * k->span + weight_of(k, i)];
  else
    for (int64_t o = 0; o < l->out; o++, row += l->in)
      for (int64_t i = 0; i < l->in; i++) row[i] = w[input_of(l, i) * l->ld + o];
  if (!l->bias) return row;
  const int64_t biases = k->kernel ? k->filters : l->out;
  memcpy(row, b, sizeof(float) * biases);
  return row + biases;
}

/* Make a convolution's weights ready for products. */
static void turn(const struct convolution *k, const float *w) {
  for (int64_t f = 0; f < k->filters; f++)
    for (int64_t y = 0; y < k->kernel; y++, w += k->span)
      for (int64_t i = 0; i < k->wide; i++) k->turned[(y * k->wide + i) * k->ld + f] = w[i];
}

/* Apply the activation to `rows` samples, in place. */
static void activate(const struct work *l, int64_t rows) {
  if (l->activation == RELU)
    for (int64_t i = 0; i < rows * l->ld; i++) l->a[i] = l->a[i] < 0 ? 0 : l->a[i];
  if (l->activation == TANH)
    for (int64_t r = 0; r < rows; r++)
      for (int64_t o = 0; o < l->out; o++) l->a[r * l->ld + o] = tanhf(l->a[r * l->ld + o]);
}

/* Multiply the gradients by the activation's slope, which follows from its outputs: its inputs are not kept. */
static void slope(const struct work *l, int64_t rows) {
  if (l->activation == RELU)
    for (int64_t i = 0; i < rows * l->ld; i++) l->g[i] = l->a[i] > 0 ? l->g[i] : 0;
  if (l->activation == TANH)
    for (int64_t i = 0; i < rows * l->ld; i++) l->g[i] *= 1 - l->a[i] * l->a[i];
}

/* Point at the rows of a matrix, for products that take rows as pointers. */
static void lines(const float **to, const float *from, int64_t ld, int64_t rows) {
  for (int64_t r = 0; r < rows; r++) to[r] = from + r * ld;
}

/* Copy a sample into the padded image: from the pool [channels][height][width], or from the layer below. */
static void image_of(const struct convolution *k, const float *x, int pool) {
  for (int64_t c = 0; pool && c < k->channels; c++)
    for (int64_t y = 0; y < k->height; y++) {
      float *line = k->image + (y + k->pad) * k->line + k->pad * k->channels + c;
      for (int64_t i = 0; i < k->width; i++) line[i * k->channels] = *x++;
    }
  const int64_t whole = k->width * k->channels;
  for (int64_t y = 0; !pool && y < k->height; y++)
    memcpy(k->image + (y + k->pad) * k->line + k->pad * k->channels, x + y * whole, sizeof(float) * whole);
}

/* Run a convolution on the sample in its lines, so that maps holds its outputs before pooling. */
static void correlate(const struct work *l) {
  const struct convolution *k = &l->k;
  const int64_t all = k->places * k->ld;
  memcpy(k->maps, l->b, sizeof(float) * k->ld);
  for (int64_t have = k->ld; have < all; have *= 2) /* every place begins with the biases */
    memcpy(k->maps + have, k->maps, sizeof(float) * (all - have < have ? all - have : have));
  k->by->forward(k->lines, k->places, k->kernel, k->line, k->wide, k->turned, k->ld, k->maps);
}

/* Write what pooling leaves of maps to a [places][filters], and to `at` which it was. */
static void reduce(const struct convolution *k, float *a, uint8_t *at) {
  if (k->pooled) k->by->pool(k, a, at);
  else
    for (int64_t i = 0; i < k->places; i++) memcpy(a + i * k->filters, k->maps + i * k->ld, sizeof(float) * k->filters);
}

/* Run layers from `first` on, so that a[] of the last one are the outputs, and for training which outputs pooling left.
   x: the samples, or what the layer below put out; `own` is room for pointers to rows. */
static void run(const struct vectors *by, const struct work *layers, int64_t first, int64_t depth, const float **x,
                const float **own, int64_t rows, int training) {
  for (int64_t i = first; i < depth; i++) {
    const struct work *l = layers + i;
    for (int64_t r = 0; r < rows; r++)
      if (l->k.kernel) {
        image_of(&l->k, x[r], !i);
        correlate(l);
        reduce(&l->k, l->a + r * l->ld, training ? l->k.at + r * l->out : NULL);
      } else memcpy(l->a + r * l->ld, l->b, sizeof(float) * l->ld);
    if (!l->k.kernel) by->forward(x, rows, 1, 0, l->in, l->w, l->ld, l->a);
    activate(l, rows);
    lines(own, l->a, l->ld, rows);
    x = own;
  }
}

/* Cross-entropy with labels: fill the last layer's gradients (softmax - one-hot, over the batch's size) and return the
   sum of the samples' losses. The largest logit is taken off first, so that no exponential overflows. */
static double cross_entropy(const struct work *top, const int64_t *places, int64_t rows, const int64_t *labels) {
  double total = 0;
  for (int64_t r = 0; r < rows; r++) {
    const float *z = top->a + r * top->ld;
    float *g = top->g + r * top->ld, most = z[0], sum = 0;
    const int64_t y = labels[places[r]];
    for (int64_t c = 1; c < top->out; c++) most = z[c] > most ? z[c] : most;
    for (int64_t c = 0; c < top->out; c++) sum += g[c] = expf(z[c] - most);
    total += (double)logf(sum) + most - z[y];
    for (int64_t c = 0; c < top->out; c++) g[c] = (g[c] / sum - (c == y)) / rows;
    for (int64_t c = top->out; c < top->ld; c++) g[c] = 0;
  }
  return total;
}

/* The same for the squared error with targets [n][out], of which a sample's loss is the mean over its outputs. */
static double squared_error(const struct work *top, const int64_t *places, int64_t rows, const float *targets) {
  double total = 0;
  for (int64_t r = 0; r < rows; r++) {
    const float *z = top->a + r * top->ld, *y = targets + places[r] * top->out;
    float *g = top->g + r * top->ld;
    double squares = 0;
    for (int64_t c = 0; c < top->out; c++) {
      const float error = z[c] - y[c];
      squares += (double)error * error;
      g[c] = 2 * error / (top->out * rows);
    }
    for (int64_t c = top->out; c < top->ld; c++) g[c] = 0;
    total += squares / top->out;
  }
  return total;
}

/* The gradient at the activations of the layer below: g times the weights, which are turned so that the forward product
   can be used for it. */
static void below(const struct vectors *by, const struct work *l, const struct work *lower, float *turned,
                  const float **own, int64_t rows) {
  memset(turned, 0, sizeof(float) * l->out * lower->ld);
  for (int64_t i = 0; i < l->in; i++)
    for (int64_t o = 0; o < l->out; o++) turned[o * lower->ld + i] = l->w[i * l->ld + o];
  memset(lower->g, 0, sizeof(float) * rows * lower->ld);
  lines(own, l->g, l->ld, rows);
  by->forward(own, rows, 1, 0, l->out, turned, lower->ld, lower->g);
  slope(lower, rows);
}

/* One step of the biases, as that of the weights in tiles.h. */
static void step_biases(const struct work *l, const struct step *s, int64_t rows) {
  const int64_t n = l->ld;
  float *restrict v = l->bv, *restrict b = l->b;
  for (int64_t o = 0; o < n; o++) v[o] = s->momentum * v[o] + s->pull * b[o] + l->bc[o];
  for (int64_t r = 0; r < rows; r++)
    for (int64_t o = 0; o < n; o++) v[o] += l->g[r * n + o];
  for (int64_t o = 0; o < n; o++) b[o] -= s->lr * v[o];
}

/* Go back through a convolution: its gradients, that at the layer below (if there is one), and its step. */
static void back_convolution(const struct vectors *by, const struct work *l, int lowest, const float **x, int64_t rows,
                             const struct step *s) {
  const struct convolution *k = &l->k;
  const int64_t whole = k->width * k->channels;
  memset(k->slope, 0, sizeof(float) * l->weights);
  memset(k->bias_slope, 0, sizeof(float) * l->biases);
  for (int64_t r = 0; r < rows; r++) {
    image_of(k, x[r], lowest);
    if (!lowest) memset(k->below, 0, sizeof(float) * (k->height + 2 * k->pad) * k->line);
    by->convolve_back(k, l->w, l->g + r * l->ld, k->at + r * l->out, !lowest);
    for (int64_t y = 0; !lowest && y < k->height; y++)
      memcpy(l[-1].g + r * l[-1].ld + y * whole, k->below + (y + k->pad) * k->line + k->pad * k->channels,
             sizeof(float) * whole);
  }
  if (!lowest) slope(l - 1, rows);
  for (int64_t from = 0; from < l->weights; from += k->span)
    for (int64_t i = from; i < from + k->wide; i++) { /* what stands beyond a kernel's line is none of it */
      l->v[i] = s->momentum * l->v[i] + s->pull * l->w[i] + l->c[i] + k->slope[i];
      l->w[i] -= s->lr * l->v[i];
    }
  turn(k, l->w);
  for (int64_t f = 0; l->bias && f < k->filters; f++) {
    l->bv[f] = s->momentum * l->bv[f] + s->pull * l->b[f] + l->bc[f] + k->bias_slope[f];
    l->b[f] -= s->lr * l->bv[f];
  }
}

/* Go back through the layers, from the gradients at the outputs, and take each layer's step. The layer below gets its
   gradient first: it is that at the weights before the step. */
static void back(const struct vectors *by, const struct work *layers, int64_t depth, const float **x, const float **own,
                 float *turned, int64_t rows, const struct step *s, int constant) {
  for (int64_t i = depth - 1; i >= 0; i--) {
    const struct work *l = layers + i;
    if (l->k.kernel) {
      if (i) lines(own, l[-1].a, l[-1].ld, rows);
      back_convolution(by, l, !i, i ? own : x, rows, s);
      continue;
    }
    if (i) {
      below(by, l, l - 1, turned, own, rows);
      lines(own, l[-1].a, l[-1].ld, rows);
    }
    by->step(i ? own : x, rows, l->in, l->g, l->ld, l->w, l->v, constant ? l->c : 0, s);
    if (l->bias) step_biases(l, s, rows);
  }
}

/* Load a seat's first weights, its velocities and its constants. */
static void begin(const struct seat *seat, const struct work *layers, int64_t depth) {
  const float *start = seat->start, *velocity = seat->velocity, *constant = seat->constant;
  for (int64_t i = 0; i < depth; i++) {
    const struct work *l = layers + i;
    memset(l->v, 0, sizeof(float) * l->weights);
    memset(l->c, 0, sizeof(float) * l->weights);
    memset(l->bv, 0, sizeof(float) * l->biases);
    memset(l->bc, 0, sizeof(float) * l->biases);
    start = take(start, l, l->w, l->b);
    turn(&l->k, l->w);
    if (velocity) velocity = take(velocity, l, l->v, l->bv);
    if (constant) constant = take(constant, l, l->c, l->bc);
  }
}

/* Train one seat for its steps. `turned`, `x`, `own` and `places` are room to work in. */
static void train(const struct vectors *by, struct seat *seat, const struct work *layers, int64_t depth,
                  const float *pool, int64_t inputs, const int64_t *labels, const float *targets, float lr,
                  float momentum, float *turned, const float **x, const float **own, int64_t *places) {
  const struct step s = {lr, momentum, (float)seat->pull};
  begin(seat, layers, depth);
  for (int64_t t = 0; t < seat->steps; t++) {
    int64_t rows = 0;
    for (int64_t i = 0; i < seat->width; i++) {
      const int64_t place = seat->batches[t * seat->width + i];
      if (place >= 0) places[rows] = place, x[rows++] = pool + place * inputs;
    }
    if (!rows) continue; /* nothing but padding */
    run(by, layers, 0, depth, x, own, rows, 1);
    const struct work *top = layers + depth - 1;
    const double loss = labels ? cross_entropy(top, places, rows, labels) : squared_error(top, places, rows, targets);
    if (t >= seat->reported) seat->loss += loss, seat->counted += rows;
    back(by, layers, depth, x, own, turned, rows, &s, seat->constant != 0);
  }
  float *row = seat->row, *velocity = seat->velocity;
  for (const struct work *l = layers; l < layers + depth; l++) {
    row = put(row, l, l->w, l->b);
    if (velocity) velocity = put(velocity, l, l->v, l->bv);
  }
}

/* Train seats on a pool [n][inputs] with labels [n], or targets [n][outputs] where labels is NULL. All seats use the
   same memory, one after another. Returns 0, or 1 if there is not enough memory: then nothing was written. */
int hanse_train(const struct layer *given, int64_t depth, struct seat *seats, int64_t count, const float *pool,
                const int64_t *labels, const float *targets, double lr, double momentum) {
  const struct vectors *by = vectors();
  int64_t width = 1, size = transposed_size(given, depth, by->lanes);
  for (int64_t i = 0; i < count; i++) width = seats[i].width > width ? seats[i].width : width;
  struct work *layers = malloc(sizeof(struct work) * depth);
  for (int64_t i = 0; layers && i < depth; i++)
    layers[i] = shape_of(given + i, i ? given + i - 1 : NULL, by), size += cut(layers + i, by->lanes, width, NULL);
  float *memory = calloc(size + 16, sizeof(float)); /* 16 more, to begin at a cache line of 64 bytes */
  const float **x = malloc(sizeof(float *) * 2 * width);
  int64_t *places = malloc(sizeof(int64_t) * width);
  const int enough = memory && x && places && layers;
  if (enough) {
    float *free_from = (float *)(((uintptr_t)memory + 63) / 64 * 64);
    for (int64_t i = 0; i < depth; i++) free_from += cut(layers + i, by->lanes, width, free_from);
    for (int64_t i = 0; i < count; i++)
      train(by, seats + i, layers, depth, pool, given->in, labels, targets, (float)lr, (float)momentum, free_from, x,
            x + width, places);
  }
  free(memory), free(x), free(places), free(layers);
  return !enough;
}

/* Write the last layer's outputs on some samples to out [outputs][n]. */
static void put_out(const struct work *top, int64_t rows, float *out, int64_t n) {
  for (int64_t o = 0; o < top->out; o++)
    for (int64_t r = 0; r < rows; r++) out[o * n + r] = top->a[r * top->ld + o];
}

/* Write what a model, row [P], puts out on samples x [n][inputs] to out [outputs][n], in blocks of 64 samples, whose
   activations stay in the cache from layer to layer. Returns as hanse_train does. */
int hanse_outputs(const struct layer *given, int64_t depth, const float *row, const float *x, int64_t n, float *out) {
  enum { BLOCK = 64 };
  const struct vectors *by = vectors();
  int64_t size = 0;
  struct work *layers = malloc(sizeof(struct work) * depth);
  for (int64_t i = 0; layers && i < depth; i++)
    layers[i] = shape_of(given + i, i ? given + i - 1 : NULL, by), size += cut(layers + i, by->lanes, BLOCK, NULL);
  float *memory = calloc(size + 16, sizeof(float));
  const int enough = memory && layers;
  if (enough) {
    float *free_from = (float *)(((uintptr_t)memory + 63) / 64 * 64);
    for (int64_t i = 0; i < depth; i++) {
      free_from += cut(layers + i, by->lanes, BLOCK, free_from);
      row = take(row, layers + i, layers[i].w, layers[i].b);
      turn(&layers[i].k, layers[i].w);
    }
    const float *lines_of_x[BLOCK], *own[BLOCK];
    for (int64_t from = 0; from < n; from += BLOCK) {
      const int64_t rows = n - from < BLOCK ? n - from : BLOCK;
      lines(lines_of_x, x + from * given->in, given->in, rows);
      run(by, layers, 0, depth, lines_of_x, own, rows, 0);
      put_out(layers + depth - 1, rows, out + from, n);
    }
  }
  free(memory), free(layers);
  return !enough;
}

/* A model whose first convolution's outputs are a mixture of those of some rows. */
struct mixture {
  const float **from; /* [count] those outputs, before pooling */
  float *shares;      /* [count] */
  int64_t count;
  struct work *layers;
};

/* Put the sample x through the first convolution of all `rows` models in `lower`, and what the mixtures make of it as
   row r into their first layers. It is mixed piece by piece, as high as pooling and so wide that a piece of all rows,
   24 KiB, stays in the first cache. All of `lower` look at the image of its first one. */
static void mix_first(const struct work *lower, int64_t rows, const struct mixture *mixtures, int64_t count,
                      float *room, const float *x, int64_t r) {
  const struct convolution *k = &lower->k;
  image_of(k, x, 1);
  for (int64_t s = 0; s < rows; s++) correlate(lower + s);
  struct convolution piece = *k;
  piece.rows = 1 + k->pooled, piece.maps = room;
  const int64_t pieces = 1 + (int64_t)sizeof(float) * rows * piece.rows * k->columns * k->ld / 24576;
  const int64_t step = padded((k->columns + pieces - 1) / pieces, piece.rows);
  for (int64_t y = 0; y < k->rows; y += piece.rows)
    for (int64_t x0 = 0; x0 < k->columns; x0 += step) {
      piece.columns = k->columns - x0 < step ? k->columns - x0 : step, piece.places = piece.rows * piece.columns;
      const int64_t wide = piece.columns * k->ld, at = (y * k->columns + x0) * k->ld;
      const int64_t to = (y >> k->pooled) * (k->columns >> k->pooled) + (x0 >> k->pooled);
      for (const struct mixture *m = mixtures; m < mixtures + count; m++) {
        for (int64_t line = 0; line < piece.rows; line++)
          k->by->mix(m->from, m->shares, m->count, at + line * k->columns * k->ld, wide, room + line * wide);
        reduce(&piece, m->layers->a + r * m->layers->ld + to * k->filters, NULL);
      }
    }
}

/* Cut memory for the first layer of `count` rows and for all layers of `many` mixtures on `block` samples, unless it is
   NULL; return how many floats they take. */
static int64_t cut_mixed(const struct vectors *by, const struct layer *given, int64_t depth, struct work *lower,
                         int64_t count, const struct mixture *mixtures, int64_t many, int64_t block, float *memory) {
  int64_t taken = 0;
  for (int64_t s = 0; s < count; s++) {
    lower[s] = shape_of(given, NULL, by);
    taken += cut(lower + s, by->lanes, 1, memory ? memory + taken : NULL);
    lower[s].k.lines = lower->k.lines;
  }
  for (int64_t c = 0; c < many; c++)
    for (int64_t i = 0; i < depth; i++) {
      mixtures[c].layers[i] = shape_of(given + i, i ? given + i - 1 : NULL, by);
      taken += cut(mixtures[c].layers + i, by->lanes, block, memory ? memory + taken : NULL);
    }
  return taken;
}

/* Read the first layers' weights of all rows, and of each mixture the shares that are not 0 and the other layers. */
static void take_mixed(int64_t depth, const struct work *lower, const float *rows, int64_t count,
                       struct mixture *mixtures, const float *models, const float *shares, int64_t many) {
  for (int64_t s = 0; s < count; s++) {
    rows = take(rows, lower + s, lower[s].w, lower[s].b);
    turn(&lower[s].k, lower[s].w);
  }
  for (struct mixture *m = mixtures; m < mixtures + many; m++, shares += count) {
    for (int64_t s = 0; s < count; s++)
      if (shares[s] != 0) m->from[m->count] = lower[s].k.maps, m->shares[m->count++] = shares[s];
    for (int64_t i = 1; i < depth; i++) {
      models = take(models, m->layers + i, m->layers[i].w, m->layers[i].b);
      turn(&m->layers[i].k, m->layers[i].w);
    }
  }
}

/* Write what `many` models put out on samples x [n][inputs] to out [many][outputs][n]. Their first layer is a
   convolution, a mixture of those of `count` rows by shares [many][count]: so it is run once for each row, and its
   outputs are mixed. rows [count][..]: the first layer of these rows; models [many][..]: the other layers.
   Returns as hanse_train does. */
int hanse_mixed(const struct layer *given, int64_t depth, const float *rows, int64_t count, const float *models,
                const float *shares, int64_t many, const float *x, int64_t n, float *out) {
  enum { BLOCK = 16 }; /* enough to fill the tiles of linear layers */
  const struct vectors *by = vectors();
  struct work *lower = malloc(sizeof(struct work) * (count + many * depth));
  struct mixture *mixtures = malloc(sizeof(struct mixture) * many);
  const float **from = malloc(sizeof(float *) * many * count);
  float *parts = malloc(sizeof(float) * many * count), *memory = NULL;
  if (lower && mixtures && from && parts) {
    for (int64_t c = 0; c < many; c++)
      mixtures[c] = (struct mixture){from + c * count, parts + c * count, 0, lower + count + c * depth};
    const int64_t size = padded(cut_mixed(by, given, depth, lower, count, mixtures, many, BLOCK, NULL), 16);
    memory = calloc(size + lower->k.places * lower->k.ld + 16, sizeof(float));
    if (memory) {
      float *begin = (float *)(((uintptr_t)memory + 63) / 64 * 64);
      cut_mixed(by, given, depth, lower, count, mixtures, many, BLOCK, begin);
      take_mixed(depth, lower, rows, count, mixtures, models, shares, many);
      for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t left = n - at < BLOCK ? n - at : BLOCK;
        for (int64_t r = 0; r < left; r++)
          mix_first(lower, count, mixtures, many, begin + size, x + (at + r) * given->in, r);
        for (int64_t c = 0; c < many; c++) {
          const struct work *layers = mixtures[c].layers, *top = layers + depth - 1;
          const float *own[BLOCK];
          activate(layers, left);
          lines(own, layers->a, layers->ld, left);
          run(by, layers, 1, depth, own, own, left, 0);
          put_out(top, left, out + c * top->out * n + at, n);
        }
      }
    }
  }
  const int enough = memory != NULL;
  free(memory), free(lower), free(mixtures), free(from), free(parts);
  return !enough;
}
