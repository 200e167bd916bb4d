// Layers that treat every value by itself, and sums and copies of whole arrays.

extern "C" __global__ void relu_forward(const float* x, float* y, float slope, int count) {
    u32 i = place();
    if (i < count) {
        y[i] = rectified(x[i], slope);
    }
}

// `sign` is the bottom or the top, whichever the layer keeps.
extern "C" __global__ void relu_backward(const float* dy, const float* sign, float* dx, float slope, int count) {
    u32 i = place();
    if (i < count) {
        dx[i] = dy[i] * (sign[i] > 0.0f ? 1.0f : slope);
    }
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

// y = a x + b z, and perhaps a ReLU.
extern "C" __global__ void sum_two(const float* x, const float* z, float* y, float a, float b, int relu, int count) {
    u32 i = place();
    if (i < count) {
        float sum = a * x[i] + b * z[i];
        y[i] = relu ? rectified(sum, 0.0f) : sum;
    }
}

// y = y + a x, and perhaps a ReLU.
extern "C" __global__ void add(const float* x, float* y, float a, int relu, int count) {
    u32 i = place();
    if (i < count) {
        float sum = y[i] + a * x[i];
        y[i] = relu ? rectified(sum, 0.0f) : sum;
    }
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

// dx = a dy where the sum's ReLU let something pass.
extern "C" __global__ void sum_backward(const float* dy, const float* y, float* dx, float a, int relu, int count) {
    u32 i = place();
    if (i < count) {
        float passed = !relu || y[i] > 0.0f ? 1.0f : 0.0f;
        dx[i] = a * (dy[i] * passed);
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
