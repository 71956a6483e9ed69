/* A call's arguments to plain data: which value is which parameter, and what each is. */

/* A bound call; `options` has room for one of each. */
typedef struct aot__bound_call {
  aot__arena arena;
  aot__value *values;
  aot__option options[AOT__N_OPTIONS];
  aot__request request;
} aot__bound_call;

/* The options as a call names them, in the order of aot__option_names. */
static const char *const aot__option_keywords[] = {"num_warps", "num_stages", "num_ctas", "enable_fp_fusion",
                                                   "maxnreg"};

static void aot__const_of_arg(const aot_arg *arg, aot__const *value) {
  memset(value, 0, sizeof *value);
  value->kind = arg->kind;
  switch (arg->kind) {
    case AOT_ARG_INT:
      value->negative = arg->value.i64 < 0;
      value->magnitude = value->negative ? 0 - (uint64_t)arg->value.i64 : (uint64_t)arg->value.i64;
      break;
    case AOT_ARG_UINT:
      value->kind = AOT_ARG_INT;
      value->magnitude = arg->value.u64;
      break;
    case AOT_ARG_BOOL: value->magnitude = arg->value.boolean != 0; break;
    case AOT_ARG_FLOAT: value->number = arg->value.f64; break;
    case AOT_ARG_STRING:
    case AOT_ARG_DTYPE: value->text = arg->value.text; break;
    default: break;
  }
}

static const char *aot__arg_name(aot_arg_kind kind) {
  static const char *const names[] = {"no value",  "a pointer", "an integer", "an integer", "a float",
                                      "a bool", "a string",  "a dtype",    "None"};
  return (unsigned)kind < AOT__COUNT(names) ? names[kind] : "an argument of no known kind";
}

static bool aot__read_value(const aot_kernel *kernel, const aot__param *param, const aot_arg *arg,
                            aot__value *value, aot_error *error) {
  static const char *const wanted[] = {"a pointer", "a number",
                                       "a constexpr: a bool, int, float, string, dtype or None"};
  bool number = arg->kind >= AOT_ARG_INT && arg->kind <= AOT_ARG_BOOL;
  bool text = arg->kind == AOT_ARG_STRING || arg->kind == AOT_ARG_DTYPE;
  bool fine = param->kind == AOT_PARAM_POINTER  ? arg->kind == AOT_ARG_POINTER
              : param->kind == AOT_PARAM_SCALAR ? number
                                                : number || text || arg->kind == AOT_ARG_NONE;
  if (fine && text && !arg->value.text) fine = false;
  if (!fine) {
    aot__fail(error, AOT_ERROR_LAUNCH, "kernel '%s': %s: found %s, wanted %s", kernel->name, param->name,
              aot__arg_name(arg->kind), wanted[param->kind]);
    return false;
  }
  if (param->kind == AOT_PARAM_POINTER && !arg->dtype) {
    aot__fail(error, AOT_ERROR_LAUNCH,
              "kernel '%s': %s: found an address alone, and it says no dtype; wanted the dtype too", kernel->name,
              param->name);
    return false;
  }
  value->known = true;
  value->pointer = param->kind == AOT_PARAM_POINTER;
  if (value->pointer) {
    value->address = arg->value.address;
    value->dtype = arg->dtype;
    value->aligned = arg->value.address % 16 == 0;
  } else {
    aot__const_of_arg(arg, &value->number);
  }
  return true;
}

static bool aot__read_option(const aot_kernel *kernel, const aot_arg *arg, aot__bound_call *call, aot_error *error) {
  char names[600];
  aot__text text = aot__text_of(names, sizeof names);
  aot__request *request = &call->request;
  size_t i, which;
  for (which = 0; which < AOT__N_OPTIONS && strcmp(aot__option_keywords[which], arg->name); which++) continue;
  if (which == AOT__N_OPTIONS) {
    for (i = 0; i < kernel->n_params; i++) aot__put(&text, "%s%s", i ? ", " : "", kernel->params[i].name);
    aot__fail(error, AOT_ERROR_LAUNCH,
              "kernel '%s': found argument '%.200s', wanted one of %s or an option (num_warps, num_stages, num_ctas, "
              "maxnreg, enable_fp_fusion)",
              kernel->name, arg->name, names);
    return false;
  }
  for (i = 0; i < request->n_options; i++)
    if (call->options[i].which == which) {
      aot__fail(error, AOT_ERROR_LAUNCH, "kernel '%s': %s was given twice", kernel->name, arg->name);
      return false;
    }
  if (arg->kind != AOT_ARG_INT && arg->kind != AOT_ARG_UINT && arg->kind != AOT_ARG_BOOL &&
      arg->kind != AOT_ARG_NONE) {
    aot__fail(error, AOT_ERROR_LAUNCH, "kernel '%s': %s: found %s, wanted an integer", kernel->name, arg->name,
              aot__arg_name(arg->kind));
    return false;
  }
  call->options[request->n_options].which = (unsigned)which;
  aot__const_of_arg(arg, &call->options[request->n_options++].value);
  return true;
}

