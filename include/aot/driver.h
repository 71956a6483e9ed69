/* The one door to the CUDA driver, opened by the first call that needs it. A cubin is loaded once and
 * stays loaded for the life of the process: a captured graph or a running kernel may use it. */
#include <dlfcn.h>

typedef struct aot__launch_attribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    uint64_t aligned;
    struct {
      unsigned x, y, z;
    } cluster;
    int policy;
  } value;
} aot__launch_attribute;

typedef struct aot__launch_config {
  unsigned grid[3], block[3], shared;
  void *stream;
  aot__launch_attribute *attributes;
  unsigned n_attributes;
} aot__launch_config;

/* The driver's functions, in the versions of CUDA 12.0. */
#define AOT__DRIVER_CALLS(X)                                                                                  \
  X(cuInit, (unsigned))                                                                                       \
  X(cuDriverGetVersion, (int *))                                                                              \
  X(cuDeviceGetCount, (int *))                                                                                \
  X(cuDeviceGet, (int *, int))                                                                                \
  X(cuDeviceGetName, (char *, int, int))                                                                      \
  X(cuDeviceGetAttribute, (int *, int, int))                                                                  \
  X(cuDevicePrimaryCtxRetain, (void **, int))                                                                 \
  X(cuCtxGetCurrent, (void **))                                                                               \
  X(cuCtxPushCurrent, (void *))                                                                               \
  X(cuCtxPopCurrent, (void **))                                                                               \
  X(cuStreamIsCapturing, (void *, int *))                                                                     \
  X(cuLibraryLoadData, (void **, const void *, void *, void *, unsigned, void *, void *, unsigned))           \
  X(cuLibraryGetKernel, (void **, void *, const char *))                                                      \
  X(cuKernelSetAttribute, (int, int, void *, int))                                                            \
  X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,    \
                     void **, void **))                                                                       \
  X(cuLaunchKernelEx, (const aot__launch_config *, void *, void **, void **))                                 \
  X(cuMemAllocAsync, (uint64_t *, size_t, void *))                                                            \
  X(cuMemFreeAsync, (uint64_t, void *))

enum {
  AOT__CUDA_VERSION = 12000,
  AOT__MAJOR = 75, /* device attributes */
  AOT__MINOR = 76,
  AOT__MAX_SHARED_OPTIN = 97,
  AOT__DYNAMIC_SHARED = 8, /* kernel attributes */
  AOT__NON_PORTABLE_CLUSTER = 14,
  AOT__CLUSTER_DIMENSION = 4, /* launch attributes */
  AOT__CLUSTER_POLICY = 5,
  AOT__POLICY_SPREAD = 1,
  AOT__SHARED_WITHOUT_OPT_IN = 48 * 1024,
  AOT__PORTABLE_CLUSTER = 8,
  AOT__MAX_DEVICES = 64,
  AOT__N_BUCKETS = 1024
};

typedef struct aot__device {
  int index, handle, capability;
  uint64_t max_shared;
  void *context;
  bool known;
  char shown[320]; /* as messages name it */
} aot__device;

/* A kernel of a loaded cubin, and on which devices it is ready to launch. */
typedef struct aot__image {
  struct aot__image *next;
  const char *symbol;
  void *function;
  bool ready[AOT__MAX_DEVICES];
} aot__image;

/* A loaded cubin. */
typedef struct aot__library {
  struct aot__library *next;
  char sha256[65];
  void *handle;
  aot__image *images;
} aot__library;

static struct {
#define AOT__POINTER(name, args) int(*name) args;
  AOT__DRIVER_CALLS(AOT__POINTER)
#undef AOT__POINTER
  int (*cuGetErrorName)(int, const char **); /* NULL where the driver has none */
  pthread_mutex_t lock;                      /* over all below */
  pid_t pid;                                 /* that opened the driver, or 0 */
  int version;
  aot__device devices[AOT__MAX_DEVICES];
  aot__library *libraries[AOT__N_BUCKETS];
} aot__driver = {
#define AOT__NOTHING(name, args) NULL,
    AOT__DRIVER_CALLS(AOT__NOTHING)
#undef AOT__NOTHING
    NULL, PTHREAD_MUTEX_INITIALIZER, 0, 0, {{0, 0, 0, 0, NULL, false, {0}}}, {NULL}};

