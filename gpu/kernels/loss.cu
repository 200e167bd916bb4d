// Softmax, losses and accuracy. Scores are seen as outer × classes × inner; prediction `p` is (p / inner, p % inner).

struct Classes {
    int outer, classes, inner;
};

__device__ inline size_t score(const Classes& view, u32 prediction, int k) {
    return ((size_t)(prediction / view.inner) * view.classes + k) * view.inner + prediction % view.inner;
}

// What a label says: a class, IGNORED, or NONSENSE if there is no such class. A fraction is cut off.
#define IGNORED -1
#define NONSENSE -2

__device__ inline int truth(float label, int ignores, int ignored, int classes) {
    float whole = truncf(label);
    if (ignores && whole == (float)ignored) {
        return IGNORED;
    }
    return whole >= 0.0f && whole < (float)classes ? (int)whole : NONSENSE;
}

// The largest value over the THREADS threads of a block; what is not a number stays if thread 0 has it.
__device__ inline float block_largest(float value, float* shared) {
    u32 thread = threadIdx.x;
    shared[thread] = value;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (thread < half) {
            shared[thread] = larger(shared[thread], shared[thread + half]);
        }
        __syncthreads();
    }
    float most = shared[0];
    __syncthreads();
    return most;
}

// A block of THREADS threads for each prediction.
extern "C" __global__ void softmax(const float* x, float* y, Classes view) {
    __shared__ float shared[THREADS];
    u32 prediction = blockIdx.x;
    float most = x[score(view, prediction, 0)];
    for (int k = threadIdx.x; k < view.classes; k += THREADS) {
        most = larger(most, x[score(view, prediction, k)]);
    }
    most = block_largest(most, shared);
    float sum = 0.0f;
    for (int k = threadIdx.x; k < view.classes; k += THREADS) {
        size_t at = score(view, prediction, k);
        float e = expf(x[at] - most);
        y[at] = e;
        sum += e;
    }
    sum = block_sum(sum, shared);
    for (int k = threadIdx.x; k < view.classes; k += THREADS) {
        y[score(view, prediction, k)] /= sum;
    }
}

extern "C" __global__ void softmax_backward(const float* dy, const float* y, float* dx, Classes view) {
    __shared__ float shared[THREADS];
    u32 prediction = blockIdx.x;
    float dot = 0.0f;
    for (int k = threadIdx.x; k < view.classes; k += THREADS) {
        size_t at = score(view, prediction, k);
        dot += dy[at] * y[at];
    }
    dot = block_sum(dot, shared);
    for (int k = threadIdx.x; k < view.classes; k += THREADS) {
        size_t at = score(view, prediction, k);
        dx[at] = (dy[at] - dot) * y[at];
    }
}

// The loss from the probabilities, in one block; `divisor` is that of the sum, or 0 if it is the number of labels that count.
// Loss and divisor are written; a loss that nobody asks for has no array.
extern "C" __global__ void softmax_loss(const float* p, const float* labels, float* loss, float* divisors, float divisor, int ignores, int ignored, Classes view) {
    __shared__ float shared[THREADS];
    float sum = 0.0f, counted = 0.0f;
    for (u32 i = threadIdx.x; i < (u32)view.outer * view.inner; i += THREADS) {
        int label = truth(labels[i], ignores, ignored, view.classes);
        if (label != IGNORED) {
            counted += 1.0f;
            sum += label == NONSENSE ? nanf("") : -logf(larger(p[score(view, i, label)], 1.17549435e-38f));
        }
    }
    sum = block_sum(sum, shared);
    counted = block_sum(counted, shared);
    if (threadIdx.x == 0) {
        float by = divisor > 0.0f ? divisor : larger(counted, 1.0f);
        divisors[0] = by;
        if (loss) {
            loss[0] = sum / by;
        }
    }
}

// `divisor` as above; if it is 0, that which was written.
extern "C" __global__ void softmax_loss_backward(const float* p, const float* labels, const float* divisors, float* dx, float divisor, float weight, int ignores, int ignored, Classes view) {
    u32 i = place();
    if (i < (u32)view.outer * view.classes * view.inner) {
        int k = i / view.inner % view.classes;
        u32 prediction = i / view.inner / view.classes * view.inner + i % view.inner;
        int label = truth(labels[prediction], ignores, ignored, view.classes);
        float scale = weight / (divisor > 0.0f ? divisor : divisors[0]);
        float gradient = scale * (label == k ? p[i] - 1.0f : p[i]);
        dx[i] = label == IGNORED ? 0.0f : label == NONSENSE ? nanf("") : gradient;
    }
}

