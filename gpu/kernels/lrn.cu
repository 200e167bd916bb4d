// Local response normalisation, across channels or within one: y = x s^−β, s = base + share Σ x², the sum over neighbours.
//
// Arrays are images × channels × pixels, or images × pixels × channels (`last`).

struct Norm {
    int channels, height, width, reach_c, reach_h, reach_w, last;
};

__device__ inline int least(int at, int reach) {
    return at < reach ? 0 : at - reach;
}

__device__ inline int most(int at, int reach, int extent) {
    return at + reach + 1 < extent ? at + reach + 1 : extent;
}

// s^−β; nearly every network has 0.75, and powf is dear.
__device__ inline float power(float s, float beta) {
    if (beta == 0.75f) {
        float root = sqrtf(s);
        return 1.0f / (root * sqrtf(root));
    }
    return powf(s, -beta);
}

// The sum of the values around place i, or of their squares, in the order of channels, rows and columns.
__device__ inline float around(const float* values, u32 i, const Norm& norm, bool squared) {
    u32 pixels = norm.height * norm.width, all = norm.channels * pixels, image = i / all, within = i % all;
    int c = norm.last ? within % norm.channels : within / pixels;
    u32 pixel = norm.last ? within / norm.channels : within % pixels;
    int w = pixel % norm.width, h = pixel / norm.width;
    size_t channel_step = norm.last ? 1 : pixels, pixel_step = norm.last ? norm.channels : 1;
    const float* start = values + (size_t)image * all;
    int h_end = most(h, norm.reach_h, norm.height), w_end = most(w, norm.reach_w, norm.width);
    float sum = 0.0f;
    for (int k = least(c, norm.reach_c); k < most(c, norm.reach_c, norm.channels); k++) {
        for (int r = least(h, norm.reach_h); r < h_end; r++) {
            for (int q = least(w, norm.reach_w); q < w_end; q++) {
                float value = start[k * channel_step + (r * norm.width + q) * pixel_step];
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
        y[i] = x[i] * power(s, beta);
    }
}

// What backward needs of each value: own = dy s^−β, and back = dy x s^−β−1, which its neighbours sum up.
extern "C" __global__ void lrn_back(const float* dy, const float* x, float* own, float* back, float base, float share, float beta, Norm norm, int count) {
    u32 i = place();
    if (i < count) {
        float s = base + share * around(x, i, norm, true);
        float by = power(s, beta);
        own[i] = dy[i] * by;
        back[i] = dy[i] * x[i] * by / s;
    }
}

extern "C" __global__ void lrn_backward(const float* x, const float* own, const float* back, float* dx, float factor, Norm norm, int count) {
    u32 i = place();
    if (i < count) {
        dx[i] = own[i] - factor * x[i] * around(back, i, norm, false);
    }
}

// Five channels around each, the common window, where channels lie in front of pixels: a thread goes through some channels of a
// pixel and keeps what their neighbours need, so that every value is read once.

#define REACH 2
// Channels of a thread; PIECE of gpu/layer/lrn.rs.
#define PIECE 32

// The channels of a thread, and where they lie.
struct Walk {
    const Norm& norm;
    size_t start, step;
    int first, end;

    // `false` for a thread behind the last.
    __device__ bool begin(u32 thread, int images) {
        u32 pixels = norm.height * norm.width, pieces = (norm.channels + PIECE - 1) / PIECE;
        u32 pixel = thread % pixels, piece = thread / pixels % pieces, image = thread / pixels / pieces;
        step = pixels, start = (size_t)image * norm.channels * pixels + pixel;
        first = piece * PIECE;
        end = first + PIECE < norm.channels ? first + PIECE : norm.channels;
        return image < images;
    }
    __device__ float of(const float* values, int channel) const {
        return channel < 0 || channel >= norm.channels ? 0.0f : values[start + channel * step];
    }
};

// Five values side by side.
struct Five {
    float of[5];
    __device__ void push(float value) {
        for (int k = 0; k < 4; k++) {
            of[k] = of[k + 1];
        }
        of[4] = value;
    }
    __device__ float sum() const { return of[0] + of[1] + of[2] + of[3] + of[4]; }
    __device__ float squares() const {
        return of[0] * of[0] + of[1] * of[1] + of[2] * of[2] + of[3] * of[3] + of[4] * of[4];
    }
};

extern "C" __global__ void lrn_five(const float* x, float* y, float base, float share, float beta, Norm norm, int images) {
    Walk walk = {norm};
    if (walk.begin(place(), images)) {
        Five values = {};
        for (int c = walk.first - REACH; c < walk.end + REACH; c++) {
            values.push(walk.of(x, c));
            if (c >= walk.first + REACH) {
                float s = base + share * values.squares();
                y[walk.start + (c - REACH) * walk.step] = values.of[REACH] * power(s, beta);
            }
        }
    }
}

extern "C" __global__ void lrn_five_backward(const float* dy, const float* x, float* dx, float base, float share, float beta, float factor, Norm norm, int images) {
    Walk walk = {norm};
    if (walk.begin(place(), images)) {
        // Of x and dy those up to channel c; of what is made of them those up to two channels before.
        Five values = {}, gradients = {}, own = {}, back = {};
        for (int c = walk.first - 2 * REACH; c < walk.end + 2 * REACH; c++) {
            values.push(walk.of(x, c));
            gradients.push(walk.of(dy, c));
            float s = base + share * values.squares(), by = power(s, beta);
            own.push(gradients.of[REACH] * by);
            back.push(gradients.of[REACH] * values.of[REACH] * by / s);
            if (c >= walk.first + 2 * REACH) {
                dx[walk.start + (c - 2 * REACH) * walk.step] = own.of[REACH] - factor * values.of[0] * back.sum();
            }
        }
    }
}

// The same where channels lie last: a thread for each value, whose neighbours are those of its warp.

// The value at place i, which is one of channel c, and those around it.
__device__ inline Five five_at(const float* values, size_t i, int c, int channels) {
    Five around;
    for (int k = -REACH; k <= REACH; k++) {
        around.of[k + REACH] = c + k < 0 || c + k >= channels ? 0.0f : values[i + k];
    }
    return around;
}

extern "C" __global__ void lrn_five_last(const float* x, float* y, float base, float share, float beta, int channels, int count) {
    u32 i = place();
    if (i < count) {
        Five values = five_at(x, i, i % channels, channels);
        y[i] = values.of[REACH] * power(base + share * values.squares(), beta);
    }
}

// Values whose results a block finds; its other threads only make what the outermost ones sum up. INNER of gpu/layer/lrn.rs.
#define INNER (THREADS - 2 * REACH)

extern "C" __global__ void lrn_five_last_backward(const float* dy, const float* x, float* dx, float base, float share, float beta, float factor, int channels, int count) {
    __shared__ float shared[THREADS];
    int i = (int)(blockIdx.x * INNER + threadIdx.x) - REACH;
    bool is_there = i >= 0 && i < count;
    int c = is_there ? i % channels : 0;
    float own = 0.0f, value = 0.0f, back = 0.0f;
    if (is_there) {
        Five values = five_at(x, i, c, channels);
        float s = base + share * values.squares(), by = power(s, beta);
        value = values.of[REACH];
        own = dy[i] * by;
        back = dy[i] * value * by / s;
    }
    shared[threadIdx.x] = back;
    __syncthreads();
    if (is_there && threadIdx.x >= REACH && threadIdx.x < THREADS - REACH) {
        dx[i] = own - factor * value * five_at(shared, threadIdx.x, c, channels).sum();
    }
}
