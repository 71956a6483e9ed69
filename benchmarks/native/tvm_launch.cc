// The kernels of benchmarks/kernels as tvm-ffi functions: tensors and numbers in, cuLaunchKernel out.
//
// Each function takes what the kernel takes, without the constexprs, and launches on the stream that
// tvm-ffi says is current. Like the bare loop it checks nothing, so it is as fast as tvm-ffi allows.
#include <dlfcn.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdint>

namespace {

using tvm::ffi::TensorView;
using LaunchFn = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                         void**);

struct Kernel {
  void* function;
  unsigned grid[3];
  unsigned block;
  unsigned shared;
};

Kernel kernels[3];
LaunchFn launch_kernel;

void Launch(const Kernel& kernel, const TensorView& on, void** params) {
  DLDevice device = on.device();
  void* stream = TVMFFIEnvGetStream(device.device_type, device.device_id);
  int status = launch_kernel(kernel.function, kernel.grid[0], kernel.grid[1], kernel.grid[2], kernel.block, 1, 1,
                             kernel.shared, stream, params, nullptr);
  if (status != 0) TVM_FFI_THROW(RuntimeError) << "cuLaunchKernel failed with " << status;
}

void SetKernel(int64_t which, int64_t function, int64_t x, int64_t y, int64_t z, int64_t block, int64_t shared) {
  if (launch_kernel == nullptr) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    launch_kernel = driver ? reinterpret_cast<LaunchFn>(dlsym(driver, "cuLaunchKernel")) : nullptr;
    if (launch_kernel == nullptr) TVM_FFI_THROW(RuntimeError) << "found no cuLaunchKernel in libcuda.so.1";
  }
  kernels[which] = Kernel{reinterpret_cast<void*>(function),
                          {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)},
                          static_cast<unsigned>(block),
                          static_cast<unsigned>(shared)};
}

// The two null pointers at each end are the compiler's hidden scratch parameters.
void SumRows(TensorView x, TensorView out, int32_t n_cols) {
  void* pointers[] = {x.data_ptr(), out.data_ptr(), nullptr};
  void* params[] = {&pointers[0], &pointers[1], &n_cols, &pointers[2], &pointers[2]};
  Launch(kernels[0], x, params);
}

void RmsNorm(TensorView x, TensorView residual, TensorView weight, TensorView out, int32_t row_stride,
             int32_t n_cols, double eps) {
  float eps32 = static_cast<float>(eps);
  void* pointers[] = {x.data_ptr(), residual.data_ptr(), weight.data_ptr(), out.data_ptr(), nullptr};
  void* params[] = {&pointers[0], &pointers[1], &pointers[2], &pointers[3], &row_stride,
                    &n_cols,      &eps32,       &pointers[4], &pointers[4]};
  Launch(kernels[1], x, params);
}

void AddProducts(TensorView a, TensorView b, TensorView c, TensorView d, TensorView out, int32_t first_row,
                 int32_t first_col, int32_t n_rows, int32_t n_cols, int32_t a_stride, int32_t b_stride,
                 int32_t c_stride, int32_t d_stride, int32_t out_stride) {
  void* pointers[] = {a.data_ptr(), b.data_ptr(), c.data_ptr(), d.data_ptr(), out.data_ptr(), nullptr};
  void* params[] = {&pointers[0], &pointers[1], &pointers[2], &pointers[3], &pointers[4], &first_row,
                    &first_col,   &n_rows,      &n_cols,      &a_stride,    &b_stride,    &c_stride,
                    &d_stride,    &out_stride,  &pointers[5], &pointers[5]};
  Launch(kernels[2], a, params);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(set_kernel, SetKernel);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(sum_rows, SumRows);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm, RmsNorm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_products, AddProducts);
