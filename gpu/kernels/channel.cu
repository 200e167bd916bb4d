// Layers whose numbers belong to channels: BatchNorm, Scale, Bias, and gradients of biases. An array is seen as outer ×
// channels × inner; where channels lie last inner is 1.
//
// All of these are bound by memory. So what belongs to a channel is found once for many values, places are counted without a
// division for each, and a thread asks for several values before it uses the first.

struct View {
    int outer, channels, inner;
};

#define WARP 32
#define WARPS (THREADS / WARP)
// Values of a row, or rows of channels that lie last, that a warp takes at a time (gpu/layer/scale.rs has the same).
#define PIECE 1024
#define RUN 16

__device__ inline u32 least_of(u32 a, u32 b) {
    return a < b ? a : b;
}

// For each value a thread of some warp calls `finish` with what `load` gave; `begin` says which channel the next ones are of.
template <class Each>
__device__ inline void walk(const View& view, Each each) {
    u32 warp = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    typename Each::Values values[AHEAD];
    if (view.inner == 1) {
        u32 groups = (view.channels + WARP - 1) / WARP, channel = warp % groups * WARP + lane;
        u32 first = warp / groups * RUN, end = least_of(first + RUN, view.outer);
        if (first < end && channel < view.channels) {
            each.begin(channel);
            for (u32 from = first; from < end; from += AHEAD) {
                for (u32 k = 0; k < AHEAD; k++) {
                    if (from + k < end) {
                        values[k] = each.load((size_t)(from + k) * view.channels + channel);
                    }
                }
                for (u32 k = 0; k < AHEAD; k++) {
                    if (from + k < end) {
                        each.finish((size_t)(from + k) * view.channels + channel, values[k]);
                    }
                }
            }
        }
        return;
    }
    u32 pieces = (view.inner + PIECE - 1) / PIECE, row = warp / pieces;
    if (row < (u32)view.outer * view.channels) {
        each.begin(row % view.channels);
        u32 first = warp % pieces * PIECE, end = least_of(first + PIECE, view.inner);
        size_t start = (size_t)row * view.inner;
        for (u32 from = first + lane; from < end; from += AHEAD * WARP) {
            for (u32 k = 0; k < AHEAD; k++) {
                if (from + k * WARP < end) {
                    values[k] = each.load(start + from + k * WARP);
                }
            }
            for (u32 k = 0; k < AHEAD; k++) {
                if (from + k * WARP < end) {
                    each.finish(start + from + k * WARP, values[k]);
                }
            }
        }
    }
}

// Calls `each.begin` with a thread's channel and `each.add` with the places of its share of that channel's values; the blocks
// of a column of the grid share a channel, or 32 of them where they lie last. False for a thread without a channel.
template <class Each>
__device__ inline bool gather(const View& view, Each& each) {
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, first = blockIdx.y * WARPS + warp, step = gridDim.y * WARPS;
    if (view.inner == 1) {
        u32 channel = blockIdx.x * WARP + lane;
        if (channel >= view.channels) {
            return false;
        }
        each.begin(channel);
#pragma unroll 8
        for (u32 row = first; row < view.outer; row += step) {
            each.add((size_t)row * view.channels + channel);
        }
        return true;
    }
    u32 pieces = (view.inner + PIECE - 1) / PIECE;
    each.begin(blockIdx.x);
    for (u32 unit = first; unit < view.outer * pieces; unit += step) {
        size_t start = ((size_t)(unit / pieces) * view.channels + blockIdx.x) * view.inner;
        u32 from = unit % pieces * PIECE, end = least_of(from + PIECE, view.inner);
#pragma unroll 4
        for (u32 i = from + lane; i < end; i += WARP) {
            each.add(start + i);
        }
    }
    return true;
}

// Merges what the threads of a block have of a channel, in an order that is the same in every run, into places of `shared`, one
// for each thread. True for a thread whose place has all of the channel that is named then.
template <class Sum>
__device__ inline bool merge(const View& view, bool has_channel, Sum own, Sum* shared, u32& channel) {
    shared[threadIdx.x] = own;
    __syncthreads();
    bool apart = view.inner == 1;
    for (u32 half = THREADS / 2; half >= (apart ? WARP : 1); half /= 2) {
        if (threadIdx.x < half) {
            shared[threadIdx.x].merge(shared[threadIdx.x + half]);
        }
        __syncthreads();
    }
    channel = apart ? blockIdx.x * WARP + threadIdx.x : blockIdx.x;
    return has_channel && threadIdx.x < (apart ? WARP : 1);
}

// The same, written to `parts[channel, part]`.
template <class Sum>
__device__ inline void merge_into(const View& view, bool has_channel, Sum own, Sum* shared, Sum* parts) {
    u32 channel;
    if (merge(view, has_channel, own, shared, channel)) {
        parts[(size_t)channel * gridDim.y + blockIdx.y] = shared[threadIdx.x];
    }
}

