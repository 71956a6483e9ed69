/* Which variant serves a call: the first that nothing speaks against. aot/loader/select.py is the same. */

/* A compile option that the call insists on. */
typedef struct aot__option {
  unsigned which;
  aot__const value;
} aot__option;

/* One call as plain data. `values` has one for each parameter of the kernel. */
typedef struct aot__request {
  const aot__value *values;
  const aot__option *options;
  size_t n_options;
  int capability;
  uint64_t max_shared;
  aot__binding *names; /* the integers among the scalars, for expressions */
  size_t n_names;
} aot__request;

/* One step: `entry` was chosen or rejected; entry NULL stands for a table that was passed over unread. */
typedef struct aot__decision {
  const aot__table *table;
  const aot__entry *entry;
  const char *reason; /* empty where it was chosen */
} aot__decision;

/* Gets every decision of a selection. */
typedef struct aot__trace {
  aot__arena arena;
  aot__decision *decisions;
  size_t count, room;
  bool no_memory;
} aot__trace;

static void aot__trace_add(aot__trace *trace, const aot__table *table, const aot__entry *entry, const char *reason) {
  if (trace->count == trace->room) {
    size_t room = trace->room ? trace->room * 2 : 64;
    aot__decision *more = (aot__decision *)aot__take(&trace->arena, room, sizeof *more);
    if (!more) {
      trace->no_memory = true;
      return;
    }
    if (trace->count) memcpy(more, trace->decisions, trace->count * sizeof *more);
    trace->decisions = more;
    trace->room = room;
  }
  trace->decisions[trace->count].table = table;
  trace->decisions[trace->count].entry = entry;
  trace->decisions[trace->count].reason = aot__copy(&trace->arena, reason, strlen(reason));
  if (!trace->decisions[trace->count].reason) trace->no_memory = true;
  else trace->count++;
}

static bool aot__pointer_fault(const char *name, const aot__arg *arg, const aot__value *value, aot__text *reason) {
  if (!value->pointer) {
    aot__put(reason, "%s is a tensor, the call has ", name);
    if (reason) aot__put_const(reason, &value->number);
    return true;
  }
  if (value->dtype && strcmp(value->dtype, arg->type)) {
    aot__put(reason, "%s is %s, the call has %s", name, arg->type, value->dtype);
    return true;
  }
  if (arg->align != 16 || value->aligned) return false;
  aot__put(reason, "%s is not aligned to 16 bytes", name);
  return true;
}

static bool aot__number_fault(const char *name, const aot__arg *arg, const aot__value *value, aot__text *reason) {
  bool one = arg->claim == 1;
  if (value->pointer) {
    aot__put(reason, "%s is a number, the call has a tensor", name);
    return true;
  }
  if (aot__scalar_fault(name, arg->scalar, &value->number, reason)) return true;
  if (!arg->claim || (one ? aot__is_one(&value->number) : aot__sixteen(&value->number))) return false;
  if (reason) {
    aot__put(reason, "%s = ", name);
    aot__put_const(reason, &value->number);
    aot__put(reason, one ? " is not 1" : " is not a multiple of 16");
  }
  return true;
}

static bool aot__constexpr_fault(const char *name, const aot__arg *arg, const aot__value *value, aot__text *reason) {
  if (aot__same_const(&arg->value, &value->number)) return false;
  if (reason) {
    aot__put(reason, "%s is ", name);
    aot__put_const(reason, &arg->value);
    aot__put(reason, ", the call has ");
    aot__put_const(reason, &value->number);
  }
  return true;
}

static bool aot__bound_fault(const aot__bound *bound, const aot__request *request, aot__text *reason) {
  char fault[600];
  aot__text text = aot__text_of(fault, sizeof fault);
  aot__wide value;
  if (!aot__all_bound(bound->of, request->names, request->n_names)) return false;
  if (!aot__evaluate(bound->of, request->names, request->n_names, &value, reason ? &text : NULL)) {
    aot__put(reason, "the bucket's extent has no value: %s", fault);
    return true;
  }
  if (value <= bound->max) return false;
  if (reason) {
    aot__put(reason, "%s = ", bound->text);
    aot__put_wide(reason, value < 0, (aot__uwide)(value < 0 ? -value : value));
    aot__put(reason, " is over the bucket's bound ");
    aot__put_wide(reason, bound->max < 0, (aot__uwide)(bound->max < 0 ? -bound->max : bound->max));
  }
  return true;
}

