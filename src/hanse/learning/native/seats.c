/* Local SGD of one seat's model after another: convolutions of few channels with pooling and ReLU, then linear layers
   with ReLU or tanh between them, in 32-bit floats.

   The PyTorch engines do the same arithmetic. This one keeps a seat's weights, velocities and batch in the second cache
   from its first step to its last, reads samples where they lie, and makes momentum and the step part of the gradient's
   product. The order of every sum is fixed, and a seat knows nothing of the others: its bits do not depend on how many
   seats or threads there are. They do depend on the width of the processor's vectors (hanse_vectors).

   library.py loads this file with ctypes, and engine.py calls hanse_train and hanse_outputs. Nothing is checked here:
   engine.py sees to it that every position, label and size is within bounds. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* what follows a linear layer; library.py has the same numbers */
enum activation { NONE, RELU, TANH };

/* as Layer in library.py, field by field */
struct layer {
  int64_t in, out, activation, bias; /* bias: whether there is one */
  /* of a convolution with stride 1; a linear layer's kernel is 0. in = channels height width; pooled: whether the
     largest of every 2 x 2 outputs is taken. kernel is its height and width, at most 8, and pad below it. */
  int64_t channels, height, width, filters, kernel, pad, pooled;
};

/* A convolution at work. line and plane are how many floats apart two lines and two channels of the padded image are;
   kp is that of two lines of a kernel. Beyond its width every line has at least 7 zeros, so whole vectors are read. */
struct convolution {
  int64_t channels, height, width, filters, kernel, pad, pooled;
  int64_t rows, columns; /* of the outputs before pooling */
  int64_t kp, line, plane;
  float *image, *below;      /* one sample, padded, and the gradient at it: [channels][plane] */
  float *maps;               /* two lines of outputs before pooling: [filters][2][line] */
  float *slope, *bias_slope; /* a batch's gradient, as the weights and the biases */
  float *ones;               /* of one filter, the gradients that are not 0, and where the kernel stood there */
  int32_t *from;
  uint8_t *at;               /* [width][out]: which of the 2 x 2 was the largest */
};

/* as Seat in library.py, field by field; [P] is a row as PyTorch has it, each layer's weights [out][in], then biases */
struct seat {
  const float *start, *constant; /* rows [P]: the first weights; what is added to every gradient (or NULL) */
  float *row;                    /* row [P] of the trained weights */
  const int64_t *batches;        /* [steps][width] positions in the pool, -1 where a batch is short */
  int64_t steps, width, reported; /* losses count from step `reported` on */
  double pull, loss;             /* times the weights, is added to every gradient; the mean loss reported, or NaN */
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
  void (*forward)(const float *const *, int64_t, int64_t, const float *, int64_t, float *);
  void (*step)(const float *const *, int64_t, int64_t, const float *, int64_t, float *, float *, const float *,
               const struct step *);
  void (*pool)(const float *, const float *, int64_t, float *, uint8_t *);
  void (*convolve)(const struct convolution *, const float *, const float *, int64_t, float *);
  void (*convolve_back)(const struct convolution *, const float *, const float *, const uint8_t *, int);
};

static const struct vectors *chosen;

/* Choose vectors by name ("plain", "avx2", "avx512"), or the widest that this processor has (NULL). Returns 0, or 1 if
   it has none of that name. */