struct Pair {
    float first, second;
    __device__ void merge(const Pair& other) {
        first += other.first;
        second += other.second;
    }
};

// How many values, their mean, and the sum of their squared distances from it.
struct Moments {
    float count, mean, squares;
    // Chan, Golub, LeVeque: neither part is cancelled by the other.
    __device__ void merge(const Moments& other) {
        float all = count + other.count;
        if (all > 0.0f) {
            float distance = other.mean - mean, share = other.count / all;
            mean += distance * share;
            squares += other.squares + distance * distance * count * share;
            count = all;
        }
    }
};

// The `each` parts of a channel that a block of its own merges.
template <class Sum>
__device__ inline Sum all_parts(const Sum* parts, int each, Sum none, Sum* shared) {
    Sum own = none;
    for (u32 part = threadIdx.x; part < each; part += THREADS) {
        own.merge(parts[(size_t)blockIdx.x * each + part]);
    }
    shared[threadIdx.x] = own;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            shared[threadIdx.x].merge(shared[threadIdx.x + half]);
        }
        __syncthreads();
    }
    return shared[0];
}

struct Sums {
    const float *x, *z;
    Pair sums;
    __device__ void begin(int) {}
    __device__ void add(size_t at) {
        float value = x[at];
        sums.first += z ? value * z[at] : value;
    }
};

// parts[channel, part] = Σ x, or of products with z if there is one; out[channel] = Σ … / divisor where there is one part only.
extern "C" __global__ void channel_sums(const float* x, const float* z, float* parts, float* out, float divisor, View view) {
    __shared__ Pair shared[THREADS];
    Sums own = {x, z, {0.0f, 0.0f}};
    bool has_channel = gather(view, own);
    u32 channel;
    if (merge(view, has_channel, own.sums, shared, channel)) {
        if (gridDim.y == 1) {
            out[channel] = shared[threadIdx.x].first / divisor;
        } else {
            ((Pair*)parts)[(size_t)channel * gridDim.y + blockIdx.y] = shared[threadIdx.x];
        }
    }
}

// out[channel] = Σ parts[channel, ·] / divisor, a block for each channel. What is divided by 1 stays as it is.
extern "C" __global__ void add_parts(const float* parts, float* out, int each, float divisor) {
    __shared__ Pair shared[THREADS];
    Pair sum = all_parts((const Pair*)parts, each, Pair{0.0f, 0.0f}, shared);
    if (threadIdx.x == 0) {
        out[blockIdx.x] = sum.first / divisor;
    }
}

struct Distances {
    const float* x;
    float start, sum, squares;
    int count;
    __device__ void begin(int) {}
    // From the first value, so that little is left to cancel.
    __device__ void add(size_t at) {
        float value = x[at];
        start = count ? start : value;
        sum += value - start;
        squares += (value - start) * (value - start);
        count++;
    }
    __device__ Moments moments() const {
        float mean = count ? sum / (float)count : 0.0f, left = squares - sum * mean;
        return {(float)count, start + mean, left > 0.0f ? left : squares - squares};
    }
};

// parts[channel, part] = the moments of the values.
extern "C" __global__ void channel_moments(const float* x, float* parts, View view) {
    __shared__ Moments shared[THREADS];
    Distances own = {x, 0.0f, 0.0f, 0.0f, 0};
    bool has_channel = gather(view, own);
    merge_into(view, has_channel, own.moments(), shared, (Moments*)parts);
}

// Mean and variance of each channel, a block for each.
extern "C" __global__ void merge_moments(const float* parts, float* mean, float* variance, int each) {
    __shared__ Moments shared[THREADS];
    Moments all = all_parts((const Moments*)parts, each, Moments{0.0f, 0.0f, 0.0f}, shared);
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = all.mean;
        variance[blockIdx.x] = all.squares / all.count;
    }
}

// What running sums say: mean and variance of each channel.
extern "C" __global__ void kept_statistics(const float* means, const float* variances, const float* factor, float* mean, float* variance, int channels) {
    u32 channel = place();
    if (channel < channels) {
        float scale = factor[0] == 0.0f ? 0.0f : 1.0f / factor[0];
        mean[channel] = scale * means[channel];
        variance[channel] = scale * variances[channel];
    }
}

// The terms of the running sums.
extern "C" __global__ void running_terms(const float* mean, const float* variance, float* means, float* variances, float* factor, float part, float correction, int channels) {
    u32 channel = place();
    if (channel < channels) {
        means[channel] = part * mean[channel];
        variances[channel] = part * (correction * variance[channel]);
        if (channel == 0) {
            factor[0] = part;
        }
    }
}