/* Options are equal as numbers: False is 0. None is only itself. */
static bool aot__option_fault(const aot__entry *entry, const aot__option *option, aot__text *reason) {
  const aot__const *found = entry->options + option->which, *wanted = &option->value;
  bool none = found->kind == AOT_ARG_NONE || wanted->kind == AOT_ARG_NONE;
  if (none ? found->kind == wanted->kind
           : !found->large && found->negative == wanted->negative && found->magnitude == wanted->magnitude)
    return false;
  if (reason) {
    aot__put(reason, "%s is ", aot__option_names[option->which]);
    aot__put_const(reason, found);
    aot__put(reason, ", the call has ");
    aot__put_const(reason, wanted);
  }
  return true;
}

/* Does something speak against an entry? Say the gravest reason in `reason`, which may be NULL. */
static bool aot__entry_fault(const aot__entry *entry, const aot__request *request, aot__text *reason) {
  const aot_kernel *kernel = entry->table->kernel;
  size_t i;
  if (aot__target_fault(entry->table->target, request->capability, reason)) return true;
  if (entry->shared > request->max_shared) {
    aot__put(reason, "it needs %llu bytes of shared memory, the device allows %llu",
             (unsigned long long)entry->shared, (unsigned long long)request->max_shared);
    return true;
  }
  for (i = 0; i < kernel->n_params; i++) {
    const aot__arg *arg = entry->args + i;
    const aot__value *value = request->values + i;
    const char *name = kernel->params[i].name;
    if (!value->known) continue;
    if (arg->kind == AOT_PARAM_CONSTEXPR ? aot__constexpr_fault(name, arg, value, reason)
        : arg->kind == AOT_PARAM_POINTER ? aot__pointer_fault(name, arg, value, reason)
                                         : aot__number_fault(name, arg, value, reason))
      return true;
  }
  for (i = 0; i < entry->n_bounds; i++)
    if (aot__bound_fault(entry->bounds + i, request, reason)) return true;
  for (i = 0; i < request->n_options; i++)
    if (aot__option_fault(entry, request->options + i, reason)) return true;
  return false;
}

/* Does the table's target or one of its dtypes speak against all its entries? */
static bool aot__table_fault(const aot__table *table, const aot__request *request, aot__text *reason) {
  const aot_kernel *kernel = table->kernel;
  size_t i, pointer = 0;
  if (aot__target_fault(table->target, request->capability, reason)) return true;
  for (i = 0; i < kernel->n_params; i++) {
    const aot__value *value = request->values + i;
    if (kernel->params[i].kind != AOT_PARAM_POINTER) continue;
    if (pointer == table->n_types) return false;
    if (value->known && value->pointer && value->dtype && strcmp(value->dtype, table->types[pointer])) {
      aot__put(reason, "%s is %s, the call has %s", kernel->params[i].name, table->types[pointer], value->dtype);
      return true;
    }
    pointer++;
  }
  return false;
}

/* Choose: the device's best target first, then in the order of the tables. *entry is NULL where nothing
 * serves. `trace` may be NULL. Return false where a table cannot be read. */
static bool aot__select(aot_kernel *kernel, const aot__request *request, const aot__entry **entry,
                        aot__trace *trace, aot_error *error) {
  char reason[2000];
  aot__text text, *wanted = trace ? &text : NULL;
  size_t i;
  uint64_t e;
  *entry = NULL;
  for (i = 0; i < kernel->n_tables; i++) {
    aot__table *table = kernel->order[i];
    const aot__entry *entries;
    text = aot__text_of(reason, sizeof reason);
    if (aot__table_fault(table, request, wanted)) {
      if (trace) aot__trace_add(trace, table, NULL, reason);
      continue;
    }
    entries = aot__table_entries(kernel->bundle, table, error);
    if (!entries) return false;
    for (e = 0; e < table->count; e++) {
      bool fault;
      text = aot__text_of(reason, sizeof reason);
      fault = aot__entry_fault(entries + e, request, wanted);
      if (trace) aot__trace_add(trace, table, entries + e, fault ? reason : "");
      if (fault) continue;
      *entry = entries + e;
      return true;
    }
  }
  return true;
}
