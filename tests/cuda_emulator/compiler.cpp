// libnvrtc.so.13 for tests without a GPU: kernels go to g++, which makes a shared object of them. See README.md.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

typedef int Result;
enum { SUCCESS = 0, COMPILATION = 6 };

struct Program {
    std::string source, log, image;
    std::vector<std::pair<std::string, std::string>> headers;
};

static std::string slurp(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

static void spill(const std::string &path, const std::string &text) {
    for (size_t slash = path.find('/', 5); slash != std::string::npos; slash = path.find('/', slash + 1)) {
        mkdir(path.substr(0, slash).c_str(), 0700);
    }
    std::ofstream(path, std::ios::binary) << text;
}

// Kernels become plain functions, each with an entry that takes its parameters by address.
static std::string as_host_code(std::string text) {
    text = std::regex_replace(text, std::regex("extern __shared__ ([^;]*?)(\\w+) (\\w+)\\[\\];"), "$2 *$3 = ($2 *)emulated_place()->shared;");
    std::string entries;
    std::regex kernel("extern \"C\" __global__ void (?:__launch_bounds__\\([^)]*\\) )?(\\w+)\\(const (?:__grid_constant__ )?(\\w+) \\w+\\)");
    for (std::sregex_iterator found(text.begin(), text.end(), kernel), end; found != end; ++found) {
        std::string name = (*found)[1], type = (*found)[2];
        entries += "extern \"C\" void emulated_run_" + name + "(void *p) { " + name + "(*(" + type + " *)p); }\n";
        entries += "extern \"C\" const size_t emulated_size_" + name + " = sizeof(" + type + ");\n";
    }
    return text + "\n" + entries;
}

extern "C" {

Result nvrtcVersion(int *major, int *minor) { return *major = 0, *minor = 1, SUCCESS; }
const char *nvrtcGetErrorString(Result) { return "an emulated error"; }
Result nvrtcGetNumSupportedArchs(int *count) { return *count = 1, SUCCESS; }
Result nvrtcGetSupportedArchs(int *list) { return *list = 80, SUCCESS; }

Result nvrtcCreateProgram(Program **program, const char *source, const char *, int count, const char *const *texts, const char *const *names) {
    *program = new Program;
    (*program)->source = source;
    for (int i = 0; i < count; i++) {
        (*program)->headers.emplace_back(names[i], texts[i]);
    }
    return SUCCESS;
}
Result nvrtcDestroyProgram(Program **program) { return delete *program, *program = nullptr, SUCCESS; }

Result nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    char folder[] = "/tmp/trifuse-compiled-XXXXXX";
    if (!mkdtemp(folder)) {
        return COMPILATION;
    }
    std::string root = folder;
    for (const auto &header : program->headers) {
        // One function of `ptx/` is one instruction; the emulated ones stand in their place.
        std::string own = slurp(std::string(EMULATOR) + "/" + header.first);
        spill(root + "/" + header.first, own.empty() ? as_host_code(header.second) : own);
    }
    spill(root + "/kernel.cpp", as_host_code(program->source));
    std::string command = "g++ -std=c++17 -O2 -march=native -ffp-contract=fast -w -shared -fPIC -include " EMULATOR "/device.h -I " EMULATOR " -I " + root;
    for (int i = 0; i < count; i++) {
        if (strncmp(options[i], "-D", 2) == 0) {
            command += std::string(" '") + options[i] + "'";
        }
    }
    command += " " + root + "/kernel.cpp -o " + root + "/kernel.so 2> " + root + "/log";
    bool done = system(command.c_str()) == 0;
    program->log = slurp(root + "/log");
    std::string object = slurp(root + "/kernel.so");
    uint64_t length = object.size();
    program->image = "EMULATED" + std::string((const char *)&length, 8) + object;
    if (system(("rm -r " + root).c_str()) != 0) {
        return COMPILATION;
    }
    return done ? SUCCESS : COMPILATION;
}

Result nvrtcGetProgramLogSize(Program *program, size_t *size) { return *size = program->log.size() + 1, SUCCESS; }
Result nvrtcGetProgramLog(Program *program, char *log) { return strcpy(log, program->log.c_str()), SUCCESS; }
Result nvrtcGetCUBINSize(Program *program, size_t *size) { return *size = program->image.size(), SUCCESS; }
Result nvrtcGetCUBIN(Program *program, char *image) { return memcpy(image, program->image.data(), program->image.size()), SUCCESS; }
}
