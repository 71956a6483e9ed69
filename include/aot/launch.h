/* What a launch needs, worked out once: the grid, the parameters' bytes, the scratch memory. */

typedef struct aot__slot {
  uint32_t offset;
  bool aligned; /* the variant relies on an address of a multiple of 16 */
} aot__slot;

struct aot_call {
  const aot__device *device;
  void *function;
  unsigned grid[3], block, shared, num_ctas;
  bool empty; /* the grid has a 0: nothing is launched */
  uint64_t scratch, scratch_align;
  uint32_t scratch_offset;
  size_t n_params, n_pointers, size;
  uint32_t *offsets;   /* of every parameter */
  aot__slot *pointers; /* where the kernel's pointers go, in order */
  unsigned char *bytes; /* the parameters as they were prepared */
  const char *what, *target, *symbol, **names;
};

/* What a kernel's parameters may need at most, and what a launch has on its stack. */
enum { AOT__MAX_BYTES = 32764, AOT__MAX_PARAMS = 4096, AOT__STACK_BYTES = 1024, AOT__STACK_PARAMS = 128 };
/* The driver aligns what it allocates at least this well. */
enum { AOT__ALLOCATION_ALIGN = 256 };

/* Three sizes within the limits; num_ctas blocks of a program lie along x and count against its limit. */
static bool aot__check_grid(const aot_kernel *kernel, const aot__wide *sizes, uint64_t num_ctas, unsigned *grid,
                            aot_error *error) {
  int i;
  for (i = 0; i < 3; i++) {
    aot__wide most = i ? aot__max_grid[i] : aot__max_grid[i] / (aot__wide)num_ctas;
    char found[60];
    aot__text text = aot__text_of(found, sizeof found);
    aot__put_wide(&text, sizes[i] < 0, (aot__uwide)(sizes[i] < 0 ? -sizes[i] : sizes[i]));
    if (sizes[i] < 0) {
      aot__fail(error, AOT_ERROR_LAUNCH, "kernel '%s': found grid %c = %s, wanted 0 or more", kernel->name, "xyz"[i],
                found);
      return false;
    }
    if (sizes[i] > most) {
      aot__fail(error, AOT_ERROR_LAUNCH, "kernel '%s': found grid %c = %s, wanted at most %lld; %s", kernel->name,
                "xyz"[i], found, (long long)most, i ? "put the longest axis on x" : "let each program do more");
      return false;
    }
    grid[i] = (unsigned)sizes[i];
  }
  return true;
}

/* Evaluate the grid that the kernel's spec gives. */
static bool aot__spec_grid(const aot_kernel *kernel, const aot__entry *entry, const aot__request *request,
                           aot__arena *arena, aot__wide *sizes, aot_error *error) {
  aot__binding *names;
  size_t i, n = 0;
  char fault[600];
  aot__text text = aot__text_of(fault, sizeof fault);
  if (!kernel->n_grid) {
    aot__fail(error, AOT_ERROR_LAUNCH, "kernel '%s' has no grid in its spec; pass one", kernel->name);
    return false;
  }
  names = (aot__binding *)aot__take(arena, entry->n_axes + kernel->n_params + request->n_names + 1, sizeof *names);
  if (!names) return aot__no_memory(error), false;
  for (i = 0; i < entry->n_axes + kernel->n_params; i++) {
    bool axis = i < entry->n_axes;
    const aot__const *value = axis ? &entry->axes[i].value : &entry->args[i - entry->n_axes].value;
    if (!axis && entry->args[i - entry->n_axes].kind != AOT_PARAM_CONSTEXPR) continue;
    if ((value->kind != AOT_ARG_INT && value->kind != AOT_ARG_BOOL) || value->large) continue;
    names[n].name = axis ? entry->axes[i].name : kernel->params[i - entry->n_axes].name;
    names[n++].value = value->negative ? -(aot__wide)value->magnitude : (aot__wide)value->magnitude;
  }
  for (i = 0; i < request->n_names; i++) names[n++] = request->names[i];
  sizes[0] = sizes[1] = sizes[2] = 1;
  for (i = 0; i < kernel->n_grid; i++)
    if (!aot__evaluate(kernel->grid[i], names, n, &sizes[i], &text)) {
      aot__fail(error, AOT_ERROR_LAUNCH, "kernel '%s': its spec's grid has no value: %s", kernel->name, fault);
      return false;
    }
  return true;
}