// A normalisation with what stands behind it, for the channel that it has begun: (x − mean) / √(variance + eps), then perhaps
// s y + b. Without a mean x is normalised already.
struct Normal {
    const float *mean, *variance, *s, *b;
    float eps, middle, by, factor, bias;
    __device__ void begin(int channel) {
        middle = mean ? mean[channel] : 0.0f;
        by = 1.0f / sqrtf(variance[channel] + eps);
        factor = s ? s[channel] : 1.0f;
        bias = b ? b[channel] : 0.0f;
    }
    __device__ float of(float x) const {
        return mean ? (x - middle) * by : x;
    }
    // With a ReLU behind it, what of a gradient passes where the normalised value is this.
    __device__ float passed(float dy, float normal, int relu) const {
        return dy * (!relu || normal * factor + bias > 0.0f ? 1.0f : 0.0f);
    }
};

struct Normalize {
    typedef float Values;
    const float* x;
    float* y;
    Normal normal;
    int relu;
    __device__ void begin(int channel) { normal.begin(channel); }
    __device__ float load(size_t at) const { return x[at]; }
    __device__ void finish(size_t at, float value) const {
        float result = normal.of(value) * normal.factor + normal.bias;
        y[at] = relu ? rectified(result, 0.0f) : result;
    }
};

// y = s (x − mean) / √(variance + eps) + b, and perhaps a ReLU; s or b may be missing.
extern "C" __global__ void normalize(const float* x, const float* mean, const float* variance, const float* s, const float* b, float* y, float eps, int relu, View view) {
    walk(view, Normalize{x, y, {mean, variance, s, b, eps}, relu});
}

struct GradientSums {
    const float *dy, *x;
    Normal normal;
    int relu;
    Pair sums;
    __device__ void begin(int channel) { normal.begin(channel); }
    __device__ void add(size_t at) {
        float value = normal.of(x[at]), passed = normal.passed(dy[at], value, relu);
        sums.first += passed;
        sums.second += passed * value;
    }
};

// parts[channel, part] = Σ of the gradient behind the ReLU, and of its products with what is normalised: the gradients of bias
// and factor.
extern "C" __global__ void normalize_sums(const float* dy, const float* x, const float* mean, const float* variance, const float* s, const float* b, float* parts, float eps, int relu, View view) {
    __shared__ Pair shared[THREADS];
    GradientSums own = {dy, x, {mean, variance, s, b, eps}, relu, {0.0f, 0.0f}};
    bool has_channel = gather(view, own);
    merge_into(view, has_channel, own.sums, shared, (Pair*)parts);
}

// The sums, and the means of s dy and of its products with what is normalised; a block for each channel.
extern "C" __global__ void merge_gradients(const float* parts, const float* s, float* sums, float* products, float* mean, float* product, int each, float count) {
    __shared__ Pair shared[THREADS];
    Pair all = all_parts((const Pair*)parts, each, Pair{0.0f, 0.0f}, shared);
    if (threadIdx.x == 0) {
        u32 channel = blockIdx.x;
        float factor = s ? s[channel] : 1.0f;
        sums[channel] = all.first;
        products[channel] = all.second;
        mean[channel] = factor * all.first / count;
        product[channel] = factor * all.second / count;
    }
}

struct NormalizeBackward {
    struct Values {
        float dy, x;
    };
    const float *dy, *x, *means, *products;
    float* dx;
    Normal normal;
    int relu;
    float mean, product;
    __device__ void begin(int channel) {
        normal.begin(channel);
        mean = means ? means[channel] : 0.0f;
        product = products ? products[channel] : 0.0f;
    }
    __device__ Values load(size_t at) const { return {dy[at], x[at]}; }
    __device__ void finish(size_t at, const Values& values) const {
        float value = normal.of(values.x), own = normal.factor * normal.passed(values.dy, value, relu);
        dx[at] = (means ? own - mean - product * value : own) * normal.by;
    }
};

// dx = (s dy − mean s dy − mean(s dy n) n) / √(variance + eps) for what is normalised, n, with the two means of each channel in
// `means` and `products`; without them what kept statistics give: s dy / √(variance + eps). dy is that behind the ReLU.
extern "C" __global__ void normalize_backward(const float* dy, const float* x, const float* mean, const float* variance, const float* s, const float* b, const float* means, const float* products, float* dx, float eps, int relu, View view) {
    walk(view, NormalizeBackward{dy, x, means, products, dx, {mean, variance, s, b, eps}, relu});
}

struct Scale {
    typedef float Values;
    const float *x, *s, *b;
    float* y;
    int relu;
    float factor, bias;
    __device__ void begin(int channel) {
        factor = s ? s[channel] : 1.0f;
        bias = b ? b[channel] : 0.0f;
    }
    __device__ float load(size_t at) const { return x[at]; }
    __device__ void finish(size_t at, float value) const {
        float scaled = s ? value * factor : value, result = b ? scaled + bias : scaled;
        y[at] = relu ? rectified(result, 0.0f) : result;
    }
};

// y = x s + b, and perhaps a ReLU; s or b may be missing.
extern "C" __global__ void scale(const float* x, const float* s, const float* b, float* y, int relu, View view) {
    walk(view, Scale{x, s, b, y, relu});
}
