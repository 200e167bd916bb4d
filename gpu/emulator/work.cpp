#include "work.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sys/mman.h>

Everything &everything() {
    static auto *all = new Everything;
    return *all;
}

int wrong(int code, const std::string &what) {
    std::fprintf(stderr, "emulated GPU: %s\n", what.c_str());
    return code;
}

namespace {

// xorshift64: the same order in every process that does the same.
size_t draw(size_t below) {
    auto &x = everything().random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x % below;
}

double now() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

// The memory of one GPU, which can be used as long as this lives. Nobody else can: neither the host nor another GPU.
struct Open {
    Gpu &gpu;
    explicit Open(Gpu &which) : gpu(which) { protect(PROT_READ | PROT_WRITE); }
    ~Open() { protect(PROT_NONE); }
    void protect(int rights) {
        for (const Allocation &one : gpu.memory) {
            mprotect(one.mapped + PAGE, one.mapped_bytes - 2 * PAGE, rights);
        }
    }
};

void fail(int device, const std::string &what) {
    Gpu &gpu = *everything().gpus[device];
    bool outside = what.find("used address") != std::string::npos;
    gpu.failure = wrong(outside ? ILLEGAL_ADDRESS : LAUNCH_FAILED, what);
    // Nobody is to wait for ever for what will not be done.
    auto give_up = [](Stream &stream) { stream.queue.clear(); };
    give_up(gpu.none);
    for (Stream *stream : everything().streams) {
        if (stream->device == device) {
            give_up(*stream);
        }
    }
}

// The streams of a GPU, or of all others, whose next work can be done.
std::vector<Stream *> ready(int device, bool others) {
    std::vector<Stream *> found;
    auto look = [&](Stream *stream) {
        bool wanted = (stream->device != device) == others;
        if (wanted && !stream->queue.empty() && (!stream->queue.front().wait || stream->queue.front().wait->done)) {
            found.push_back(stream);
        }
    };
    for (auto &gpu : everything().gpus) {
        look(&gpu->none);
    }
    for (Stream *stream : everything().streams) {
        look(stream);
    }
    return found;
}

void add(std::vector<size_t> &to, const std::vector<size_t> &from) {
    for (size_t node : from) {
        if (std::find(to.begin(), to.end(), node) == to.end()) {
            to.push_back(node);
        }
    }
}

} // namespace

bool proceed(int device) {
    std::vector<Stream *> found = ready(device, false);
    if (found.empty()) {
        found = ready(device, true);
    }
    if (found.empty()) {
        return false;
    }
    Stream *stream = found[draw(found.size())];
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (work.run) {
        Open open(*everything().gpus[stream->device]);
        std::string what = work.run();
        if (!what.empty()) {
            fail(stream->device, what);
        }
    }
    return true;
}

void proceed_until(int device, const std::function<bool()> &is_so) {
    while (!is_so()) {
        if (!proceed(device)) {
            return;
        }
    }
}

int submit(Stream *stream, Work work) {
    if (Capture *capture = stream->capture) {
        capture->nodes.push_back({std::move(work), stream->last});
        stream->last = {capture->nodes.size() - 1};
    } else {
        stream->queue.push_back(std::move(work));
    }
    return SUCCESS;
}

int record(Stream *stream, Event *event) {
    event->captured = stream->capture;
    if (stream->capture) {
        event->last = stream->last;
        return SUCCESS;
    }
    auto ticket = event->ticket = std::make_shared<Ticket>();
    Work work;
    work.run = [ticket] {
        *ticket = {true, now()};
        return std::string();
    };
    return submit(stream, std::move(work));
}

int wait_for(Stream *stream, Event *event) {
    if (Capture *capture = event->captured) {
        if (!stream->capture) {
            if (!stream->queue.empty()) {
                proceed_until(stream->device, [stream] { return stream->queue.empty(); });
            }
            stream->capture = capture;
            stream->last.clear();
            capture->joined.push_back(stream);
        }
        if (stream->capture != capture) {
            return wrong(INVALID_VALUE, "a stream that records one graph waits for an event of another");
        }
        add(stream->last, event->last);
        return SUCCESS;
    }
    if (stream->capture) {
        stream->capture->broken = true;
        return wrong(CAPTURE_ISOLATION, "a stream that records a graph waits for an event outside of it");
    }
    if (!event->ticket) {
        return SUCCESS;
    }
    Work work;
    work.wait = event->ticket;
    return submit(stream, std::move(work));
}

static thread_local Capture *recording = nullptr;

bool is_recording() {
    if (recording) {
        recording->broken = true;
    }
    return recording;
}

int begin_capture(Stream *stream) {
    if (stream->capture || recording) {
        return wrong(INVALID_VALUE, "a graph is begun while another is recorded");
    }
    stream->capture = recording = new Capture{stream, std::this_thread::get_id(), {}, {stream}};
    stream->last.clear();
    return SUCCESS;
}

int end_capture(Stream *stream, Graph **graph) {
    Capture *capture = stream->capture;
    *graph = nullptr;
    if (!capture || capture->origin != stream) {
        return wrong(CAPTURE_UNMATCHED, "a graph ends in another stream than it began");
    }
    // Everything must come before the end of the stream in which it began.
    std::vector<bool> before(capture->nodes.size());
    std::vector<size_t> left = stream->last;
    while (!left.empty()) {
        size_t node = left.back();
        left.pop_back();
        if (!before[node]) {
            before[node] = true;
            left.insert(left.end(), capture->nodes[node].after.begin(), capture->nodes[node].after.end());
        }
    }
    bool joined = true;
    for (Stream *other : capture->joined) {
        for (size_t node : other->last) {
            joined &= before[node];
        }
        other->capture = nullptr;
        other->last.clear();
    }
    recording = nullptr;
    if (capture->broken) {
        return CAPTURE_INVALIDATED;
    }
    if (!joined) {
        return wrong(CAPTURE_UNJOINED, "a graph ends while another stream that records it was not waited for");
    }
    *graph = new Graph{true, stream->device, capture->nodes};
    return SUCCESS;
}

Work as_work(const Graph &graph) {
    auto nodes = std::make_shared<std::vector<Node>>(graph.nodes);
    Work work;
    work.run = [nodes]() -> std::string {
        std::vector<size_t> missing, free;
        std::vector<std::vector<size_t>> behind(nodes->size());
        for (size_t i = 0; i < nodes->size(); i++) {
            missing.push_back((*nodes)[i].after.size());
            for (size_t before : (*nodes)[i].after) {
                behind[before].push_back(i);
            }
            if (missing[i] == 0) {
                free.push_back(i);
            }
        }
        while (!free.empty()) {
            size_t at = draw(free.size()), node = free[at];
            free.erase(free.begin() + at);
            std::string what = (*nodes)[node].work.run();
            if (!what.empty()) {
                return what;
            }
            for (size_t next : behind[node]) {
                if (--missing[next] == 0) {
                    free.push_back(next);
                }
            }
        }
        return "";
    };
    return work;
}

bool is_memory(int device, const char *start, size_t bytes) {
    for (const Allocation &one : everything().gpus[device]->memory) {
        if (start >= one.start && start + bytes <= one.start + one.bytes) {
            return true;
        }
    }
    return false;
}
