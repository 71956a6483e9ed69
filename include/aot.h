/* aot.h: launch the prebuilt GPU kernels of a bundle from C11 or C++17, without Python.
 *
 * Header-only. In exactly one source file, before any other include:
 *
 *     #define AOT_IMPLEMENTATION
 *     #include "aot.h"
 *
 * Everywhere else include it alone. It needs a POSIX libc (-ldl -lpthread where these are libraries of
 * their own) and gcc or clang. The CUDA driver, libcuda.so.1, is opened by the first call that needs it.
 *
 * A call that can fail returns an aot_status, takes an aot_error last (it may be NULL) and fills it in
 * where the status is not AOT_OK. All functions may be called from any thread. What is closed or freed
 * must not be in use by another thread meanwhile.
 *
 * docs/how-to/c-api.md shows a program, docs/reference/c-api.md says all of it.
 */
#if defined(AOT_IMPLEMENTATION) && !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif

#ifndef AOT_H
#define AOT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The bundles that this header reads: see docs/bundle-format.md. */
#define AOT_FORMAT_VERSION 1
#define AOT_LAUNCH_ABI 1

#define AOT_ERROR_TEXT 4096

typedef enum aot_status {
  AOT_OK = 0,
  AOT_ERROR_USAGE,     /* an argument of the C call is wrong: a name, a null pointer */
  AOT_ERROR_NO_BUNDLE, /* there is no bundle at the path */
  AOT_ERROR_BUNDLE,    /* the bundle is damaged, incomplete or of another format */
  AOT_ERROR_LAUNCH,    /* a call that cannot be launched: wrong arguments, a grid over the limits */
  AOT_ERROR_MISS,      /* no prebuilt variant serves the call; the text has every reason */
  AOT_ERROR_DRIVER,    /* the CUDA driver refused; driver_code is its CUresult */
  AOT_ERROR_MEMORY     /* the host is out of memory */
} aot_status;

/* What went wrong: place, found, wanted, what to do. The text is cut, and ends in "...", where it is
 * longer than the array. */
typedef struct aot_error {
  aot_status status;
  int driver_code;
  char text[AOT_ERROR_TEXT];
} aot_error;

/* An open bundle; owns its kernels. */
typedef struct aot_bundle aot_bundle;
/* One kernel of a bundle; valid until the bundle is closed. */
typedef struct aot_kernel aot_kernel;
/* A prepared call: selection and packing done once, launched many times; outlives its bundle. */
typedef struct aot_call aot_call;

/* A CUstream (or cudaStream_t); NULL is the device's default stream. */
typedef void *aot_stream;

/* Programs along each axis; an axis that the kernel does not use is 1. */
typedef struct aot_grid {
  int64_t x, y, z;
} aot_grid;

typedef enum aot_param_kind { AOT_PARAM_POINTER, AOT_PARAM_SCALAR, AOT_PARAM_CONSTEXPR } aot_param_kind;

typedef enum aot_arg_kind {
  AOT_ARG_DEFAULT = 0, /* left out: the kernel's default, or for a constexpr the variant's own value */
  AOT_ARG_POINTER,
  AOT_ARG_INT,
  AOT_ARG_UINT,
  AOT_ARG_FLOAT,
  AOT_ARG_BOOL,
  AOT_ARG_STRING, /* a constexpr's string */
  AOT_ARG_DTYPE,  /* a constexpr's dtype, by torch's name */
  AOT_ARG_NONE    /* a constexpr's None */
} aot_arg_kind;

/* One argument. Arguments without a name are the kernel's parameters in order; then come those with a
 * name: parameters, and the compile options that the call insists on (num_warps, num_stages, num_ctas,
 * maxnreg, enable_fp_fusion). Strings are read during the call and not kept. */
typedef struct aot_arg {
  aot_arg_kind kind;
  const char *name;
  union {
    uint64_t address;
    int64_t i64;
    uint64_t u64;
    double f64;
    int boolean;
    const char *text;
  } value;
  const char *dtype; /* of a pointer: torch's name of its elements' type, such as "float32" */
} aot_arg;

