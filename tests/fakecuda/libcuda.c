/* A CUDA driver without a GPU: unmodified cuda-bindings load it as libcuda.so.1.
 *
 * It keeps the rules a launch can break (a current context, grid and block limits, the 48 KiB of
 * shared memory, attributes per device), and writes each call to FAKECUDA_LOG as one line of JSON.
 * A launch's line holds the bytes of every parameter that the kernel would read: their sizes come
 * from the cubin's own records (section .nv.info.<symbol>, attribute 0x17), not from the caller.
 *
 * Environment:
 *   FAKECUDA_DEVICES         "9.0" or "9.0:NVIDIA H200,8.0": capability and name of each device
 *   FAKECUDA_DRIVER_VERSION  what cuDriverGetVersion says, 13000 unless given
 *   FAKECUDA_FAIL            "cuLibraryLoadData:200,cuLaunchKernel:700@2": the call, its status, and
 *                            which call of that name fails (each one unless given)
 *   FAKECUDA_CAPTURING       a stream handle that is being captured
 *   FAKECUDA_LOG             the file that gets the calls
 *
 * Memory of device d has addresses from (d + 1) << 40.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;
enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  LAUNCH_OUT_OF_RESOURCES = 701,
};
enum { MAX_DEVICES = 8, MAX_PARAMS = 64, MAX_KERNELS = 4096, STACK = 16 };

typedef struct {
  char symbol[512];
  int n_params;
  int sizes[MAX_PARAMS];
  int max_dynamic_shared[MAX_DEVICES];
} Kernel;

typedef struct {
  unsigned char *image;
  size_t size;
} Library;

typedef struct {
  int index;
} Context;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialised_in; /* the pid that called cuInit */
static int n_devices;
static int capabilities[MAX_DEVICES];
static char names[MAX_DEVICES][64];
static Context contexts[MAX_DEVICES];
static Kernel *kernels[MAX_KERNELS];
static int n_kernels;
static uint64_t allocated = 4096;
static __thread Context *stack[STACK];
static __thread int depth;

static void record(const char *format, ...) {
  const char *path = getenv("FAKECUDA_LOG");
  if (!path) return;
  char line[16384];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  pthread_mutex_lock(&lock);
  FILE *file = fopen(path, "a");
  if (file) {
    fprintf(file, "%s\n", line);
    fclose(file);
  }
  pthread_mutex_unlock(&lock);
}

/* The status that FAKECUDA_FAIL asks for at this call, or 0. */
static CUresult injected(const char *call) {
  static struct {
    char call[64];
    int count;
  } seen[64];
  const char *spec = getenv("FAKECUDA_FAIL");
  if (!spec) return SUCCESS;
  int nth = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < 64; i++) {
    if (!seen[i].call[0]) snprintf(seen[i].call, sizeof seen[i].call, "%s", call);
    if (!strcmp(seen[i].call, call)) {
      nth = ++seen[i].count;
      break;
    }
  }
  pthread_mutex_unlock(&lock);
  char copy[1024];
  snprintf(copy, sizeof copy, "%s", spec);
  char *rest = NULL;
  for (char *item = strtok_r(copy, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
    char *colon = strchr(item, ':');
    if (!colon) continue;
    *colon = 0;
    char *at = strchr(colon + 1, '@');
    if (!strcmp(item, call) && (!at || atoi(at + 1) == nth)) {
      record("{\"call\": \"%s\", \"failed\": %d}", call, atoi(colon + 1));
      return atoi(colon + 1);
    }
  }
  return SUCCESS;
}

#define BEGIN(call)                             \
  CUresult injected_ = injected(call);          \
  if (injected_ != SUCCESS) return injected_;   \
  if (initialised_in != getpid()) return NOT_INITIALIZED