static const char *aot__driver_hint(int code) {
  switch (code) {
    case 2: return "; the GPU's memory is full: free some, or use a device with more";
    case 3: return "; if this process was forked after CUDA was used, fork before that instead";
    case 100: return "; no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES";
    case 500: return "; the cubin has no such symbol: build the bundle again";
    case 700:
      return "; a kernel that ran before, this one or another, used a wrong address; the CUDA context is lost, "
             "start the process again";
    case 701: return "; the kernel needs more registers or shared memory than the device has left for one block";
    case 719: return "; a kernel that ran before failed; the CUDA context is lost, start the process again";
    case 900:
    case 901:
    case 906: return "; a stream is being captured: prepare the call before the capture begins";
    default: return "";
  }
}

/* Is the status of a driver call an error? Then say so. */
static bool aot__refused(int code, const char *call, const char *what, const char *hint, aot_error *error) {
  const char *name = NULL;
  if (!code) return false;
  if (aot__driver.cuGetErrorName) aot__driver.cuGetErrorName(code, &name);
  aot__fail(error, AOT_ERROR_DRIVER, "%s failed with %s (%d)%s%s%s", call, name ? name : "a CUDA error", code,
            *what ? " for " : "", what, hint ? hint : aot__driver_hint(code));
  if (error) error->driver_code = code;
  return true;
}

