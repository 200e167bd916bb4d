// What is done with gradients: the solvers' rules, running sums, norms, and sums over mini-batches.

#define SGD 0
#define NESTEROV 1
#define ADAGRAD 2
#define RMSPROP 3
#define ADADELTA 4
#define ADAM 5

// The rule and its constants (core/solver/rule.rs): `a` and `b` are its momenta, `delta` its δ.
struct Rule {
    int kind, l1, clips, norms;
};

// The change of a weight by its gradient g; h and s are its histories.
__device__ inline float change(int kind, float g, float* h, float* s, float rate, float a, float b, float delta) {
    switch (kind) {
    case SGD:
        *h = a * *h + rate * g;
        return *h;
    case NESTEROV: {
        float before = *h;
        *h = a * before + rate * g;
        return (1.0f + a) * *h - a * before;
    }
    case ADAGRAD:
        *h += g * g;
        return rate * (g / (sqrtf(*h) + delta));
    case RMSPROP:
        *h = a * *h + (1.0f - a) * (g * g);
        return rate * (g / (sqrtf(*h) + delta));
    case ADADELTA: {
        *h = a * *h + (1.0f - a) * (g * g);
        float d = g * sqrtf((*s + delta) / (*h + delta));
        *s = a * *s + (1.0f - a) * (d * d);
        return rate * d;
    }
    default:
        *h = a * *h + (1.0f - a) * g;
        *s = b * *s + (1.0f - b) * (g * g);
        return rate * (*h / (sqrtf(*s) + delta));
    }
}

// What gradients are multiplied by: the mean over mini-batches, after their sum was clipped. Written as Caffe does, so that a
// norm that is no number clips nothing.
__device__ inline float scale_of(const float* squares, const Rule& rule, float most, float mean) {
    double sum = 0.0;
    for (int i = 0; i < rule.norms; i++) {
        sum += (double)squares[i];
    }
    float norm = (float)sqrt(sum);
    return rule.clips && norm > most ? most / norm * mean : mean;
}

// One parameter. `centre` is missing outside of EASGD, `s` where the rule has one history, `squares` where nothing is clipped.
extern "C" __global__ void update(float* w, const float* gradient, float* h, float* s, const float* centre, const float* squares, const Scalars* scalars, Rule rule, float a, float b, float delta, float lr_mult, float decay, float most, float mean, int count) {
    u32 i = place();
    if (i < count) {
        float scale = scale_of(squares, rule, most, mean);
        float before = w[i], first = h[i], second = s ? s[i] : 0.0f;
        float sign = before > 0.0f ? 1.0f : before < 0.0f ? -1.0f : 0.0f;
        float g = scale * gradient[i] + (rule.l1 ? decay * sign : decay * before);
        float rate = scalars->rate * lr_mult;
        if (rule.kind == ADAM) {
            rate *= scalars->correction;
        }
        float after = before - change(rule.kind, g, &first, &second, rate, a, b, delta);
        w[i] = centre ? after - scalars->elastic * (before - centre[i]) : after;
        h[i] = first;
        if (s) {
            s[i] = second;
        }
    }
}

// sum = stays sum + term: running sums, and gradients of several mini-batches.
extern "C" __global__ void fade(float* sum, const float* term, float stays, int count) {
    u32 i = place();
    if (i < count) {
        sum[i] = stays * sum[i] + term[i];
    }
}

// The same into the gradient, and the sum begins anew.
extern "C" __global__ void total(float* sum, float* gradient, float stays, int count) {
    u32 i = place();
    if (i < count) {
        gradient[i] = stays * sum[i] + gradient[i];
        sum[i] = 0.0f;
    }
}

// parts[block] = Σ g² over the block's share of the gradient.
extern "C" __global__ void squares(const float* gradient, float* parts, int count) {
    __shared__ double shared[THREADS];
    u32 each = (count + gridDim.x - 1) / gridDim.x;
    u32 begin = blockIdx.x * each, end = begin + each < count ? begin + each : count;
    double sum = 0.0;
    for (u32 i = begin + threadIdx.x; i < end; i += THREADS) {
        sum += (double)gradient[i] * (double)gradient[i];
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = (float)sum;
    }
}

// out = Σ parts, in their order.
extern "C" __global__ void sum_squares(const float* parts, float* out, int count) {
    if (place() == 0) {
        double sum = 0.0;
        for (int i = 0; i < count; i++) {
            sum += (double)parts[i];
        }
        out[0] = (float)sum;
    }
}
