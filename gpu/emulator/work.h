// What streams hold, and when it is done: not when it is submitted, but when somebody waits for it, and then in an order that is
// drawn among all that streams and events allow. So what lacks a wait does not work by luck.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

// Bytes of a page, of which one that nobody may touch lies on either side of every allocation.
constexpr size_t PAGE = 4096;

// The driver's codes.
enum Code {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
};

// Says on the standard error what a program did wrong, and returns the code.
int wrong(int code, const std::string &what);

// A moment in a stream.
struct Ticket {
    bool done = false;
    double milliseconds = 0;
};

// What is done: `run` says what went wrong, if anything did.
struct Work {
    std::function<std::string()> run;
    // What it waits for; the others have none.
    std::shared_ptr<Ticket> wait;
    // Memory of the host that it uses.
    const char *host = nullptr;
    size_t bytes = 0;
};

// Work with what it comes after, by number.
struct Node {
    Work work;
    std::vector<size_t> after;
};

struct Stream;

struct Capture {
    Stream *origin;
    std::thread::id thread;
    std::vector<Node> nodes;
    std::vector<Stream *> joined;
    bool broken = false;
};

// Handles are never freed, so that one that was destroyed is known for what it is.
struct Stream {
    int device;
    bool alive = true;
    std::deque<Work> queue;
    Capture *capture = nullptr;
    // In a capture: what comes next comes after these.
    std::vector<size_t> last;
};

struct Event {
    bool alive = true;
    std::shared_ptr<Ticket> ticket;
    Capture *captured = nullptr;
    std::vector<size_t> last;
};

struct Graph {
    bool alive = true;
    int device;
    std::vector<Node> nodes;
};

struct Allocation {
    int device;
    char *mapped;
    size_t mapped_bytes;
    char *start;
    size_t bytes;
};

struct Pinned {
    char *start;
    size_t bytes;
};

struct Gpu {
    int capability;
    // What it answers to everything from now on.
    int failure = SUCCESS;
    // Where work without a stream goes.
    Stream none;
    std::vector<Allocation> memory;
    size_t used = 0;
};

// All there is; used by whoever holds the lock.
struct Everything {
    std::recursive_mutex lock;
    bool started = false;
    std::vector<std::unique_ptr<Gpu>> gpus;
    std::vector<Stream *> streams;
    std::vector<Pinned> pinned;
    unsigned long long random = 88172645463325252ull;
};

Everything &everything();

// Puts work at the end of a stream, or into the graph that it records.
int submit(Stream *stream, Work work);
int record(Stream *stream, Event *event);
int wait_for(Stream *stream, Event *event);

// Does something that can be done, for this GPU if there is anything; false if nothing can.
bool proceed(int device);
// Goes on until it is so.
void proceed_until(int device, const std::function<bool()> &is_so);

int begin_capture(Stream *stream);
int end_capture(Stream *stream, Graph **graph);
// What a thread that records a graph must not call.
bool is_recording();
Work as_work(const Graph &graph);

// Whether the calling thread may use the GPU, or this stream of it: SUCCESS, or what a call answers.
int current_state();
int stream_state(const Stream *stream);

// Whether a range lies in memory of the GPU.
bool is_memory(int device, const char *start, size_t bytes);