CUresult cuInit(unsigned flags) {
  CUresult status = injected("cuInit");
  if (status != SUCCESS) return status;
  if (flags) return INVALID_VALUE;
  /* As the real driver: a child of a process that used CUDA cannot. */
  if (initialised_in && initialised_in != getpid()) return NOT_INITIALIZED;
  if (initialised_in) return SUCCESS;
  const char *text = getenv("FAKECUDA_DEVICES");
  char copy[1024];
  snprintf(copy, sizeof copy, "%s", text ? text : "9.0");
  char *rest = NULL;
  for (char *item = strtok_r(copy, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
    int major = 0, minor = 0;
    if (n_devices == MAX_DEVICES || sscanf(item, "%d.%d", &major, &minor) != 2) return INVALID_VALUE;
    char *colon = strchr(item, ':');
    snprintf(names[n_devices], sizeof names[0], "%s", colon ? colon + 1 : "Fake GPU");
    capabilities[n_devices] = major * 10 + minor;
    contexts[n_devices].index = n_devices;
    n_devices++;
  }
  if (!n_devices) return NO_DEVICE;
  initialised_in = getpid();
  record("{\"call\": \"cuInit\"}");
  return SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
  const char *text = getenv("FAKECUDA_DRIVER_VERSION");
  *version = text ? atoi(text) : 13000;
  return injected("cuDriverGetVersion");
}

CUresult cuDeviceGetCount(int *count) {
  BEGIN("cuDeviceGetCount");
  *count = n_devices;
  return SUCCESS;
}

CUresult cuDeviceGet(int *device, int ordinal) {
  BEGIN("cuDeviceGet");
  if (ordinal < 0 || ordinal >= n_devices) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, int device) {
  BEGIN("cuDeviceGetName");
  snprintf(name, (size_t)length, "%s", names[device]);
  return SUCCESS;
}

static int max_shared(int capability) {
  switch (capability) {
    case 75: return 64 * 1024;
    case 80: case 87: return 163 * 1024;
    case 86: case 89: case 120: case 121: return 99 * 1024;
    default: return 227 * 1024;
  }
}

CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
  BEGIN("cuDeviceGetAttribute");
  if (device < 0 || device >= n_devices) return INVALID_DEVICE;
  switch (attribute) {
    case 75: *value = capabilities[device] / 10; return SUCCESS;
    case 76: *value = capabilities[device] % 10; return SUCCESS;
    case 97: *value = max_shared(capabilities[device]); return SUCCESS;
    default: return INVALID_VALUE;
  }
}

CUresult cuDevicePrimaryCtxRetain(Context **context, int device) {
  BEGIN("cuDevicePrimaryCtxRetain");
  if (device < 0 || device >= n_devices) return INVALID_DEVICE;
  *context = &contexts[device];
  record("{\"call\": \"cuDevicePrimaryCtxRetain\", \"device\": %d}", device);
  return SUCCESS;
}

CUresult cuCtxGetCurrent(Context **context) {
  BEGIN("cuCtxGetCurrent");
  *context = depth ? stack[depth - 1] : NULL;
  return SUCCESS;
}

CUresult cuCtxSetCurrent(Context *context) {
  BEGIN("cuCtxSetCurrent");
  if (depth) depth--;
  if (context) stack[depth++] = context;
  return SUCCESS;
}

CUresult cuCtxPushCurrent(Context *context) {
  BEGIN("cuCtxPushCurrent");
  if (!context || depth == STACK) return INVALID_CONTEXT;
  stack[depth++] = context;
  record("{\"call\": \"cuCtxPushCurrent\", \"device\": %d}", context->index);
  return SUCCESS;
}

CUresult cuCtxPopCurrent(Context **context) {
  BEGIN("cuCtxPopCurrent");
  if (!depth) return INVALID_CONTEXT;
  *context = stack[--depth];
  record("{\"call\": \"cuCtxPopCurrent\"}");
  return SUCCESS;
}

CUresult cuCtxGetDevice(int *device) {
  BEGIN("cuCtxGetDevice");
  if (!depth) return INVALID_CONTEXT;
  *device = stack[depth - 1]->index;
  return SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, int attribute, uint64_t address) {
  BEGIN("cuPointerGetAttribute");
  int device = (int)(address >> 40) - 1;
  if (attribute != 9 || device < 0 || device >= n_devices) return INVALID_VALUE;
  *(int *)data = device;
  return SUCCESS;
}

