// A stand-in for NVRTC (`libnvrtc.so`): compiles a module for the CPU with the system's C++ compiler.
// The machine code it returns is the path of a shared object, which the stand-in driver loads.
// Objects are kept beside this library, by a hash of all that goes into them.
#include <dlfcn.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace {

enum Result : int { SUCCESS = 0, COMPILATION = 6 };

struct Program {
    std::string source, name, log, object;
};

std::string folder() {
    Dl_info info;
    dladdr((void*)folder, &info);
    std::string path = info.dli_fname;
    return path.substr(0, path.rfind('/'));
}

std::string read(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

uint64_t hash(const std::string& text) {
    uint64_t h = 14695981039346656037ull;
    for (unsigned char c : text) h = (h ^ c) * 1099511628211ull;
    return h;
}

}  // namespace

#define CALL extern "C" __attribute__((visibility("default"))) Result

CALL nvrtcVersion(int* major, int* minor) { *major = 13, *minor = 0; return SUCCESS; }
CALL nvrtcCreateProgram(Program** to, const char* source, const char* name, int, const char* const*, const char* const*) {
    *to = new Program{source, name ? name : "module", "", ""};
    return SUCCESS;
}
CALL nvrtcDestroyProgram(Program** program) { delete *program; *program = nullptr; return SUCCESS; }
CALL nvrtcCompileProgram(Program* p, int count, const char* const* options) {
    std::string at = folder(), flags = read(at + "/flags");
    while (!flags.empty() && flags.back() == '\n') flags.pop_back();
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], "-D", 2)) flags += std::string(" '") + options[i] + "'";
    char name[64];
    snprintf(name, sizeof name, "/modules/%016llx", (unsigned long long)hash(p->source + flags + read(at + "/device.h") + read(at + "/fibers.h")));
    std::string base = at + name, mine = base + "." + std::to_string(getpid()) + "-" + std::to_string((uintptr_t)p);
    p->object = base + ".so";
    if (!access(p->object.c_str(), R_OK)) return SUCCESS;
    mkdir((at + "/modules").c_str(), 0777);
    std::ofstream(mine + ".cpp") << p->source << "\n}  // the namespace that device.h opens\n";
    std::string command = "c++ " + flags + " -include '" + at + "/device.h' -x c++ '" + mine + ".cpp' -L'" + at +
                          "' -lcuda -o '" + mine + ".so' 2>'" + mine + ".log'";
    int status = system(command.c_str());
    p->log = command + "\n" + read(mine + ".log");
    unlink((mine + ".log").c_str());
    unlink((mine + ".cpp").c_str());
    if (status) return COMPILATION;
    rename((mine + ".so").c_str(), p->object.c_str());
    return SUCCESS;
}
CALL nvrtcGetProgramLogSize(Program* p, size_t* size) { *size = p->log.size() + 1; return SUCCESS; }
CALL nvrtcGetProgramLog(Program* p, char* to) { strcpy(to, p->log.c_str()); return SUCCESS; }
CALL nvrtcGetCUBINSize(Program* p, size_t* size) { *size = p->object.size() + 1; return SUCCESS; }
CALL nvrtcGetCUBIN(Program* p, char* to) { strcpy(to, p->object.c_str()); return SUCCESS; }
