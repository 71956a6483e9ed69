/* Prepared calls and launches: what the C API offers of them. */

/* All of a launch but the launch. `stream` is as in aot__function. */
static aot_status aot__prepare(aot_kernel *kernel, int index, const aot_stream *stream, const aot_grid *given,
                               aot__bound_call *bound, aot_call **call, aot_error *error) {
  const aot__device *device;
  const aot__entry *entry;
  aot__wide sizes[3] = {1, 1, 1};
  unsigned grid[3];
  bool pushed, left;
  if (given) {
    sizes[0] = given->x;
    sizes[1] = given->y;
    sizes[2] = given->z;
    if (!aot__check_grid(kernel, sizes, 1, grid, error)) return error->status;
  }
  device = aot__get_device(index, error);
  if (!device) return error->status;
  bound->request.capability = device->capability;
  bound->request.max_shared = device->max_shared;
  if (!aot__select(kernel, &bound->request, &entry, NULL, error)) return error->status;
  if (!entry) return aot__miss(kernel, &bound->request, device, error);
  if ((!given && !aot__spec_grid(kernel, entry, &bound->request, &bound->arena, sizes, error)) ||
      !aot__check_grid(kernel, sizes, entry->options[AOT__NUM_CTAS].magnitude, grid, error) ||
      !aot__check_layout(kernel, entry, error))
    return error->status;
  *call = aot__make_call(kernel, entry, device, bound, grid, error);
  if (!*call) return error->status;
  if ((*call)->empty) return AOT_OK;
  if (aot__enter(device, &pushed, error)) {
    (*call)->function = aot__function(kernel->bundle, entry, device, stream, (*call)->what, error);
    left = aot__leave(device, pushed, error);
    if ((*call)->function && left) return AOT_OK;
  }
  AOT_FREE(*call);
  *call = NULL;
  return error->status;
}

/* Queue a call with the parameters at `bytes`. The context is current. */
static bool aot__queue(const aot_call *call, aot_stream stream, void **params, aot_error *error) {
  aot__launch_attribute attributes[2];
  aot__launch_config config;
  if (call->num_ctas == 1)
    return !aot__refused(aot__driver.cuLaunchKernel(call->function, call->grid[0], call->grid[1], call->grid[2],
                                                    call->block, 1, 1, call->shared, stream, params, NULL),
                         "cuLaunchKernel", call->what, NULL, error);
  /* The blocks of a program are a cluster along x, as Triton's own launcher puts them. */
  memset(attributes, 0, sizeof attributes);
  attributes[0].id = AOT__CLUSTER_DIMENSION;
  attributes[0].value.cluster.x = call->num_ctas;
  attributes[0].value.cluster.y = attributes[0].value.cluster.z = 1;
  attributes[1].id = AOT__CLUSTER_POLICY;
  attributes[1].value.policy = AOT__POLICY_SPREAD;
  memset(&config, 0, sizeof config);
  config.grid[0] = call->grid[0] * call->num_ctas;
  config.grid[1] = call->grid[1];
  config.grid[2] = call->grid[2];
  config.block[0] = call->block;
  config.block[1] = config.block[2] = 1;
  config.shared = call->shared;
  config.stream = stream;
  config.attributes = attributes;
  config.n_attributes = 2;
  return !aot__refused(aot__driver.cuLaunchKernelEx(&config, call->function, params, NULL), "cuLaunchKernelEx",
                       call->what, NULL, error);
}

/* Queue a call with parameters at `bytes`, which the driver copies, and with its scratch memory. */
static bool aot__run(const aot_call *call, aot_stream stream, unsigned char *bytes, void **params, aot_error *error) {
  uint64_t memory = 0, scratch;
  bool pushed, done, freed = true;
  size_t i;
  for (i = 0; i < call->n_params; i++) params[i] = bytes + call->offsets[i];
  if (!aot__enter(call->device, &pushed, error)) return false;
  done = !call->scratch || !aot__refused(aot__driver.cuMemAllocAsync(&memory, (size_t)call->scratch, stream),
                                         "cuMemAllocAsync", call->what, NULL, error);
  if (done && call->scratch) {
    scratch = (memory + call->scratch_align - 1) / call->scratch_align * call->scratch_align;
    memcpy(bytes + call->scratch_offset, &scratch, 8);
  }
  done = done && aot__queue(call, stream, params, error);
  if (memory)
    freed = !aot__refused(aot__driver.cuMemFreeAsync(memory, stream), "cuMemFreeAsync", call->what, NULL,
                          done ? error : NULL);
  return aot__leave(call->device, pushed, done && freed ? error : NULL) && done && freed;
}

