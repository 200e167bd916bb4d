// Local response normalisation, across channels or within one: y = x s^−β, s = base + share Σ x², the sum over neighbours.

struct Norm {
    int channels, height, width, reach_c, reach_h, reach_w;
};

__device__ inline int least(int at, int reach) {
    return at < reach ? 0 : at - reach;
}

__device__ inline int most(int at, int reach, int extent) {
    return at + reach + 1 < extent ? at + reach + 1 : extent;
}

// The sum of the values around place i, or of their squares, in the order of memory.
__device__ inline float around(const float* values, u32 i, const Norm& norm, bool squared) {
    int w = i % norm.width, h = i / norm.width % norm.height, c = i / norm.width / norm.height % norm.channels;
    size_t plane = (size_t)norm.height * norm.width;
    const float* image = values + (size_t)(i / plane / norm.channels) * norm.channels * plane;
    int h_end = most(h, norm.reach_h, norm.height), w_end = most(w, norm.reach_w, norm.width);
    float sum = 0.0f;
    for (int k = least(c, norm.reach_c); k < most(c, norm.reach_c, norm.channels); k++) {
        for (int r = least(h, norm.reach_h); r < h_end; r++) {
            for (int q = least(w, norm.reach_w); q < w_end; q++) {
                float value = image[k * plane + r * norm.width + q];
                sum += squared ? value * value : value;
            }
        }
    }
    return sum;
}

extern "C" __global__ void lrn_forward(const float* x, float* y, float base, float share, float beta, Norm norm, int count) {
    u32 i = place();
    if (i < count) {
        float s = base + share * around(x, i, norm, true);
        y[i] = x[i] * powf(s, -beta);
    }
}

// What backward needs of each value: own = dy s^−β, and back = dy x s^−β−1, which its neighbours sum up.
extern "C" __global__ void lrn_back(const float* dy, const float* x, float* own, float* back, float base, float share, float beta, Norm norm, int count) {
    u32 i = place();
    if (i < count) {
        float s = base + share * around(x, i, norm, true);
        float power = powf(s, -beta);
        own[i] = dy[i] * power;
        back[i] = dy[i] * x[i] * power / s;
    }
}

extern "C" __global__ void lrn_backward(const float* x, const float* own, const float* back, float* dx, float factor, Norm norm, int count) {
    u32 i = place();
    if (i < count) {
        dx[i] = own[i] - factor * x[i] * around(back, i, norm, false);
    }
}