CUresult cuStreamIsCapturing(uint64_t stream, int *status) {
  BEGIN("cuStreamIsCapturing");
  const char *capturing = getenv("FAKECUDA_CAPTURING");
  *status = capturing && strtoull(capturing, NULL, 0) == stream;
  return SUCCESS;
}

/* Bytes of an ELF image, or 0 where it is none. */
static size_t elf_size(const unsigned char *image) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  if (memcmp(image, ELFMAG, SELFMAG)) return 0;
  size_t end = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
  for (int i = 0; i < header->e_shnum; i++)
    if (sections[i].sh_type != SHT_NOBITS && sections[i].sh_offset + sections[i].sh_size > end)
      end = sections[i].sh_offset + sections[i].sh_size;
  return end;
}

CUresult cuLibraryLoadData(Library **library, const void *code, void *a, void *b, unsigned c, void *d,
                           void *e, unsigned f) {
  BEGIN("cuLibraryLoadData");
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  size_t size = elf_size(code);
  if (!size) return INVALID_IMAGE;
  *library = calloc(1, sizeof **library);
  (*library)->size = size;
  (*library)->image = malloc(size);
  memcpy((*library)->image, code, size); /* the caller may drop its bytes, as with the real driver */
  record("{\"call\": \"cuLibraryLoadData\", \"bytes\": %zu}", size);
  return SUCCESS;
}

static void read_params(Kernel *kernel, const unsigned char *data, size_t size) {
  size_t at = 0;
  while (at + 4 <= size) {
    int format = data[at], attribute = data[at + 1];
    uint16_t length;
    memcpy(&length, data + at + 2, 2);
    if (format == 4 && attribute == 0x17 && at + 16 <= size) {
      uint16_t ordinal;
      uint32_t flags;
      memcpy(&ordinal, data + at + 8, 2);
      memcpy(&flags, data + at + 12, 4);
      if (ordinal < MAX_PARAMS) {
        kernel->sizes[ordinal] = (int)(flags >> 18);
        if (ordinal >= kernel->n_params) kernel->n_params = ordinal + 1;
      }
    }
    at += 4 + (format == 4 ? length : 0);
  }
}

CUresult cuLibraryGetKernel(Kernel **result, Library *library, const char *name) {
  BEGIN("cuLibraryGetKernel");
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)library->image;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(library->image + header->e_shoff);
  const char *strings = (const char *)library->image + sections[header->e_shstrndx].sh_offset;
  char wanted[600];
  snprintf(wanted, sizeof wanted, ".nv.info.%s", name);
  for (int i = 0; i < header->e_shnum; i++) {
    if (strcmp(strings + sections[i].sh_name, wanted)) continue;
    Kernel *kernel = calloc(1, sizeof *kernel);
    snprintf(kernel->symbol, sizeof kernel->symbol, "%s", name);
    read_params(kernel, library->image + sections[i].sh_offset, sections[i].sh_size);
    for (int d = 0; d < MAX_DEVICES; d++) kernel->max_dynamic_shared[d] = 48 * 1024;
    pthread_mutex_lock(&lock);
    if (n_kernels < MAX_KERNELS) kernels[n_kernels++] = kernel;
    pthread_mutex_unlock(&lock);
    *result = kernel;
    record("{\"call\": \"cuLibraryGetKernel\", \"symbol\": \"%s\"}", name);
    return SUCCESS;
  }
  return NOT_FOUND;
}

static int known(const Kernel *kernel) {
  for (int i = 0; i < n_kernels; i++)
    if (kernels[i] == kernel) return 1;
  return 0;
}

CUresult cuKernelGetFunction(void **function, Kernel *kernel) {
  BEGIN("cuKernelGetFunction");
  if (!depth) return INVALID_CONTEXT;
  *function = kernel;
  return SUCCESS;
}

