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

// One variable of shared memory after the other becomes a reference into that of the block which runs.
static std::string as_references(const std::string &type, const std::string &declared, const std::string &alignment) {
    std::string text, rest = declared + ",";
    int depth = 0;
    size_t from = 0;
    for (size_t at = 0; at < rest.size(); at++) {
        depth += (rest[at] == '[' || rest[at] == '(') - (rest[at] == ']' || rest[at] == ')');
        if (rest[at] != ',' || depth > 0) {
            continue;
        }
        std::string one = rest.substr(from, at - from), name = one.substr(one.find_first_not_of(" \n"));
        name = name.substr(0, name.find_first_of("[ "));
        std::string own = "emulated_" + name;
        text += "typedef " + type + " emulated_type_of_" + one.substr(one.find_first_not_of(" \n")) + "; static char " + own + "_key; ";
        text += "emulated_type_of_" + name + " &" + name + " = *(emulated_type_of_" + name + " *)emulated_static(&" + own + "_key, sizeof(emulated_type_of_" +
                name + "), " + (alignment.empty() ? "alignof(emulated_type_of_" + name + ")" : alignment) + "); ";
        from = at + 1;
    }
    return text;
}

// Kernels become plain functions, each with an entry that takes its parameters by address.
static std::string as_host_code(std::string text) {
    text = std::regex_replace(text, std::regex("extern __shared__ ([^;]*?)(\\w+) (\\w+)\\[\\];"), "$2 *$3 = ($2 *)emulated_place()->shared;");
    std::regex variable("(?:alignas\\((\\d+)\\) )?__shared__ (?:__align__\\((\\d+)\\) )?(\\w+) ([^;]+);");
    for (std::smatch found; std::regex_search(text, found, variable);) {
        text = found.prefix().str() + as_references(found[3], found[4], found[1].str() + found[2].str()) + found.suffix().str();
    }
    // Where the kernel stands, for it may stand there on a condition.
    std::regex kernel("(extern \"C\" __global__ void (?:__launch_bounds__\\([^)]*\\) )?(\\w+)\\()const (?:__grid_constant__ )?(\\w+) (\\w+)\\)");
    std::string entry = "extern \"C\" void $2(const $3 &); extern \"C\" void emulated_run_$2(void *p) { $2(*(const $3 *)p); } "
                        "extern \"C\" const size_t emulated_size_$2 = sizeof($3); ";
    return std::regex_replace(text, kernel, entry + "$1const $3 &$4)");
}

extern "C" {

Result nvrtcVersion(int *major, int *minor) { return *major = 0, *minor = 1, SUCCESS; }
const char *nvrtcGetErrorString(Result) { return "an emulated error"; }
Result nvrtcGetNumSupportedArchs(int *count) { return *count = 2, SUCCESS; }
Result nvrtcGetSupportedArchs(int *list) { return list[0] = 80, list[1] = 90, SUCCESS; }

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
        // One function of `ptx/` is one instruction; the emulated ones are found in their own folder, and nowhere else: each stands there once.
        if (slurp(std::string(EMULATOR) + "/" + header.first).empty()) {
            spill(root + "/" + header.first, as_host_code(header.second));
        }
    }
    spill(root + "/kernel.cpp", as_host_code(program->source));
    std::string command = "g++ -std=c++17 -O1 -march=native -ffp-contract=fast -w -shared -fPIC -include " EMULATOR "/device.h -I " EMULATOR " -I " + root;
    for (int i = 0; i < count; i++) {
        const char *arch = strstr(options[i], "--gpu-architecture=sm_");
        if (arch) {
            command += " -D__CUDA_ARCH__=" + std::string(arch + 22, 2) + "0";
        }
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