static aot_status aot__inconsistent(const aot_kernel *kernel, const aot__entry *entry, const char *found,
                                    const char *wanted, aot_error *error) {
  return aot__fail(error, AOT_ERROR_BUNDLE,
                   "%s: kernel '%s', %s of %s: found %s, wanted %s; the bundle is inconsistent, build it again",
                   kernel->bundle->path, kernel->name, entry->symbol, entry->table->target_name, found, wanted);
}

/* Is the parameter one that the cubin has? */
static bool aot__launched(const aot__arg *arg) {
  return arg->kind == AOT_PARAM_POINTER || (arg->kind == AOT_PARAM_SCALAR && arg->claim != 1);
}

/* Compare the variant's parameters with the cubin's own records: a launch would read the wrong bytes. */
static bool aot__check_layout(const aot_kernel *kernel, const aot__entry *entry, aot_error *error) {
  char found[1200], wanted[1200];
  aot__text recorded = aot__text_of(found, sizeof found), needed = aot__text_of(wanted, sizeof wanted);
  uint64_t end = 0;
  size_t i, n = 0;
  bool same = entry->n_params <= AOT__MAX_PARAMS;
  for (i = 0; i < kernel->n_params + entry->hidden; i++) {
    unsigned size = 8;
    if (i < kernel->n_params && !aot__launched(entry->args + i)) continue;
    if (i < kernel->n_params && entry->args[i].kind == AOT_PARAM_SCALAR) size = entry->args[i].scalar->size;
    aot__put(&needed, "%s%u", n ? ", " : "", size);
    same = same && n < entry->n_params && entry->param_sizes[n] == size;
    n++;
  }
  for (i = 0; i < entry->n_params && i < AOT__MAX_PARAMS; i++)
    aot__put(&recorded, "%s%llu", i ? ", " : "", (unsigned long long)entry->param_sizes[i]);
  aot__put(&recorded, entry->n_params ? "" : "no");
  aot__put(&needed, n ? " bytes" : "no bytes");
  if (!same || n != entry->n_params) {
    aot__put(&recorded, " bytes in the cubin");
    char both[1300];
    snprintf(both, sizeof both, "parameters of %s", found);
    aot__inconsistent(kernel, entry, both, wanted, error);
    return false;
  }
  for (i = 0; i < n; i++) {
    if (entry->param_offsets[i] < end || entry->param_offsets[i] > AOT__MAX_BYTES - 8) {
      snprintf(found, sizeof found, "a parameter at offset %llu behind one that ends at %llu",
               (unsigned long long)entry->param_offsets[i], (unsigned long long)end);
      aot__inconsistent(kernel, entry, found, "one behind the other, in 32764 bytes", error);
      return false;
    }
    end = entry->param_offsets[i] + entry->param_sizes[i];
  }
  if (entry->options[AOT__NUM_WARPS].magnitude > 1024 || entry->options[AOT__NUM_CTAS].magnitude > 1024) {
    aot__inconsistent(kernel, entry, "more warps or blocks of a cluster", "at most 1024 of each", error);
    return false;
  }
  return true;
}