static inline aot_arg aot_arg_of(aot_arg_kind kind) {
  aot_arg arg;
  arg.kind = kind;
  arg.name = NULL;
  arg.value.u64 = 0;
  arg.dtype = NULL;
  return arg;
}
/* Device memory at `address` with elements of `dtype`. */
static inline aot_arg aot_pointer(uint64_t address, const char *dtype) {
  aot_arg arg = aot_arg_of(AOT_ARG_POINTER);
  arg.value.address = address;
  arg.dtype = dtype;
  return arg;
}
static inline aot_arg aot_int(int64_t value) {
  aot_arg arg = aot_arg_of(AOT_ARG_INT);
  arg.value.i64 = value;
  return arg;
}
static inline aot_arg aot_uint(uint64_t value) {
  aot_arg arg = aot_arg_of(AOT_ARG_UINT);
  arg.value.u64 = value;
  return arg;
}
static inline aot_arg aot_float(double value) {
  aot_arg arg = aot_arg_of(AOT_ARG_FLOAT);
  arg.value.f64 = value;
  return arg;
}
static inline aot_arg aot_bool(int value) {
  aot_arg arg = aot_arg_of(AOT_ARG_BOOL);
  arg.value.boolean = value != 0;
  return arg;
}
static inline aot_arg aot_string(const char *value) {
  aot_arg arg = aot_arg_of(AOT_ARG_STRING);
  arg.value.text = value;
  return arg;
}
static inline aot_arg aot_dtype(const char *name) {
  aot_arg arg = aot_arg_of(AOT_ARG_DTYPE);
  arg.value.text = name;
  return arg;
}
static inline aot_arg aot_none(void) { return aot_arg_of(AOT_ARG_NONE); }
static inline aot_arg aot_default(void) { return aot_arg_of(AOT_ARG_DEFAULT); }
/* `arg`, passed by name. */
static inline aot_arg aot_named(const char *name, aot_arg arg) {
  arg.name = name;
  return arg;
}

/* Open the bundle in directory `path`: read and check its manifest, open its packs. No driver is
 * touched. On success *bundle is the caller's, to be given to aot_bundle_close. */
aot_status aot_bundle_open(const char *path, aot_bundle **bundle, aot_error *error);
/* Close the files and free the bundle and its kernels; NULL is allowed. Prepared calls stay valid, and
 * loaded cubins stay loaded until the process ends: a captured graph may hold them. */
void aot_bundle_close(aot_bundle *bundle);

/* The names of the kernels and of the targets, in the manifest's order; NULL past the end. They are the
 * bundle's. */
size_t aot_bundle_kernel_count(const aot_bundle *bundle);
const char *aot_bundle_kernel_name(const aot_bundle *bundle, size_t index);
size_t aot_bundle_target_count(const aot_bundle *bundle);
const char *aot_bundle_target_name(const aot_bundle *bundle, size_t index);

/* Find a kernel by name. It is the bundle's. */
aot_status aot_bundle_kernel(aot_bundle *bundle, const char *name, aot_kernel **kernel, aot_error *error);

const char *aot_kernel_name(const aot_kernel *kernel);
size_t aot_kernel_param_count(const aot_kernel *kernel);
/* The name of parameter `index` and, where `kind` is not NULL, what it is; NULL past the end. */
const char *aot_kernel_param(const aot_kernel *kernel, size_t index, aot_param_kind *kind);

/* Choose the variant that serves the arguments on CUDA device `device`, load it where it is not loaded
 * yet, and queue it on `stream` of the device's primary context. `grid` NULL is the grid of the kernel's
 * spec; a grid with a 0 launches nothing. What the calling thread had as its current context it has
 * afterwards. A first load while `stream` is being captured is refused. */
aot_status aot_kernel_launch(aot_kernel *kernel, int device, aot_stream stream, const aot_grid *grid,
                             const aot_arg *args, size_t n_args, aot_error *error);

/* Do all of that but the launch. On success *call is the caller's, to be given to aot_call_free. */
aot_status aot_kernel_prepare(aot_kernel *kernel, int device, const aot_grid *grid, const aot_arg *args,
                              size_t n_args, aot_call **call, aot_error *error);

/* Queue a prepared call on `stream`, with the addresses of the kernel's pointer parameters in order, or
 * those that it was prepared with where `pointers` is NULL. An address must be a multiple of 16 bytes
 * where the chosen variant relies on it. Takes no lock; several threads may launch one call. */
aot_status aot_call_launch(const aot_call *call, aot_stream stream, const uint64_t *pointers,
                           size_t n_pointers, aot_error *error);
/* How many pointers aot_call_launch takes. */
size_t aot_call_pointer_count(const aot_call *call);
/* The variant that was chosen: its target, and the symbol in its cubin. */
const char *aot_call_target(const aot_call *call);
const char *aot_call_symbol(const aot_call *call);
/* Free a prepared call; NULL is allowed. What was launched goes on. */
void aot_call_free(aot_call *call);

#ifdef __cplusplus
}
#endif

#endif /* AOT_H */

#if defined(AOT_IMPLEMENTATION) && !defined(AOT_IMPLEMENTED)
#define AOT_IMPLEMENTED
#include "aot/base.h"
#include "aot/sha256.h"
#include "aot/inflate.h"
#include "aot/numbers.h"
#include "aot/json.h"
#include "aot/schema.h"
#include "aot/parse.h"
#include "aot/expr.h"
#include "aot/dtypes.h"
#include "aot/manifest.h"
#include "aot/checks.h"
#include "aot/table.h"
#include "aot/reader.h"
#include "aot/bundle.h"
#include "aot/packing.h"
#include "aot/select.h"
#include "aot/arguments.h"
#include "aot/driver.h"
#include "aot/launch.h"
#include "aot/miss.h"
#include "aot/calls.h"
#endif
