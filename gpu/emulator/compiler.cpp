// NVRTC's calls that gpu/driver/module.rs makes. Kernels are compiled by g++; what is called machine code is the name of a
// library, which driver.cpp loads.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <functional>
#include <regex>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace {

enum { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };

struct Program {
    std::string text, name, log, image;
};

const int ARCHITECTURES[] = {70, 75, 80, 90};

// The folder of this library.
std::string folder() {
    Dl_info info;
    if (dladdr(reinterpret_cast<void *>(&folder), &info) == 0) {
        return ".";
    }
    std::string path = info.dli_fname;
    return path.substr(0, path.find_last_of('/'));
}

// Where compiled sources are kept: beside this library, or wherever one may write.
std::string store() {
    std::string beside = folder() + "/kernels";
    mkdir(beside.c_str(), 0777);
    if (access(beside.c_str(), W_OK) == 0) {
        return beside;
    }
    const char *scratch = getenv("TMPDIR");
    std::string other = std::string(scratch ? scratch : "/tmp") + "/quadrille-emulated-kernels";
    mkdir(other.c_str(), 0777);
    return other;
}

// The source as C++: kernels are functions that are called through their names.
std::string as_cpp(const Program &program) {
    static const std::string kernel = "extern \"C\" __global__ void ";
    std::string text = program.text, calls;
    std::regex declared(kernel + "(\\w+)\\(");
    for (std::sregex_iterator at(text.begin(), text.end(), declared), end; at != end; ++at) {
        calls += "EMULATED_KERNEL(" + (*at)[1].str() + ")\n";
    }
    for (size_t at; (at = text.find(kernel)) != std::string::npos;) {
        text.replace(at, kernel.size(), "void ");
    }
    // Everything of a source is its own, memory that a block shares, too.
    return "#include \"builtins.h\"\nnamespace {\n#line 1 \"" + program.name + "\"\n" + text + "\n}\n" + calls;
}

std::string contents(const std::string &path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

const char BUILD[] = "g++ -std=c++17 -O3 -w -fPIC -shared -nostartfiles -fno-math-errno -I '";

bool compile(Program &program) {
    std::string text = as_cpp(program), at = store();
    std::string key = std::to_string(std::hash<std::string>()(BUILD + text + contents(folder() + "/builtins.h")));
    std::string base = at + "/" + key, done = base + ".so", own = base + "." + std::to_string(getpid());
    // Threads of one process, too, may compile the same at the same time.
    static std::atomic<unsigned> compilations{0};
    own += "." + std::to_string(compilations++);
    program.image = "emulated kernels: " + done;
    if (access(done.c_str(), R_OK) == 0) {
        return true;
    }
    std::ofstream(own + ".cpp") << text;
    std::string command = BUILD + folder() + "' -o '" + own + ".so' '" + own + ".cpp' 2>&1";
    FILE *output = popen(command.c_str(), "r");
    if (!output) {
        program.log = "g++ does not start";
        return false;
    }
    char line[512];
    while (fgets(line, sizeof line, output)) {
        program.log += line;
    }
    bool compiled = pclose(output) == 0;
    unlink((own + ".cpp").c_str());
    // So may other processes; whoever is last replaces what is the same.
    return compiled && rename((own + ".so").c_str(), done.c_str()) == 0;
}

} // namespace

extern "C" {

int nvrtcVersion(int *major, int *minor) {
    *major = 12;
    *minor = 0;
    return SUCCESS;
}

int nvrtcGetNumSupportedArchs(int *count) {
    *count = sizeof ARCHITECTURES / sizeof *ARCHITECTURES;
    return SUCCESS;
}

int nvrtcGetSupportedArchs(int *known) {
    memcpy(known, ARCHITECTURES, sizeof ARCHITECTURES);
    return SUCCESS;
}

int nvrtcCreateProgram(Program **program, const char *text, const char *name, int headers, const char *const *,
                       const char *const *) {
    if (headers != 0) {
        return INVALID_INPUT;
    }
    *program = new Program{text, name, "", ""};
    return SUCCESS;
}

int nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    for (int i = 0; i < count; i++) {
        std::string option = options[i];
        if (option.rfind("--gpu-architecture=", 0) != 0 && option != "--std=c++17") {
            return INVALID_OPTION;
        }
    }
    return compile(*program) ? SUCCESS : COMPILATION;
}

int nvrtcGetProgramLogSize(Program *program, size_t *size) {
    *size = program->log.size() + 1;
    return SUCCESS;
}

int nvrtcGetProgramLog(Program *program, char *log) {
    memcpy(log, program->log.c_str(), program->log.size() + 1);
    return SUCCESS;
}

int nvrtcGetCUBINSize(Program *program, size_t *size) {
    *size = program->image.size() + 1;
    return program->image.empty() ? INVALID_PROGRAM : SUCCESS;
}

int nvrtcGetCUBIN(Program *program, char *image) {
    memcpy(image, program->image.c_str(), program->image.size() + 1);
    return SUCCESS;
}

int nvrtcGetPTXSize(Program *program, size_t *size) { return nvrtcGetCUBINSize(program, size); }

int nvrtcGetPTX(Program *program, char *image) { return nvrtcGetCUBIN(program, image); }

int nvrtcDestroyProgram(Program **program) {
    delete *program;
    *program = nullptr;
    return SUCCESS;
}
}