/* Make a call of what is known; its function is still to be got. */
static aot_call *aot__make_call(const aot_kernel *kernel, const aot__entry *entry, const aot__device *device,
                                const aot__bound_call *bound, const unsigned *grid, aot_error *error) {
  size_t n = entry->n_params, size = n ? (size_t)(entry->param_offsets[n - 1] + entry->param_sizes[n - 1]) : 0;
  size_t i, p = 0, n_pointers = 0, what_size = strlen(kernel->name) + strlen(device->shown) + 80;
  size_t target_size = strlen(entry->table->target_name) + 1, symbol_size = strlen(entry->symbol) + 1;
  size_t names_size = 0;
  uint64_t programs, scratch = 0;
  aot_call *call;
  char *at;
  size = (size + 7) / 8 * 8;
  for (i = 0; i < kernel->n_params; i++)
    if (kernel->params[i].kind == AOT_PARAM_POINTER) {
      n_pointers++;
      names_size += strlen(kernel->params[i].name) + 1;
    }
  /* One allocation: what needs the strictest alignment comes first. */
  call = (aot_call *)AOT_CALLOC(
      1, sizeof *call + size + n_pointers * (sizeof *call->names + sizeof *call->pointers) +
             n * sizeof *call->offsets + what_size + target_size + symbol_size + names_size);
  if (!call) return aot__no_memory(error), (aot_call *)NULL;
  call->bytes = (unsigned char *)(call + 1);
  call->names = (const char **)(void *)(call->bytes + size);
  call->pointers = (aot__slot *)(void *)(call->names + n_pointers);
  call->offsets = (uint32_t *)(void *)(call->pointers + n_pointers);
  at = (char *)(call->offsets + n);
  snprintf(at, what_size, "kernel '%s' of target %s on %s", kernel->name, entry->table->target_name, device->shown);
  call->what = at;
  at += what_size;
  call->target = (const char *)memcpy(at, entry->table->target_name, target_size);
  at += target_size;
  call->symbol = (const char *)memcpy(at, entry->symbol, symbol_size);
  at += symbol_size;
  call->device = device;
  memcpy(call->grid, grid, sizeof call->grid);
  call->empty = !grid[0] || !grid[1] || !grid[2];
  call->block = (unsigned)entry->options[AOT__NUM_WARPS].magnitude * 32;
  call->num_ctas = (unsigned)entry->options[AOT__NUM_CTAS].magnitude;
  call->shared = (unsigned)entry->shared;
  call->n_params = n;
  call->size = size;
  for (i = 0; i < n; i++) call->offsets[i] = (uint32_t)entry->param_offsets[i];
  for (i = 0; i < kernel->n_params; i++) {
    const aot__value *value = bound->values + i;
    if (!aot__launched(entry->args + i)) continue;
    if (value->pointer) {
      size_t length = strlen(kernel->params[i].name) + 1;
      memcpy(call->bytes + call->offsets[p], &value->address, 8);
      call->names[call->n_pointers] = (const char *)memcpy(at, kernel->params[i].name, length);
      at += length;
      call->pointers[call->n_pointers].offset = call->offsets[p];
      call->pointers[call->n_pointers++].aligned = entry->args[i].align == 16;
    } else {
      unsigned char bytes[8];
      aot__pack_scalar(entry->args[i].scalar, &value->number, bytes);
      memcpy(call->bytes + call->offsets[p], bytes, entry->args[i].scalar->size);
    }
    p++;
  }
  if (!entry->scratch || !entry->hidden || call->empty) return call;
  /* The global scratch of every block; the profile's pointer stays null, as in Triton. */
  programs = (uint64_t)grid[0] * grid[1];
  call->scratch_align = entry->scratch_align;
  if (__builtin_mul_overflow(programs, (uint64_t)grid[2] * call->num_ctas, &programs) ||
      __builtin_mul_overflow(programs, entry->scratch, &scratch) ||
      __builtin_add_overflow(scratch, entry->scratch_align, &scratch)) {
    aot__fail(error, AOT_ERROR_LAUNCH, "%s: the scratch of its grid has more than 2**64 bytes; launch a smaller grid",
              call->what);
    AOT_FREE(call);
    return NULL;
  }
  call->scratch = entry->scratch_align > AOT__ALLOCATION_ALIGN ? scratch : scratch - entry->scratch_align;
  call->scratch_offset = call->offsets[n - (size_t)entry->hidden];
  return call;
}
