// Layers that treat every value by itself, and sums and copies of whole arrays.

struct ReluForward {
    typedef float Values;
    const float* x;
    float *y, slope;
    __device__ float load(u32 i) const { return x[i]; }
    __device__ void finish(u32 i, float value) const { y[i] = rectified(value, slope); }
};

extern "C" __global__ void relu_forward(const float* x, float* y, float slope, int count) {
    for_each(count, ReluForward{x, y, slope});
}

struct ReluBackward {
    typedef Two Values;
    const float *dy, *sign;
    float *dx, slope;
    __device__ Two load(u32 i) const { return {dy[i], sign[i]}; }
    __device__ void finish(u32 i, const Two& value) const {
        dx[i] = value.first * (value.second > 0.0f ? 1.0f : slope);
    }
};

// `sign` is the bottom or the top, whichever the layer keeps.
extern "C" __global__ void relu_backward(const float* dy, const float* sign, float* dx, float slope, int count) {
    for_each(count, ReluBackward{dy, sign, dx, slope});
}

// Rounded to bf16, in f32.
extern "C" __global__ void round_to_bf16(const float* x, float* y, int count) {
    u32 i = place();
    if (i < count) {
        y[i] = as_bf16(x[i]);
    }
}

// Two values of bf16 in a word, the first in its lower half; a thread makes a word.
extern "C" __global__ void pack_bf16(const float* x, float* pairs, int count) {
    u32 i = 2 * place();
    if (i < count) {
        u32 low = __float_as_uint(as_bf16(x[i])) >> 16;
        u32 high = i + 1 < count ? __float_as_uint(as_bf16(x[i + 1])) : 0;
        pairs[i / 2] = __uint_as_float(high & 0xffff0000u | low);
    }
}

// The other way round.
extern "C" __global__ void unpack_bf16(const float* pairs, float* y, int count) {
    u32 i = place();
    if (i < count) {
        u32 pair = __float_as_uint(pairs[i / 2]);
        y[i] = __uint_as_float(i % 2 ? pair & 0xffff0000u : pair << 16);
    }
}

extern "C" __global__ void fill(float* y, float value, int count) {
    u32 i = place();
    if (i < count) {
        y[i] = value;
    }
}

struct Sum {
    typedef Two Values;
    const float *x, *z;
    float *y, a, b;
    int relu;
    __device__ Two load(u32 i) const { return {x[i], z[i]}; }
    __device__ void finish(u32 i, const Two& value) const {
        float sum = a * value.first + b * value.second;
        y[i] = relu ? rectified(sum, 0.0f) : sum;
    }
};

// y = a x + b z, and perhaps a ReLU; y may be one of the two.
extern "C" __global__ void sum_two(const float* x, const float* z, float* y, float a, float b, int relu, int count) {
    for_each(count, Sum{x, z, y, a, b, relu});
}

extern "C" __global__ void product_two(const float* x, const float* z, float* y, int count) {
    u32 i = place();
    if (i < count) {
        y[i] = x[i] * z[i];
    }
}

// dx = dy (y / x), which is NaN at 0, as in Caffe.
extern "C" __global__ void product_backward(const float* dy, const float* y, const float* x, float* dx, int count) {
    u32 i = place();
    if (i < count) {
        dx[i] = dy[i] * (y[i] / x[i]);
    }
}

// The larger of bottoms 0 and 1, and which it is: bottom 1 if they are equal.
extern "C" __global__ void max_two(const float* x, const float* z, float* y, float* from, int count) {
    u32 i = place();
    if (i < count) {
        bool first = x[i] > z[i];
        y[i] = first ? x[i] : z[i];
        from[i] = first ? 0.0f : 1.0f;
    }
}

// Bottom `bottom` wins where it is larger than what is there.
extern "C" __global__ void max_more(const float* x, float* y, float* from, int bottom, int count) {
    u32 i = place();
    if (i < count && x[i] > y[i]) {
        y[i] = x[i];
        from[i] = (float)bottom;
    }
}

extern "C" __global__ void max_backward(const float* dy, const float* from, float* dx, int bottom, int count) {
    u32 i = place();
    if (i < count) {
        dx[i] = from[i] == (float)bottom ? dy[i] : 0.0f;
    }
}

struct SumBackward {
    typedef Two Values;
    const float *dy, *y;
    float *dx, *dz, a, b;
    int relu;
    __device__ Two load(u32 i) const { return {dy[i], relu ? y[i] : 1.0f}; }
    __device__ void finish(u32 i, const Two& value) const {
        float passed = value.first * (value.second > 0.0f ? 1.0f : 0.0f);
        dx[i] = a * passed;
        if (dz) {
            dz[i] = b * passed;
        }
    }
};

// dx = a dy where the sum's ReLU let something pass, and dz = b dy, if there is one.
extern "C" __global__ void sum_backward(const float* dy, const float* y, float* dx, float* dz, float a, float b, int relu, int count) {
    for_each(count, SumBackward{dy, y, dx, dz, a, b, relu});
}

// Images of `channels` × `pixels` values with the channels behind the pixels.
extern "C" __global__ void channels_last(const float* x, float* y, int channels, int pixels, int count) {
    u32 i = place();
    if (i < count) {
        u32 channel = i % channels, pixel = i / channels % pixels, image = i / channels / pixels;
        y[i] = x[((size_t)image * channels + channel) * pixels + pixel];
    }
}

// The other way round.
extern "C" __global__ void channels_first(const float* x, float* y, int channels, int pixels, int count) {
    u32 i = place();
    if (i < count) {
        u32 pixel = i % pixels, channel = i / pixels % channels, image = i / pixels / channels;
        y[i] = x[((size_t)image * pixels + pixel) * channels + channel];
    }
}

// Rows of `row` values, taken from rows that lie `from_step` apart and put where they lie `to_step` apart.
extern "C" __global__ void copy_rows(const float* from, float* to, int row, int from_step, int to_step, int count) {
    u32 i = place();
    if (i < count) {
        u32 at = i / row, within = i % row;
        to[(size_t)at * to_step + within] = from[(size_t)at * from_step + within];
    }
}

// Rows of `row` zeros that lie `to_step` apart.
extern "C" __global__ void zero_rows(float* to, int row, int to_step, int count) {
    u32 i = place();
    if (i < count) {
        to[(size_t)(i / row) * to_step + i % row] = 0.0f;
    }
}
