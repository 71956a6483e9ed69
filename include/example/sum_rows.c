/* Sum the rows of a matrix with a prebuilt kernel, without Python.
 *
 *     gcc -std=c11 -I include include/example/sum_rows.c -o sum_rows -ldl -lpthread
 *     ./sum_rows dist/reductions 1000 4096
 *
 * Prints one sum a line and exits with 1 where one is wrong. `--no-check` prints what is in memory, for
 * a driver that runs no kernels. The values are whole eighths, so that sums in fp64 are exact.
 *
 * A service has its memory and its stream from the CUDA headers. This file is to be compiled without
 * them, so it looks up the few driver functions that it needs.
 */
#define AOT_IMPLEMENTATION
#include "aot.h"

static int (*init)(unsigned);
static int (*device_get)(int *, int);
static int (*primary_context)(void **, int);
static int (*set_context)(void *);
static int (*memory_get)(uint64_t *, size_t);
static int (*memory_free)(uint64_t);
static int (*copy_to_device)(uint64_t, const void *, size_t);
static int (*copy_to_host)(void *, uint64_t, size_t);

static void check(int status, const char *what) {
  if (!status) return;
  fprintf(stderr, "sum_rows: %s failed with CUDA error %d\n", what, status);
  exit(1);
}

static void check_aot(aot_status status, const aot_error *error) {
  if (status == AOT_OK) return;
  fprintf(stderr, "sum_rows: %s\n", error->text);
  exit(1);
}

static void find_driver(void) {
  static const struct {
    const char *name;
    void *into;
  } functions[] = {{"cuInit", &init},
                   {"cuDeviceGet", &device_get},
                   {"cuDevicePrimaryCtxRetain", &primary_context},
                   {"cuCtxSetCurrent", &set_context},
                   {"cuMemAlloc", &memory_get},
                   {"cuMemFree", &memory_free},
                   {"cuMemcpyHtoD", &copy_to_device},
                   {"cuMemcpyDtoH", &copy_to_host}};
  int (*find)(const char *, void **, int, uint64_t, int *) = NULL;
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
  size_t i;
  if (!found) {
    fprintf(stderr, "sum_rows: found no CUDA driver, wanted libcuda.so.1 of CUDA 12.0 or newer\n");
    exit(1);
  }
  memcpy(&find, &found, sizeof find);
  for (i = 0; i < sizeof functions / sizeof *functions; i++) {
    check(find(functions[i].name, &found, 12000, 0, NULL), functions[i].name);
    memcpy(functions[i].into, &found, sizeof found);
  }
}

static uint64_t device_memory(size_t size) {
  uint64_t address = 0;
  check(memory_get(&address, size), "cuMemAlloc");
  return address;
}

/* The value at `index`: whole eighths between -62.5 and 62.5. */
static float value_at(int64_t index) { return (float)(index * 7919 % 1001 - 500) / 8; }

int main(int argc, char **argv) {
  int checked = argc < 5 || strcmp(argv[4], "--no-check") != 0;
  int64_t rows = argc > 2 ? atoll(argv[2]) : 0, cols = argc > 3 ? atoll(argv[3]) : 0, row, col;
  /* The kernel wants a multiple of 64 columns in a split, and at most 2**23; there is one split here. */
  int64_t split_cols = (cols + 63) / 64 * 64;
  size_t size;
  float *x, *sums;
  uint64_t pointers[4];
  int device, wrong = 0;
  void *context;
  aot_error error;
  aot_bundle *bundle;
  aot_kernel *kernel;
  aot_call *call;
  if (rows < 1 || cols < 1 || split_cols > 1 << 23 || rows > (1 << 30) / cols) {
    fprintf(stderr, "usage: sum_rows BUNDLE ROWS COLUMNS [--no-check], with at most 2**30 elements\n");
    return 2;
  }
  size = (size_t)(rows * cols) * sizeof *x;

  /* A bundle is opened without the driver, so a service can do it early. */
  check_aot(aot_bundle_open(argv[1], &bundle, &error), &error);
  check_aot(aot_bundle_kernel(bundle, "reduce_rows", &kernel, &error), &error);

  find_driver();
  check(init(0), "cuInit");
  check(device_get(&device, 0), "cuDeviceGet");
  check(primary_context(&context, device), "cuDevicePrimaryCtxRetain");
  check(set_context(context), "cuCtxSetCurrent");
  x = (float *)malloc(size);
  sums = (float *)malloc((size_t)rows * sizeof *sums);
  if (!x || !sums) {
    fprintf(stderr, "sum_rows: the host is out of memory\n");
    return 1;
  }
  for (row = 0; row < rows * cols; row++) x[row] = value_at(row);
  pointers[0] = device_memory(size);
  pointers[1] = device_memory((size_t)rows * sizeof *sums);
  /* Partial sums and a counter: memory that a launch of one split does not touch. */
  pointers[2] = device_memory(256);
  pointers[3] = device_memory(256);
  check(copy_to_device(pointers[0], x, size), "cuMemcpyHtoD");

  {
    /* The arguments of the Triton function, in its order. The block sizes are the variant's to decide. */
    aot_arg args[13];
    args[0] = aot_pointer(pointers[0], "float32");
    args[1] = aot_pointer(pointers[1], "float32");
    args[2] = aot_pointer(pointers[2], "float64");
    args[3] = aot_pointer(pointers[3], "int32");
    args[4] = aot_int(rows);
    args[5] = aot_int(cols);
    args[6] = aot_int(cols); /* row_stride */
    args[7] = aot_int(1);    /* n_splits */
    args[8] = aot_int(split_cols);
    args[9] = aot_float(1.0); /* divisor */
    args[10] = aot_named("OP", aot_string("sum"));
    args[11] = aot_named("DTYPE", aot_string("float32"));
    args[12] = aot_named("OUT_DTYPE", aot_string("float32"));
    /* One launch, chosen and packed there and then, on the grid of the kernel's spec ... */
    check_aot(aot_kernel_launch(kernel, 0, NULL, NULL, args, 13, &error), &error);
    /* ... and what a service does: prepare once, launch many times. */
    check_aot(aot_kernel_prepare(kernel, 0, NULL, args, 13, &call, &error), &error);
  }
  /* A prepared call needs the bundle no longer. */
  aot_bundle_close(bundle);
  check_aot(aot_call_launch(call, NULL, pointers, 4, &error), &error);

  check(copy_to_host(sums, pointers[1], (size_t)rows * sizeof *sums), "cuMemcpyDtoH");
  for (row = 0; row < rows; row++) {
    double sum = 0;
    for (col = 0; col < cols; col++) sum += (double)x[row * cols + col];
    if (checked && sums[row] != (float)sum && wrong++ < 10)
      fprintf(stderr, "sum_rows: row %lld is %.9g, wanted %.9g\n", (long long)row, (double)sums[row], sum);
    printf("%.9g\n", (double)sums[row]);
  }
  fprintf(stderr, "%s of %s: %lld rows of %lld, %d wrong\n", aot_call_symbol(call), aot_call_target(call),
          (long long)rows, (long long)cols, wrong);
  aot_call_free(call);
  for (row = 0; row < 4; row++) check(memory_free(pointers[row]), "cuMemFree");
  free(x);
  free(sums);
  return wrong ? 1 : 0;
}
