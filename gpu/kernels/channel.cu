// Layers whose numbers belong to channels: BatchNorm, Scale, Bias, and gradients of biases. An array is seen as outer ×
// channels × inner.

struct View {
    int outer, channels, inner;
};

// The place of value `i` of a channel, of which there are outer × inner.
__device__ inline size_t at(const View& view, int channel, u32 i) {
    return ((size_t)(i / view.inner) * view.channels + channel) * view.inner + i % view.inner;
}

// Sums over a channel in parts: block (channel, part) of THREADS threads sums up its share of the values.
struct Share {
    u32 begin, end;
};

__device__ inline Share share(const View& view) {
    u32 count = view.outer * view.inner, each = (count + gridDim.y - 1) / gridDim.y;
    u32 begin = blockIdx.y * each;
    return {begin < count ? begin : count, begin + each < count ? begin + each : count};
}

// parts[channel, part] = Σ x, or of products with z if there is one.
extern "C" __global__ void channel_sums(const float* x, const float* z, float* parts, View view) {
    __shared__ float shared[THREADS];
    Share own = share(view);
    float sum = 0.0f;
    for (u32 i = own.begin + threadIdx.x; i < own.end; i += THREADS) {
        size_t from = at(view, blockIdx.x, i);
        sum += z ? x[from] * z[from] : x[from];
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) {
        parts[blockIdx.x * gridDim.y + blockIdx.y] = sum;
    }
}

// parts[channel, part] = Σ (x − mean)².
extern "C" __global__ void channel_squares(const float* x, const float* mean, float* parts, View view) {
    __shared__ float shared[THREADS];
    Share own = share(view);
    float middle = mean[blockIdx.x], sum = 0.0f;
    for (u32 i = own.begin + threadIdx.x; i < own.end; i += THREADS) {
        float distance = x[at(view, blockIdx.x, i)] - middle;
        sum += distance * distance;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) {
        parts[blockIdx.x * gridDim.y + blockIdx.y] = sum;
    }
}

// out[channel] = Σ parts[channel, ·] / divisor, in the order of the parts. What is divided by 1 stays as it is.
extern "C" __global__ void add_parts(const float* parts, float* out, int each, float divisor, int channels) {
    u32 channel = place();
    if (channel < channels) {
        float sum = 0.0f;
        for (int part = 0; part < each; part++) {
            sum += parts[channel * each + part];
        }
        out[channel] = sum / divisor;
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

// y = (x − mean) / √(variance + eps), then perhaps s y + b, then perhaps a ReLU.
__device__ inline float scaled(float normal, const float* s, const float* b, int channel) {
    float y = s ? normal * s[channel] : normal;
    return b ? y + b[channel] : y;
}

extern "C" __global__ void normalize(const float* x, const float* mean, const float* variance, const float* s, const float* b, float* y, float eps, int relu, View view) {
    u32 i = place();
    if (i < (u32)view.outer * view.channels * view.inner) {
        int channel = i / view.inner % view.channels;
        float normal = (x[i] - mean[channel]) / sqrtf(variance[channel] + eps);
        float value = scaled(normal, s, b, channel);
        y[i] = relu ? rectified(value, 0.0f) : value;
    }
}

// dx = (dy − mean dy − mean(dy y) y) / √(variance + eps), with the two means of each channel in `means` and `products`; without
// them, what kept statistics give: dy / √(variance + eps). If there is a scale s behind the normalisation, dy is that of its top.
extern "C" __global__ void normalize_backward(const float* dy, const float* y, const float* means, const float* products, const float* variance, const float* s, float* dx, float eps, View view) {
    u32 i = place();
    if (i < (u32)view.outer * view.channels * view.inner) {
        int channel = i / view.inner % view.channels;
        float deviation = sqrtf(variance[channel] + eps);
        float own = s ? s[channel] * dy[i] : dy[i];
        float left = means ? own - means[channel] - products[channel] * y[i] : own;
        dx[i] = left / deviation;
    }
}

// For a normalisation with scale and perhaps a ReLU: what is normalised (again), and the gradient behind the ReLU.
extern "C" __global__ void normalize_again(const float* dy, const float* x, const float* mean, const float* variance, const float* s, const float* b, float* passed, float* normal, float eps, int relu, View view) {
    u32 i = place();
    if (i < (u32)view.outer * view.channels * view.inner) {
        int channel = i / view.inner % view.channels;
        float value = (x[i] - mean[channel]) / sqrtf(variance[channel] + eps);
        normal[i] = value;
        passed[i] = dy[i] * (!relu || scaled(value, s, b, channel) > 0.0f ? 1.0f : 0.0f);
    }
}

// The means of dy' and dy' y for dy' = s dy, from the sums of dy and dy y: factors' and biases' gradients.
extern "C" __global__ void scale_sums(const float* sums, const float* products, const float* s, float* mean, float* product, float count, int channels) {
    u32 channel = place();
    if (channel < channels) {
        mean[channel] = s[channel] * sums[channel] / count;
        product[channel] = s[channel] * products[channel] / count;
    }
}

// y = x s + b, and perhaps a ReLU; s or b may be missing.
extern "C" __global__ void scale(const float* x, const float* s, const float* b, float* y, int relu, View view) {
    u32 i = place();
    if (i < (u32)view.outer * view.channels * view.inner) {
        float value = scaled(x[i], s, b, i / view.inner % view.channels);
        y[i] = relu ? rectified(value, 0.0f) : value;
    }
}