static bool aot__find_calls(aot_error *error) {
  typedef int (*finder)(const char *, void **, int, uint64_t, int *);
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = NULL;
  finder find = NULL;
  const char *missing = "cuGetProcAddress_v2";
  if (!library) {
    aot__fail(error, AOT_ERROR_DRIVER,
              "found no CUDA driver (%s); wanted libcuda.so.1, which comes with the NVIDIA driver. In a container, "
              "start it with GPU access",
              dlerror());
    return false;
  }
  found = dlsym(library, "cuGetProcAddress_v2");
  memcpy(&find, &found, sizeof find);
#define AOT__FIND(name, args)                                                       \
  if (find) {                                                                       \
    found = NULL;                                                                   \
    if (find(#name, &found, AOT__CUDA_VERSION, 0, NULL) || !found) missing = #name; \
    if (!found) find = NULL;                                                        \
    memcpy(&aot__driver.name, &found, sizeof found);                                \
  }
  AOT__DRIVER_CALLS(AOT__FIND)
#undef AOT__FIND
  if (!find) {
    aot__fail(error, AOT_ERROR_DRIVER, "the CUDA driver has no %s, wanted one for CUDA 12.0 or newer; upgrade it",
              missing);
    return false;
  }
  if (find("cuGetErrorName", &found, AOT__CUDA_VERSION, 0, NULL)) found = NULL;
  memcpy(&aot__driver.cuGetErrorName, &found, sizeof found);
  return true;
}

/* Refuse a process that was forked from one that had used CUDA. Takes no lock: a thread that is not in
 * the child may have held it. */
static bool aot__same_process(aot_error *error) {
  pid_t opened = __atomic_load_n(&aot__driver.pid, __ATOMIC_ACQUIRE), pid = getpid();
  if (!opened || opened == pid) return true;
  aot__fail(error, AOT_ERROR_DRIVER,
            "this process (%ld) was forked from process %ld after that one used CUDA, and CUDA does not work in such "
            "a child; fork before the first launch",
            (long)pid, (long)opened);
  return false;
}

/* Open the driver, once. Needs the lock. */
static bool aot__open_driver(aot_error *error) {
  if (aot__driver.pid) return true;
  if (!aot__find_calls(error) || aot__refused(aot__driver.cuInit(0), "cuInit", "", NULL, error) ||
      aot__refused(aot__driver.cuDriverGetVersion(&aot__driver.version), "cuDriverGetVersion", "", NULL, error))
    return false;
  __atomic_store_n(&aot__driver.pid, getpid(), __ATOMIC_RELEASE);
  return true;
}

static bool aot__read_device(int index, aot__device *device, aot_error *error) {
  int count, major, minor, shared;
  char name[256] = "", what[32];
  snprintf(what, sizeof what, "cuda:%d", index);
  if (aot__refused(aot__driver.cuDeviceGetCount(&count), "cuDeviceGetCount", "", NULL, error)) return false;
  if (index < 0 || index >= count || index >= AOT__MAX_DEVICES) {
    aot__fail(error, AOT_ERROR_DRIVER,
              "found device cuda:%d, wanted one of the %d that the driver shows; look at CUDA_VISIBLE_DEVICES", index,
              count);
    return false;
  }
  if (aot__refused(aot__driver.cuDeviceGet(&device->handle, index), "cuDeviceGet", what, NULL, error) ||
      aot__refused(aot__driver.cuDeviceGetName(name, sizeof name, device->handle), "cuDeviceGetName", what, NULL,
                   error) ||
      aot__refused(aot__driver.cuDeviceGetAttribute(&major, AOT__MAJOR, device->handle), "cuDeviceGetAttribute", what,
                   NULL, error) ||
      aot__refused(aot__driver.cuDeviceGetAttribute(&minor, AOT__MINOR, device->handle), "cuDeviceGetAttribute", what,
                   NULL, error) ||
      aot__refused(aot__driver.cuDeviceGetAttribute(&shared, AOT__MAX_SHARED_OPTIN, device->handle),
                   "cuDeviceGetAttribute", what, NULL, error) ||
      aot__refused(aot__driver.cuDevicePrimaryCtxRetain(&device->context, device->handle), "cuDevicePrimaryCtxRetain",
                   what, NULL, error))
    return false;
  name[sizeof name - 1] = 0;
  device->index = index;
  device->capability = major * 10 + minor;
  device->max_shared = shared > 0 ? (uint64_t)shared : 0;
  snprintf(device->shown, sizeof device->shown, "cuda:%d (%s, capability %d.%d)", index, name, major, minor);
  device->known = true;
  return true;
}

/* Return device `index`, or NULL with the error. Its primary context is retained, not made current. */
static const aot__device *aot__get_device(int index, aot_error *error) {
  aot__device made, *found = NULL;
  memset(&made, 0, sizeof made);
  if (!aot__same_process(error)) return NULL;
  pthread_mutex_lock(&aot__driver.lock);
  if (aot__open_driver(error)) {
    if (index >= 0 && index < AOT__MAX_DEVICES && aot__driver.devices[index].known) {
      found = aot__driver.devices + index;
    } else if (aot__read_device(index, &made, error)) {
      found = aot__driver.devices + index;
      *found = made;
    }
  }
  pthread_mutex_unlock(&aot__driver.lock);
  return found;
}

/* Make the device's primary context current in this thread; *pushed says whether aot__leave must undo it. */
static bool aot__enter(const aot__device *device, bool *pushed, aot_error *error) {
  void *current = NULL;
  *pushed = false;
  if (aot__refused(aot__driver.cuCtxGetCurrent(&current), "cuCtxGetCurrent", "", NULL, error)) return false;
  if (current == device->context) return true;
  if (aot__refused(aot__driver.cuCtxPushCurrent(device->context), "cuCtxPushCurrent", device->shown, NULL, error))
    return false;
  *pushed = true;
  return true;
}

static bool aot__leave(const aot__device *device, bool pushed, aot_error *error) {
  void *popped;
  return !pushed ||
         !aot__refused(aot__driver.cuCtxPopCurrent(&popped), "cuCtxPopCurrent", device->shown, NULL, error);
}

/* Load the cubin of an entry into the driver. Return its handle, or NULL with the error. */
static void *aot__load_library(const aot_bundle *bundle, const aot__entry *entry, const char *what,
                               aot_error *error) {
  char *data = aot__cubin(bundle, entry, error), hint[400];
  void *handle = NULL;
  int status;
  if (!data) return NULL;
  status = aot__driver.cuLibraryLoadData(&handle, data, NULL, NULL, 0, NULL, NULL, 0);
  AOT_FREE(data);
  snprintf(hint, sizeof hint,
           "; the cubin is for %.60s and was made by ptxas %.60s, the driver supports CUDA %d.%d; build for this "
           "device's capability, or upgrade the driver",
           entry->table->target_name, bundle->manifest.ptxas, aot__driver.version / 1000,
           aot__driver.version % 1000 / 10);
  if (aot__refused(status, "cuLibraryLoadData", what,
                   status == 200 || status == 209 || status == 218 || status == 222 ? hint : NULL, error))
    return NULL;
  return handle;
}

/* Return the loaded cubin of an entry, loading it where it is not loaded yet. Needs the lock. */
static aot__library *aot__find_library(const aot_bundle *bundle, const aot__entry *entry, const aot_stream *stream,
                                       const char *what, aot_error *error) {
  aot__library *library, **bucket;
  int capturing = 0;
  char digits[4] = {entry->sha256[0], entry->sha256[1], entry->sha256[2], 0};
  bucket = &aot__driver.libraries[strtoul(digits, NULL, 16) % AOT__N_BUCKETS];
  for (library = *bucket; library; library = library->next)
    if (!strcmp(library->sha256, entry->sha256)) return library;
  if (stream && aot__refused(aot__driver.cuStreamIsCapturing(*stream, &capturing), "cuStreamIsCapturing", what, NULL,
                             error))
    return NULL;
  if (capturing) {
    aot__fail(error, AOT_ERROR_LAUNCH,
              "%s is not loaded yet, and the stream is being captured; prepare the call before the capture begins",
              what);
    return NULL;
  }
  library = (aot__library *)AOT_CALLOC(1, sizeof *library);
  if (!library) return aot__no_memory(error), (aot__library *)NULL;
  library->handle = aot__load_library(bundle, entry, what, error);
  if (!library->handle) {
    AOT_FREE(library);
    return NULL;
  }
  memcpy(library->sha256, entry->sha256, sizeof library->sha256);
  library->next = *bucket;
  *bucket = library;
  return library;
}

/* Return the kernel of an entry in its loaded cubin, or NULL with the error. Needs the lock. */
static aot__image *aot__find_image(aot__library *library, const aot__entry *entry, const char *what,
                                   aot_error *error) {
  size_t size = strlen(entry->symbol) + 1;
  aot__image *image;
  for (image = library->images; image; image = image->next)
    if (!strcmp(image->symbol, entry->symbol)) return image;
  image = (aot__image *)AOT_CALLOC(1, sizeof *image + size);
  if (!image) return aot__no_memory(error), (aot__image *)NULL;
  if (aot__refused(aot__driver.cuLibraryGetKernel(&image->function, library->handle, entry->symbol),
                   "cuLibraryGetKernel", what, NULL, error)) {
    AOT_FREE(image);
    return NULL;
  }
  image->symbol = (const char *)memcpy(image + 1, entry->symbol, size);
  image->next = library->images;
  library->images = image;
  return image;
}

/* Ask for what a launch may not have by default. Needs the lock. */
static bool aot__allow(const aot__image *image, const aot__device *device, const aot__entry *entry, const char *what,
                       aot_error *error) {
  char hint[160];
  snprintf(hint, sizeof hint, "; wanted %llu bytes of shared memory, the device allows %llu",
           (unsigned long long)entry->shared, (unsigned long long)device->max_shared);
  if (entry->shared > AOT__SHARED_WITHOUT_OPT_IN &&
      aot__refused(aot__driver.cuKernelSetAttribute(AOT__DYNAMIC_SHARED, (int)entry->shared, image->function,
                                                    device->handle),
                   "cuKernelSetAttribute", what, hint, error))
    return false;
  return entry->options[AOT__NUM_CTAS].magnitude <= AOT__PORTABLE_CLUSTER ||
         !aot__refused(aot__driver.cuKernelSetAttribute(AOT__NON_PORTABLE_CLUSTER, 1, image->function,
                                                        device->handle),
                       "cuKernelSetAttribute", what, NULL, error);
}

/* Return the handle of an entry's kernel, ready to launch on the device, whose context is current; or
 * NULL with the error. `stream`, where it is not NULL, must not be capturing if the cubin is to be loaded. */
static void *aot__function(const aot_bundle *bundle, const aot__entry *entry, const aot__device *device,
                           const aot_stream *stream, const char *what, aot_error *error) {
  aot__library *library;
  aot__image *image;
  void *function = NULL;
  pthread_mutex_lock(&aot__driver.lock);
  library = aot__find_library(bundle, entry, stream, what, error);
  image = library ? aot__find_image(library, entry, what, error) : NULL;
  if (image && (image->ready[device->index] || aot__allow(image, device, entry, what, error))) {
    image->ready[device->index] = true;
    function = image->function;
  }
  pthread_mutex_unlock(&aot__driver.lock);
  return function;
}
