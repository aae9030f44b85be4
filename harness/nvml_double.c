/* A libnvidia-ml.so.1 for tests. What it reports stands in the text file $NVML_DOUBLE, which is read
 * anew on every call, so that a test can change the machine while a probe runs:
 *
 *   init <code>             what nvmlInit returns
 *   count <code>            what nvmlDeviceGetCount returns
 *   hang                    nvmlDeviceGetCount never returns
 *   starting                nvmlDeviceGetCount does not return before this line is gone
 *   crash                   nvmlDeviceGetCount ends the process
 *   v1                      a driver without version 2 of the memory call
 *   gpu <uuid> <total MiB> <used MiB> <error>
 *   hold <gpu> <pid> <MiB>  a compute process; -1 MiB: NVML cannot tell
 *   draw <gpu> <pid> <MiB>  a graphics process
 *   nomem <gpu>             its memory is not supported, as of integrated GPUs
 *   nolist <gpu>            its list of processes is not supported
 *   cc <gpu> <major> <minor>  its compute capability; 9.0 without
 *   deaf <gpu>              it refuses to report events
 *   xid <gpu> <code>        an event that is told once to whoever listens
 *   slow <gpu> <bits>       what slows its clocks down
 *   ecc <gpu> <n> <m>       corrected and uncorrected errors of its memory
 *   near <gpu> <bits> <node>  the first 64 processors, in hexadecimal, and the memory node near it
 *   runs <gpu> <%> <C> <W> <MHz>  how busy, hot and fast it is; without, 93 % at 61 C and 1755 MHz,
 *                           and its power is not supported
 *   name <gpu> <name>       what it is called; Double 9000 without
 *   mig <gpu> <uuid>        it is in MIG mode, with this instance ("-": with none)
 *
 * Compiled with -DLISTS=n it is an older driver, which lacks functions: the lists of processes go up to
 * version n (0: there are none), without version 3 there is no version 2 of the memory call and what
 * slows clocks down has its old name, and without version 2 there is neither MIG nor a compute
 * capability nor a memory node.
 */
#ifndef LISTS
#define LISTS 3
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, NO_FUNCTION = 13 };

struct gpu { char uuid[96]; long total, used; int error, deaf, nomem, nolist, mig, major, minor, node; u64 slow, corrected, uncorrected, cpus; u32 busy, hot, watts, clock; char instance[96], name[96]; };
struct held { int gpu, graphics; u32 pid; long mib; };
static struct { int init, count, hang, starting, crash, v1, gpus, helds; struct gpu gpu[8]; struct held held[32]; int xids; struct { int gpu, code; } xid[8]; } now;