int hanse_use_vectors(const char *name) {
  static const struct vectors plain = {"plain", 4, forward_plain, step_plain, pool_plain, convolve_plain, convolve_back_plain};
  const struct vectors *found[3], **end = found;
#if defined(__x86_64__)
  static const struct vectors avx2 = {"avx2", 8, forward_avx2, step_avx2, pool_avx2, convolve_avx2, convolve_back_avx2};
  static const struct vectors avx512 = {"avx512", 16, forward_avx512, step_avx512, pool_avx512, convolve_avx512, convolve_back_avx512};
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

/* To be raised with every change of what the functions below take. library.py refuses a compiled file whose number is
   not its own VERSION. */
int hanse_native_version(void) { return 2; }

/* One layer at work. w, v, c: weights, their velocities and constants, [in][ld], of a convolution
   [filters][channels][kernel][kp]: `weights` floats each. b, bv, bc: the same of the biases, `biases` floats each.
   a: activations, g: the gradients at them, [width][ld]. ld is the number of outputs, padded to whole vectors. */
struct work {
  int64_t in, out, ld, activation, bias, weights, biases;
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

/* Describe a layer; the buffers come with cut. */
static struct work shape_of(const struct layer *l, int64_t lanes) {
  const int64_t ld = padded(l->out, lanes);
  struct work w = {.in = l->in, .out = l->out, .ld = ld, .activation = l->activation, .bias = l->bias};
  w.weights = l->in * ld, w.biases = ld;
  if (l->kernel) {
    struct convolution k = {l->channels, l->height, l->width, l->filters, l->kernel, l->pad, l->pooled};
    k.rows = l->height + 2 * l->pad - l->kernel + 1, k.columns = l->width + 2 * l->pad - l->kernel + 1;
    k.kp = l->kernel <= 4 ? 4 : 8, k.line = padded(k.columns, 2 * lanes) + 8, k.plane = (l->height + 2 * l->pad) * k.line;
    w.weights = l->filters * l->channels * l->kernel * k.kp, w.biases = padded(l->filters, lanes), w.k = k;
  }
  return w;
}

/* Give a layer its buffers from `memory` on, unless it is NULL; return how many floats they take. */
static int64_t cut(struct work *w, int64_t width, float *memory) {
  float **const all[] = {&w->w, &w->v, &w->c, &w->b, &w->bv, &w->bc, &w->a, &w->g, &w->k.image, &w->k.below,
                         &w->k.maps, &w->k.slope, &w->k.bias_slope, &w->k.ones,
                         (float **)&w->k.from, (float **)&w->k.at};
  const struct convolution *k = &w->k;
  const int64_t image = k->channels * k->plane, pixels = k->rows * k->columns + 1, many = k->kernel ? w->weights : 0, few = k->kernel ? w->biases : 0;
  const int64_t sizes[] = {w->weights, w->weights, w->weights, w->biases, w->biases, w->biases, width * w->ld,
                           width * w->ld, image, image, 2 * k->filters * k->line, many, few, pixels, pixels,
                           k->pooled ? padded(width * w->out, 4) / 4 : 0};
  int64_t taken = 0;
  for (int64_t i = 0; i < 16; taken += padded(sizes[i++], 16))
    if (memory) *all[i] = memory + taken;
  return taken;
}

/* Read a layer from a row, with weights turned to [in][ld] and zeros as padding; return where the next layer begins. */
static const float *take(const float *row, const struct work *l, float *w, float *b) {
  const struct convolution *k = &l->k;
  memset(w, 0, sizeof(float) * l->weights);
  memset(b, 0, sizeof(float) * l->biases);
  if (k->kernel)
    for (int64_t i = 0; i < l->weights; i += k->kp, row += k->kernel) memcpy(w + i, row, sizeof(float) * k->kernel);
  else
    for (int64_t o = 0; o < l->out; o++, row += l->in)
      for (int64_t i = 0; i < l->in; i++) w[i * l->ld + o] = row[i];
  if (!l->bias) return row;
  const int64_t biases = k->kernel ? k->filters : l->out;
  memcpy(b, row, sizeof(float) * biases);
  return row + biases;
}

/* Write a layer to a row as PyTorch has it; return where the next layer begins. */
static float *put(float *row, const struct work *l) {
  const struct convolution *k = &l->k;
  if (k->kernel)
    for (int64_t i = 0; i < l->weights; i += k->kp, row += k->kernel) memcpy(row, l->w + i, sizeof(float) * k->kernel);
  else
    for (int64_t o = 0; o < l->out; o++, row += l->in)
      for (int64_t i = 0; i < l->in; i++) row[i] = l->w[i * l->ld + o];
  if (!l->bias) return row;
  const int64_t biases = k->kernel ? k->filters : l->out;
  memcpy(row, l->b, sizeof(float) * biases);
  return row + biases;
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

/* Copy a sample [channels][height][width] into the padded image, or (back) the gradient at the padded image to g. */
static void image_of(const struct convolution *k, const float *x) {
  for (int64_t c = 0; c < k->channels; c++)
    for (int64_t y = 0; y < k->height; y++, x += k->width)
      memcpy(k->image + c * k->plane + (y + k->pad) * k->line + k->pad, x, sizeof(float) * k->width);
}
static void gradient_at_image(const struct convolution *k, float *g) {
  for (int64_t c = 0; c < k->channels; c++)
    for (int64_t y = 0; y < k->height; y++, g += k->width)
      memcpy(g, k->below + c * k->plane + (y + k->pad) * k->line + k->pad, sizeof(float) * k->width);
}

/* Run a convolution on one sample, so that a and at hold its outputs [filters][rows][columns] after pooling. */
static void convolve(const struct vectors *by, const struct work *l, const float *x, float *a, uint8_t *at) {
  const struct convolution *k = &l->k;
  const int64_t rows = k->rows >> k->pooled, columns = k->columns >> k->pooled;
  image_of(k, x);
  for (int64_t y = 0; y < rows; y++) {
    by->convolve(k, l->w, l->b, y << k->pooled, k->maps);
    if (k->pooled) by->convolve(k, l->w, l->b, 2 * y + 1, k->maps + k->line);
    for (int64_t f = 0; f < k->filters; f++) {
      const float *lines = k->maps + 2 * f * k->line;
      const int64_t to = (f * rows + y) * columns;
      if (k->pooled) by->pool(lines, lines + k->line, columns, a + to, at + to);
      else memcpy(a + to, lines, sizeof(float) * columns);
    }
  }
}

/* Run the layers on samples x, so that a[] of the last one are the outputs; `own` is room for pointers to rows. */
static void run(const struct vectors *by, const struct work *layers, int64_t depth, const float **x, const float **own,
                int64_t rows) {
  for (int64_t i = 0; i < depth; i++) {
    const struct work *l = layers + i;
    for (int64_t r = 0; r < rows; r++)
      if (l->k.kernel) convolve(by, l, x[r], l->a + r * l->ld, l->k.at + r * l->out);
      else memcpy(l->a + r * l->ld, l->b, sizeof(float) * l->ld);
    if (!l->k.kernel) by->forward(x, rows, l->in, l->w, l->ld, l->a);
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
  by->forward(own, rows, l->out, turned, lower->ld, lower->g);
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
  memset(k->slope, 0, sizeof(float) * l->weights);
  memset(k->bias_slope, 0, sizeof(float) * l->biases);
  for (int64_t r = 0; r < rows; r++) {
    image_of(k, x[r]);
    if (!lowest) memset(k->below, 0, sizeof(float) * k->channels * k->plane);
    by->convolve_back(k, l->w, l->g + r * l->ld, k->at + r * l->out, !lowest);
    if (!lowest) gradient_at_image(k, l[-1].g + r * l[-1].ld);
  }
  if (!lowest) slope(l - 1, rows);
  for (int64_t from = 0; from < l->weights; from += k->kp)
    for (int64_t i = from; i < from + k->kernel; i++) { /* what stands beyond a kernel's line is none of it */
      l->v[i] = s->momentum * l->v[i] + s->pull * l->w[i] + l->c[i] + k->slope[i];
      l->w[i] -= s->lr * l->v[i];
    }
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

/* Load a seat's first weights and its constants, and set its velocities to zero. */
static void begin(const struct seat *seat, const struct work *layers, int64_t depth) {
  const float *start = seat->start, *constant = seat->constant;
  for (int64_t i = 0; i < depth; i++) {
    const struct work *l = layers + i;
    memset(l->v, 0, sizeof(float) * l->weights);
    memset(l->c, 0, sizeof(float) * l->weights);
    memset(l->bv, 0, sizeof(float) * l->biases);
    memset(l->bc, 0, sizeof(float) * l->biases);
    start = take(start, l, l->w, l->b);
    if (constant) constant = take(constant, l, l->c, l->bc);
  }
}

/* Train one seat from its first step to its last. `turned`, `x`, `own` and `places` are room to work in. */
static void train(const struct vectors *by, struct seat *seat, const struct work *layers, int64_t depth,
                  const float *pool, int64_t inputs, const int64_t *labels, const float *targets, float lr,
                  float momentum, float *turned, const float **x, const float **own, int64_t *places) {
  const struct step s = {lr, momentum, (float)seat->pull};
  double total = 0;
  int64_t counted = 0;
  begin(seat, layers, depth);
  for (int64_t t = 0; t < seat->steps; t++) {
    int64_t rows = 0;
    for (int64_t i = 0; i < seat->width; i++) {
      const int64_t place = seat->batches[t * seat->width + i];
      if (place >= 0) places[rows] = place, x[rows++] = pool + place * inputs;
    }
    if (!rows) continue; /* nothing but padding */
    run(by, layers, depth, x, own, rows);
    const struct work *top = layers + depth - 1;
    const double loss = labels ? cross_entropy(top, places, rows, labels) : squared_error(top, places, rows, targets);
    if (t >= seat->reported) total += loss, counted += rows;
    back(by, layers, depth, x, own, turned, rows, &s, seat->constant != 0);
  }
  seat->loss = counted ? total / counted : NAN;
  float *row = seat->row;
  for (int64_t i = 0; i < depth; i++) row = put(row, layers + i);
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
    layers[i] = shape_of(given + i, by->lanes), size += cut(layers + i, width, NULL);
  float *memory = calloc(size + 16, sizeof(float)); /* 16 more, to begin at a cache line of 64 bytes */
  const float **x = malloc(sizeof(float *) * 2 * width);
  int64_t *places = malloc(sizeof(int64_t) * width);
  const int enough = memory && x && places && layers;
  if (enough) {
    float *free_from = (float *)(((uintptr_t)memory + 63) / 64 * 64);
    for (int64_t i = 0; i < depth; i++) free_from += cut(layers + i, width, free_from);
    for (int64_t i = 0; i < count; i++)
      train(by, seats + i, layers, depth, pool, given->in, labels, targets, (float)lr, (float)momentum, free_from, x,
            x + width, places);
  }
  free(memory), free(x), free(places), free(layers);
  return !enough;
}

/* Write what a model, row [P], puts out on samples x [n][inputs] to out [outputs][n], in blocks of 64 samples, whose
   activations stay in the cache from layer to layer. Returns as hanse_train does. */
int hanse_outputs(const struct layer *given, int64_t depth, const float *row, const float *x, int64_t n, float *out) {
  enum { BLOCK = 64 };
  const struct vectors *by = vectors();
  int64_t size = 0;
  struct work *layers = malloc(sizeof(struct work) * depth);
  for (int64_t i = 0; layers && i < depth; i++)
    layers[i] = shape_of(given + i, by->lanes), size += cut(layers + i, BLOCK, NULL);
  float *memory = calloc(size + 16, sizeof(float));
  const int enough = memory && layers;
  if (enough) {
    float *free_from = (float *)(((uintptr_t)memory + 63) / 64 * 64);
    for (int64_t i = 0; i < depth; i++) {
      free_from += cut(layers + i, BLOCK, free_from);
      row = take(row, layers + i, layers[i].w, layers[i].b);
    }
    const float *lines_of_x[BLOCK], *own[BLOCK];
    const struct work *top = layers + depth - 1;
    for (int64_t from = 0; from < n; from += BLOCK) {
      const int64_t rows = n - from < BLOCK ? n - from : BLOCK;
      lines(lines_of_x, x + from * given->in, given->in, rows);
      run(by, layers, depth, lines_of_x, own, rows);
      for (int64_t o = 0; o < top->out; o++)
        for (int64_t r = 0; r < rows; r++) out[o * n + from + r] = top->a[r * top->ld + o];
    }
  }
  free(memory), free(layers);
  return !enough;
}