CUresult cuKernelSetAttribute(int attribute, int value, Kernel *kernel, int device) {
  BEGIN("cuKernelSetAttribute");
  if (!known(kernel)) return INVALID_HANDLE;
  if (device < 0 || device >= n_devices) return INVALID_DEVICE;
  if (attribute == 8) {
    if (value > max_shared(capabilities[device])) return INVALID_VALUE;
    kernel->max_dynamic_shared[device] = value;
  }
  record("{\"call\": \"cuKernelSetAttribute\", \"attribute\": %d, \"value\": %d, \"device\": %d}", attribute,
         value, device);
  return SUCCESS;
}

static CUresult launch(const char *call, Kernel *kernel, const unsigned *grid, const unsigned *block,
                       unsigned shared, uint64_t stream, void **params, unsigned cluster) {
  if (!known(kernel)) return INVALID_HANDLE;
  if (!depth) return INVALID_CONTEXT;
  int device = stack[depth - 1]->index;
  if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 2147483647u || grid[1] > 65535 || grid[2] > 65535)
    return INVALID_VALUE;
  if (block[0] * block[1] * block[2] > 1024) return INVALID_VALUE;
  if (shared > (unsigned)kernel->max_dynamic_shared[device]) return INVALID_VALUE;
  if (grid[0] % cluster) return INVALID_VALUE;
  char text[12288];
  size_t at = 0;
  for (int i = 0; i < kernel->n_params; i++) {
    at += (size_t)snprintf(text + at, sizeof text - at, "%s\"", i ? ", " : "");
    for (int b = 0; b < kernel->sizes[i]; b++)
      at += (size_t)snprintf(text + at, sizeof text - at, "%02x", ((unsigned char *)params[i])[b]);
    at += (size_t)snprintf(text + at, sizeof text - at, "\"");
  }
  text[at] = 0;
  record("{\"call\": \"%s\", \"symbol\": \"%s\", \"grid\": [%u, %u, %u], \"block\": %u, \"shared\": %u, "
         "\"stream\": %llu, \"device\": %d, \"cluster\": %u, \"params\": [%s]}",
         call, kernel->symbol, grid[0], grid[1], grid[2], block[0], shared, (unsigned long long)stream, device,
         cluster, text);
  return SUCCESS;
}

CUresult cuLaunchKernel(Kernel *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, uint64_t stream, void **params, void **extra) {
  BEGIN("cuLaunchKernel");
  if (extra) return INVALID_VALUE;
  unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  return launch("cuLaunchKernel", kernel, grid, block, shared, stream, params, 1);
}

typedef struct {
  int id;
  char pad[4];
  union {
    char bytes[64];
    unsigned cluster[3];
  } value;
} LaunchAttribute;

typedef struct {
  unsigned grid[3], block[3], shared;
  uint64_t stream;
  LaunchAttribute *attributes;
  unsigned n_attributes;
} LaunchConfig;

CUresult cuLaunchKernelEx(const LaunchConfig *config, Kernel *kernel, void **params, void **extra) {
  BEGIN("cuLaunchKernelEx");
  if (extra) return INVALID_VALUE;
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->n_attributes; i++)
    if (config->attributes[i].id == 4) cluster = config->attributes[i].value.cluster[0];
  return launch("cuLaunchKernelEx", kernel, config->grid, config->block, config->shared, config->stream,
                params, cluster);
}

CUresult cuStreamGetCaptureInfo(uint64_t stream, int *status, uint64_t *id, void *graph, void *deps, void *edges,
                                size_t *n_deps) {
  (void)graph, (void)deps, (void)edges, (void)n_deps;
  CUresult failed = cuStreamIsCapturing(stream, status);
  if (!failed && id) *id = *status ? 1 : 0;
  return failed;
}