/* Fill in the request's names: what an expression can use. */
static bool aot__bind_names(const aot_kernel *kernel, aot__bound_call *call, aot_error *error) {
  aot__request *request = &call->request;
  size_t i;
  request->values = call->values;
  request->options = call->options;
  request->n_names = 0;
  request->names = (aot__binding *)aot__take(&call->arena, kernel->n_params + 1, sizeof *request->names);
  if (!request->names) return aot__no_memory(error), false;
  for (i = 0; i < kernel->n_params; i++) {
    const aot__value *value = call->values + i;
    aot__binding *name = request->names + request->n_names;
    if (kernel->params[i].kind == AOT_PARAM_CONSTEXPR || !value->known || value->pointer ||
        value->number.kind == AOT_ARG_FLOAT || value->number.large)
      continue;
    name->name = kernel->params[i].name;
    name->value = value->number.negative ? -(aot__wide)value->number.magnitude : (aot__wide)value->number.magnitude;
    request->n_names++;
  }
  return true;
}

/* Bind arguments to parameters. Free the call with aot__drop(&call->arena), whatever is returned. */
static bool aot__bind(const aot_kernel *kernel, const aot_arg *args, size_t n_args, aot__bound_call *call,
                      aot_error *error) {
  size_t i, p, n_positional = 0;
  bool *given;
  memset(call, 0, sizeof *call);
  if (n_args && !args) {
    aot__fail(error, AOT_ERROR_USAGE, "kernel '%s': found no arguments, wanted %zu", kernel->name, n_args);
    return false;
  }
  call->values = (aot__value *)aot__take(&call->arena, kernel->n_params + 1, sizeof *call->values);
  given = (bool *)aot__take(&call->arena, kernel->n_params + 1, sizeof *given);
  if (!call->values || !given) return aot__no_memory(error), false;
  while (n_positional < n_args && !args[n_positional].name) n_positional++;
  if (n_positional > kernel->n_params) {
    aot__fail(error, AOT_ERROR_LAUNCH, "kernel '%s': found %zu positional arguments, wanted at most %zu",
              kernel->name, n_positional, kernel->n_params);
    return false;
  }
  for (i = 0; i < n_args; i++) {
    p = i;
    if (i >= n_positional) {
      if (!args[i].name) {
        aot__fail(error, AOT_ERROR_LAUNCH, "kernel '%s': argument %zu has no name and stands behind one that has",
                  kernel->name, i);
        return false;
      }
      for (p = 0; p < kernel->n_params && strcmp(kernel->params[p].name, args[i].name); p++) continue;
      if (p == kernel->n_params) {
        if (args[i].kind != AOT_ARG_DEFAULT && !aot__read_option(kernel, args + i, call, error)) return false;
        continue;
      }
    }
    if (args[i].kind == AOT_ARG_DEFAULT) continue;
    if (given[p]) {
      aot__fail(error, AOT_ERROR_LAUNCH, "kernel '%s': %s was given twice", kernel->name, kernel->params[p].name);
      return false;
    }
    given[p] = true;
    if (!aot__read_value(kernel, kernel->params + p, args + i, call->values + p, error)) return false;
  }
  for (p = 0; p < kernel->n_params; p++) {
    const aot__param *param = kernel->params + p;
    aot__value *value = call->values + p;
    bool number = param->value.kind >= AOT_ARG_INT && param->value.kind <= AOT_ARG_BOOL;
    if (value->known || (param->kind == AOT_PARAM_CONSTEXPR && !param->has_default)) continue;
    if (!param->has_default || param->kind == AOT_PARAM_POINTER || (param->kind == AOT_PARAM_SCALAR && !number)) {
      aot__fail(error, AOT_ERROR_LAUNCH, "kernel '%s': %s: found no value, wanted %s", kernel->name, param->name,
                param->kind == AOT_PARAM_POINTER ? "a pointer" : "a number");
      return false;
    }
    value->known = true;
    value->number = param->value;
  }
  return aot__bind_names(kernel, call, error);
}