aot_status aot_call_launch(const aot_call *call, aot_stream stream, const uint64_t *pointers, size_t n_pointers,
                           aot_error *error) {
  uint64_t stack[AOT__STACK_BYTES / 8];
  void *stack_params[AOT__STACK_PARAMS], *memory = NULL, **params = stack_params;
  unsigned char *bytes = (unsigned char *)stack;
  aot_error ignored;
  size_t i;
  bool done;
  if (!error) error = &ignored;
  if (!call) return aot__fail(error, AOT_ERROR_USAGE, "aot_call_launch: found a null pointer, wanted a call");
  if (pointers && n_pointers != call->n_pointers)
    return aot__fail(error, AOT_ERROR_LAUNCH, "%s: found %zu pointers, wanted %zu", call->what, n_pointers,
                     call->n_pointers);
  for (i = 0; pointers && i < n_pointers; i++)
    if (call->pointers[i].aligned && pointers[i] % 16)
      return aot__fail(error, AOT_ERROR_LAUNCH,
                       "%s: %s is not aligned to 16 bytes, and the call was prepared with an address that was; "
                       "prepare one for such addresses",
                       call->what, call->names[i]);
  if (call->empty) return AOT_OK;
  if (!aot__same_process(error)) return error->status;
  if (call->size > sizeof stack || call->n_params > AOT__STACK_PARAMS) {
    memory = AOT_CALLOC(1, call->size + call->n_params * sizeof *params);
    if (!memory) return aot__no_memory(error);
    bytes = (unsigned char *)memory;
    params = (void **)(void *)(bytes + call->size);
  }
  memcpy(bytes, call->bytes, call->size);
  for (i = 0; pointers && i < n_pointers; i++) memcpy(bytes + call->pointers[i].offset, pointers + i, 8);
  done = aot__run(call, stream, bytes, params, error);
  AOT_FREE(memory);
  return done ? AOT_OK : error->status;
}

aot_status aot_kernel_prepare(aot_kernel *kernel, int device, const aot_grid *grid, const aot_arg *args,
                              size_t n_args, aot_call **call, aot_error *error) {
  aot__bound_call bound;
  aot_error ignored;
  aot_status status;
  if (!error) error = &ignored;
  if (!kernel || !call)
    return aot__fail(error, AOT_ERROR_USAGE, "aot_kernel_prepare: found a null pointer, wanted kernel and call");
  *call = NULL;
  status = aot__bind(kernel, args, n_args, &bound, error)
               ? aot__prepare(kernel, device, NULL, grid, &bound, call, error)
               : error->status;
  aot__drop(&bound.arena);
  return status;
}

aot_status aot_kernel_launch(aot_kernel *kernel, int device, aot_stream stream, const aot_grid *grid,
                             const aot_arg *args, size_t n_args, aot_error *error) {
  aot__bound_call bound;
  aot_error ignored;
  aot_call *call = NULL;
  aot_status status;
  unsigned sizes[3];
  if (!error) error = &ignored;
  if (!kernel) return aot__fail(error, AOT_ERROR_USAGE, "aot_kernel_launch: found a null pointer, wanted a kernel");
  if (!aot__bind(kernel, args, n_args, &bound, error)) {
    status = error->status;
  } else {
    aot__wide wide[3] = {grid ? grid->x : 1, grid ? grid->y : 1, grid ? grid->z : 1};
    status = AOT_OK;
    if (!aot__check_grid(kernel, wide, 1, sizes, error)) status = error->status;
    /* An empty grid asks the driver for nothing. */
    else if (sizes[0] && sizes[1] && sizes[2])
      status = aot__prepare(kernel, device, &stream, grid, &bound, &call, error);
  }
  aot__drop(&bound.arena);
  if (status != AOT_OK || !call) return status;
  status = aot_call_launch(call, stream, NULL, 0, error);
  aot_call_free(call);
  return status;
}

size_t aot_call_pointer_count(const aot_call *call) { return call->n_pointers; }

const char *aot_call_target(const aot_call *call) { return call->target; }

const char *aot_call_symbol(const aot_call *call) { return call->symbol; }

void aot_call_free(aot_call *call) { AOT_FREE(call); }