// For each prediction 1 if fewer than `top_k` other classes are not lower than the true one, NaN for a label that names no
// class. A block of THREADS threads for each prediction.
extern "C" __global__ void hits(const float* x, const float* labels, float* right, int top_k, int ignores, int ignored, Classes view) {
    __shared__ u32 shared[THREADS];
    u32 prediction = blockIdx.x;
    int label = truth(labels[prediction], ignores, ignored, view.classes);
    float of_truth = label >= 0 ? x[score(view, prediction, label)] : 0.0f;
    u32 others = 0;
    for (int k = threadIdx.x; k < view.classes; k += THREADS) {
        // Not "at least as high", so that what is not a number is never right.
        others += k != label && !(x[score(view, prediction, k)] < of_truth) ? 1 : 0;
    }
    others = block_sum(others, shared);
    if (threadIdx.x == 0) {
        right[prediction] = label == NONSENSE ? nanf("") : label >= 0 && others < (u32)top_k ? 1.0f : 0.0f;
    }
}

// The share of predictions that are right, or with `by_class` that of each class: a block of THREADS threads for each.
extern "C" __global__ void accuracy(const float* right, const float* labels, float* out, int by_class, int ignores, int ignored, Classes view) {
    __shared__ float shared[THREADS];
    float sum = 0.0f, counted = 0.0f;
    for (u32 i = threadIdx.x; i < (u32)view.outer * view.inner; i += THREADS) {
        int label = truth(labels[i], ignores, ignored, view.classes);
        if (by_class ? label == (int)blockIdx.x : label != IGNORED) {
            counted += 1.0f;
            sum += right[i];
        }
    }
    sum = block_sum(sum, shared);
    counted = block_sum(counted, shared);
    if (threadIdx.x == 0) {
        out[blockIdx.x] = counted == 0.0f ? 0.0f : sum / counted;
    }
}

// out = scale Σ (a − b)², in one block.
extern "C" __global__ void euclidean_loss(const float* a, const float* b, float* loss, float images, int count) {
    __shared__ float shared[THREADS];
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        float distance = a[i] - b[i];
        sum += distance * distance;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) {
        loss[0] = sum / images / 2.0f;
    }
}

extern "C" __global__ void euclidean_loss_backward(const float* a, const float* b, float* dx, float scale, int count) {
    u32 i = place();
    if (i < count) {
        dx[i] = scale * (a[i] - b[i]);
    }
}

__device__ inline bool counts(float target, int ignores, int ignored) {
    return !ignores || truncf(target) != (float)ignored;
}

// In one block; `divisor` as for the softmax's loss.
extern "C" __global__ void sigmoid_loss(const float* x, const float* targets, float* loss, float* divisors, float divisor, int ignores, int ignored, int count) {
    __shared__ float shared[THREADS];
    float sum = 0.0f, counted = 0.0f;
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        if (counts(targets[i], ignores, ignored)) {
            float above = x[i] >= 0.0f ? 1.0f : 0.0f;
            float small = x[i] - 2.0f * x[i] * above;
            sum += -(x[i] * (targets[i] - above) - logf(1.0f + expf(small)));
            counted += 1.0f;
        }
    }
    sum = block_sum(sum, shared);
    counted = block_sum(counted, shared);
    if (threadIdx.x == 0) {
        float by = divisor > 0.0f ? divisor : larger(counted, 1.0f);
        divisors[0] = by;
        if (loss) {
            loss[0] = sum / by;
        }
    }
}

extern "C" __global__ void sigmoid_loss_backward(const float* x, const float* targets, const float* divisors, float* dx, float weight, int ignores, int ignored, int count) {
    u32 i = place();
    if (i < count) {
        float gradient = weight / divisors[0] * (1.0f / (1.0f + expf(-x[i])) - targets[i]);
        dx[i] = counts(targets[i], ignores, ignored) ? gradient : 0.0f;
    }
}

// The squared distance of each pair: a block of THREADS threads for a pair of `channels` values each.
extern "C" __global__ void pair_squares(const float* a, const float* b, float* squares, int channels) {
    __shared__ float shared[THREADS];
    size_t first = (size_t)blockIdx.x * channels;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < channels; c += THREADS) {
        float distance = a[first + c] - b[first + c];
        sum += distance * distance;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) {
        squares[blockIdx.x] = sum;
    }
}

// In one block.
extern "C" __global__ void contrastive_loss(const float* squares, const float* similar, float* loss, float margin, int legacy, int pairs) {
    __shared__ float shared[THREADS];
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < pairs; i += THREADS) {
        float missing = larger(margin - (legacy ? squares[i] : sqrtf(squares[i])), 0.0f);
        float other = legacy ? missing : missing * missing;
        sum += truncf(similar[i]) != 0.0f ? squares[i] : other;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) {
        loss[0] = sum / (float)pairs / 2.0f;
    }
}

// `weight` is that of the loss over the number of pairs, negative for the second of each pair.
extern "C" __global__ void contrastive_loss_backward(const float* a, const float* b, const float* squares, const float* similar, float* dx, float weight, float margin, int legacy, int channels, int count) {
    u32 i = place();
    if (i < count) {
        u32 pair = i / channels;
        float distance = sqrtf(squares[pair]);
        float missing = margin - (legacy ? squares[pair] : distance);
        float factor = legacy ? -weight : -weight * missing / (distance + 1e-4f);
        factor = missing <= 0.0f ? 0.0f : factor;
        factor = truncf(similar[pair]) != 0.0f ? weight : factor;
        dx[i] = factor * (a[i] - b[i]);
    }
}