static void load(void) {
    memset(&now, 0, sizeof now);
    const char *path = getenv("NVML_DOUBLE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256], word[16];
    while (file && fgets(line, sizeof line, file)) {
        struct gpu *g = &now.gpu[now.gpus];
        struct held *h = &now.held[now.helds];
        if (sscanf(line, "%15s", word) != 1) continue;
        if (!strcmp(word, "init")) sscanf(line, "init %d", &now.init);
        if (!strcmp(word, "count")) sscanf(line, "count %d", &now.count);
        if (!strcmp(word, "hang")) now.hang = 1;
        if (!strcmp(word, "starting")) now.starting = 1;
        if (!strcmp(word, "crash")) now.crash = 1;
        if (!strcmp(word, "v1")) now.v1 = 1;
        if (sscanf(line, "gpu %95s %ld %ld %d", g->uuid, &g->total, &g->used, &g->error) == 4) now.gpus++;
        int at;
        char instance[96];
        int major, minor;
        if (sscanf(line, "cc %d %d %d", &at, &major, &minor) == 3) {
            now.gpu[at].major = major;
            now.gpu[at].minor = minor;
        }
        if (sscanf(line, "nomem %d", &at) == 1) now.gpu[at].nomem = 1;
        if (sscanf(line, "deaf %d", &at) == 1) now.gpu[at].deaf = 1;
        if (sscanf(line, "xid %d %d", &now.xid[now.xids].gpu, &now.xid[now.xids].code) == 2) now.xids++;
        if (sscanf(line, "nolist %d", &at) == 1) now.gpu[at].nolist = 1;
        if (sscanf(line, "mig %d %95s", &at, instance) == 2) {
            now.gpu[at].mig = 1;
            if (strcmp(instance, "-")) strcpy(now.gpu[at].instance, instance);
        }
        u32 busy, hot, watts, clock;
        if (sscanf(line, "runs %d %u %u %u %u", &at, &busy, &hot, &watts, &clock) == 5) {
            struct gpu *runs = &now.gpu[at];
            runs->busy = busy; runs->hot = hot; runs->watts = watts; runs->clock = clock;
        }
        if (sscanf(line, "name %d %95[^\n]", &at, instance) == 2) strcpy(now.gpu[at].name, instance);
        u64 bits, more;
        if (sscanf(line, "slow %d %llx", &at, &bits) == 2) now.gpu[at].slow = bits;
        if (sscanf(line, "ecc %d %llu %llu", &at, &bits, &more) == 3) {
            now.gpu[at].corrected = bits;
            now.gpu[at].uncorrected = more;
        }
        if (sscanf(line, "near %d %llx %d", &at, &bits, &major) == 3) {
            now.gpu[at].cpus = bits;
            now.gpu[at].node = major;
        }
        h->graphics = !strcmp(word, "draw");
        if (sscanf(line, "hold %d %u %ld", &h->gpu, &h->pid, &h->mib) == 3 ||
            sscanf(line, "draw %d %u %ld", &h->gpu, &h->pid, &h->mib) == 3) now.helds++;
    }
    if (file) fclose(file);
}

static int find(void *handle, struct gpu **found) {
    load();
    size_t index = (size_t)handle - 1;
    if (index >= (size_t)now.gpus) return INVALID;
    *found = &now.gpu[index];
    return (*found)->error;
}

#define GPU(handle) struct gpu *g; int code = find(handle, &g); if (code) return code

const char *nvmlErrorString(int code) {
    return code == 15 ? "GPU is lost" : code == 3 ? "Not Supported" : code == 18 ? "Driver/library version mismatch" : "Unknown Error";
}
int nvmlInitWithFlags(u32 flags) { (void)flags; load(); return now.init; }
int nvmlShutdown(void) { return OK; }
int nvmlDeviceGetCount_v2(u32 *count) {
    load();
    while (now.hang) pause();
    while (now.starting) { usleep(1000); load(); }
    if (now.crash) abort();
    *count = (u32)now.gpus;
    return now.count;
}
int nvmlDeviceGetHandleByIndex_v2(u32 index, void **handle) {
    *handle = (void *)(size_t)(index + 1);
    GPU(*handle);
    return OK;
}
enum { INSTANCE = 1000 };
#if LISTS >= 2
int nvmlDeviceGetMigMode(void *handle, u32 *current, u32 *pending) {
    GPU(handle);
    *current = *pending = (u32)g->mig;
    return g->mig ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, u32 *count) { GPU(handle); *count = 2; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, u32 index, void **instance) {
    GPU(handle);
    if (!index || !g->instance[0]) return NOT_FOUND;
    *instance = (void *)(INSTANCE + (size_t)handle);
    return OK;
}
#endif
int nvmlDeviceGetUUID(void *handle, char *text, u32 size) {
    if ((size_t)handle > INSTANCE) {
        GPU((void *)((size_t)handle - INSTANCE));
        snprintf(text, size, "%s", g->instance);
        return OK;
    }
    GPU(handle); snprintf(text, size, "%s", g->uuid);
    return OK;
}
struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char address[32]; };
int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *info) {
    GPU(handle);
    memset(info, 0, sizeof *info);
    snprintf(info->address, sizeof info->address, "00000000:%02X:00.0", (u32)(size_t)handle + 0x3a);
    return OK;
}
struct event { void *device; u64 type, data; u32 instance, compute; };
int nvmlEventSetCreate(void **set) { *set = &now; return OK; }
int nvmlDeviceRegisterEvents(void *handle, u64 types, void *set) { (void)set; GPU(handle); return g->deaf ? NOT_SUPPORTED : types == 8 ? OK : INVALID; }
int nvmlEventSetWait_v2(void *set, struct event *event, u32 milliseconds) {
    static int told;
    (void)set; (void)milliseconds;
    load();
    while (told < now.xids && now.gpu[now.xid[told].gpu].deaf) told++;
    if (told >= now.xids) return 10;
    memset(event, 0, sizeof *event);
    event->device = (void *)(size_t)(now.xid[told].gpu + 1);
    event->type = 8;
    event->data = (u64)now.xid[told++].code;
    return OK;
}
int nvmlDeviceGetName(void *handle, char *text, u32 size) {
    if ((size_t)handle > INSTANCE) { snprintf(text, size, "Double 9000 MIG 1g"); return OK; }
    GPU(handle); snprintf(text, size, "%s", g->name[0] ? g->name : "Double 9000");
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *handle, u64 *info) {
    GPU(handle);
    if (g->nomem) return NOT_SUPPORTED;
    info[0] = (u64)g->total << 20; info[1] = (u64)(g->total - g->used) << 20; info[2] = (u64)g->used << 20;
    return OK;
}
#if LISTS >= 3
struct memory2 { u32 version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory2 *info) {
    GPU(handle);
    if (now.v1) return NO_FUNCTION;
    if (g->nomem) return NOT_SUPPORTED;
    info->total = (u64)g->total << 20; info->reserved = 100 << 20; info->used = (u64)g->used << 20;
    info->free = info->total - info->reserved - info->used;
    return OK;
}
#endif
int nvmlDeviceGetUtilizationRates(void *handle, u32 *rates) { GPU(handle); rates[0] = g->clock ? g->busy : 93; rates[1] = 40; return OK; }
#if LISTS >= 2
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    GPU(handle);
    *major = g->major ? g->major : 9; *minor = g->minor;
    return OK;
}
#endif
int nvmlDeviceGetTemperature(void *handle, u32 sensor, u32 *celsius) { (void)sensor; GPU(handle); *celsius = g->clock ? g->hot : 61; return OK; }
enum { SM = 1, MEMORY = 2 };
int nvmlDeviceGetClockInfo(void *handle, u32 type, u32 *mhz) { GPU(handle); *mhz = type != SM ? 2619 : g->clock ? g->clock : 1755; return OK; }
int nvmlDeviceGetMaxClockInfo(void *handle, u32 type, u32 *mhz) { (void)type; GPU(handle); *mhz = 1980; return OK; }
#if LISTS >= 3
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, u64 *bits) { GPU(handle); *bits = g->slow; return OK; }
#endif
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, u64 *bits) { GPU(handle); *bits = g->slow; return OK; }
int nvmlDeviceGetTotalEccErrors(void *handle, u32 kind, u32 counter, u64 *count) {
    (void)counter;
    GPU(handle);
    *count = kind ? g->uncorrected : g->corrected;
    return OK;
}
int nvmlDeviceGetEnforcedPowerLimit(void *handle, u32 *milliwatts) { GPU(handle); *milliwatts = 700000; return OK; }
int nvmlDeviceGetCpuAffinity(void *handle, u32 words, u64 *cpus) {
    GPU(handle);
    memset(cpus, 0, words * sizeof *cpus);
    cpus[0] = g->cpus ? g->cpus : 1;
    return OK;
}
#if LISTS >= 2
int nvmlDeviceGetMemoryAffinity(void *handle, u32 words, u64 *nodes, u32 scope) {
    (void)scope;
    GPU(handle);
    memset(nodes, 0, words * sizeof *nodes);
    nodes[0] = 1ULL << g->node;
    return OK;
}
#endif
int nvmlDeviceGetPowerUsage(void *handle, u32 *milliwatts) {
    GPU(handle);
    *milliwatts = g->watts * 1000;
    return g->clock ? OK : NOT_SUPPORTED;
}