CUresult cuGetErrorName(int status, const char **name) {
  static const struct {
    int status;
    const char *name;
  } known[] = {
      {0, "CUDA_SUCCESS"},
      {1, "CUDA_ERROR_INVALID_VALUE"},
      {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {3, "CUDA_ERROR_NOT_INITIALIZED"},
      {100, "CUDA_ERROR_NO_DEVICE"},
      {101, "CUDA_ERROR_INVALID_DEVICE"},
      {200, "CUDA_ERROR_INVALID_IMAGE"},
      {201, "CUDA_ERROR_INVALID_CONTEXT"},
      {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {218, "CUDA_ERROR_INVALID_PTX"},
      {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
      {400, "CUDA_ERROR_INVALID_HANDLE"},
      {500, "CUDA_ERROR_NOT_FOUND"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
      {719, "CUDA_ERROR_LAUNCH_FAILED"},
      {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i].status == status) {
      *name = known[i].name;
      return SUCCESS;
    }
  return INVALID_VALUE;
}

CUresult cuMemAllocAsync(uint64_t *address, size_t size, uint64_t stream) {
  BEGIN("cuMemAllocAsync");
  if (!depth) return INVALID_CONTEXT;
  pthread_mutex_lock(&lock);
  *address = ((uint64_t)(stack[depth - 1]->index + 1) << 40) + allocated;
  allocated += (size + 511) / 512 * 512;
  pthread_mutex_unlock(&lock);
  record("{\"call\": \"cuMemAllocAsync\", \"bytes\": %zu, \"stream\": %llu, \"address\": %llu}", size,
         (unsigned long long)stream, (unsigned long long)*address);
  return SUCCESS;
}

CUresult cuMemFreeAsync(uint64_t address, uint64_t stream) {
  BEGIN("cuMemFreeAsync");
  record("{\"call\": \"cuMemFreeAsync\", \"stream\": %llu, \"address\": %llu}", (unsigned long long)stream,
         (unsigned long long)address);
  return SUCCESS;
}

/* Memory holds nothing: what is copied to it is gone, and what is read back is zeros. */
CUresult cuMemAlloc(uint64_t *address, size_t size) {
  BEGIN("cuMemAlloc");
  if (!depth) return INVALID_CONTEXT;
  pthread_mutex_lock(&lock);
  *address = ((uint64_t)(stack[depth - 1]->index + 1) << 40) + allocated;
  allocated += (size + 511) / 512 * 512;
  pthread_mutex_unlock(&lock);
  record("{\"call\": \"cuMemAlloc\", \"bytes\": %zu, \"address\": %llu}", size, (unsigned long long)*address);
  return SUCCESS;
}

CUresult cuMemFree(uint64_t address) {
  BEGIN("cuMemFree");
  record("{\"call\": \"cuMemFree\", \"address\": %llu}", (unsigned long long)address);
  return SUCCESS;
}

CUresult cuMemcpyHtoD(uint64_t to, const void *from, size_t size) {
  BEGIN("cuMemcpyHtoD");
  (void)to, (void)from, (void)size;
  return depth ? SUCCESS : INVALID_CONTEXT;
}

CUresult cuMemcpyDtoH(void *to, uint64_t from, size_t size) {
  BEGIN("cuMemcpyDtoH");
  (void)from;
  memset(to, 0, size);
  return depth ? SUCCESS : INVALID_CONTEXT;
}

CUresult cuMemsetD32Async(uint64_t address, unsigned value, size_t count, uint64_t stream) {
  BEGIN("cuMemsetD32Async");
  if (!depth) return INVALID_CONTEXT;
  record("{\"call\": \"cuMemsetD32Async\", \"address\": %llu, \"value\": %u, \"count\": %zu, \"stream\": %llu}",
         (unsigned long long)address, value, count, (unsigned long long)stream);
  return SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
  (void)version, (void)flags;
  static void *self;
  if (!self) {
    Dl_info info;
    if (!dladdr((void *)cuGetProcAddress_v2, &info)) return NOT_FOUND;
    self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }
  *function = self ? dlsym(self, symbol) : NULL;
  if (status) *status = *function ? 0 : 1;
  return *function ? SUCCESS : NOT_FOUND;
}