#if LISTS >= 1
struct process { u32 pid; u64 used; u32 instance, compute; };
struct process1 { u32 pid; u64 used; };
/* `size` is that of one entry of `out`: the fields that all versions have come first. */
static int list(void *handle, int graphics, u32 *count, void *out, size_t size) {
    GPU(handle);
    if (g->nolist) return NOT_SUPPORTED;
    u32 wanted = 0;
    for (int i = 0; i < now.helds; i++) {
        struct held *h = &now.held[i];
        if (h->gpu != g - now.gpu || h->graphics != graphics) continue;
        if (out && wanted < *count) {
            struct process1 *entry = (struct process1 *)((char *)out + wanted * size);
            entry->pid = h->pid;
            entry->used = h->mib < 0 ? ~0ULL : (u64)h->mib << 20;
        }
        wanted++;
    }
    code = wanted > *count ? SMALL : OK;
    *count = wanted;
    return code;
}
#define LIST(suffix, type) \
    int nvmlDeviceGetComputeRunningProcesses##suffix(void *h, u32 *n, type *out) { return list(h, 0, n, out, sizeof *out); } \
    int nvmlDeviceGetGraphicsRunningProcesses##suffix(void *h, u32 *n, type *out) { return list(h, 1, n, out, sizeof *out); }
LIST(, struct process1)
#if LISTS >= 2
LIST(_v2, struct process)
#endif
#if LISTS >= 3
LIST(_v3, struct process)
#endif
#endif
