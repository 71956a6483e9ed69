/* What a miss says: what was called, what there was, and why not. */

/* The call in words, its parameters in order. */
static void aot__put_request(aot__text *text, const aot_kernel *kernel, const aot__request *request) {
  size_t i, n = 0;
  for (i = 0; i < kernel->n_params; i++) {
    const aot__value *value = request->values + i;
    if (!value->known) continue;
    aot__put(text, "%s%s%s", n++ ? ", " : "", kernel->params[i].name, value->pointer ? ": " : " = ");
    if (value->pointer)
      aot__put(text, "%s%s", value->dtype ? value->dtype : "None", value->aligned ? "" : " not aligned to 16 bytes");
    else aot__put_const(text, &value->number);
  }
  for (i = 0; i < request->n_options; i++) {
    aot__put(text, "%s%s = ", n++ ? ", " : "", aot__option_names[request->options[i].which]);
    aot__put_const(text, &request->options[i].value);
  }
}

/* Why nothing serves the request: a line for each reason and target, the commonest first. */
static aot_status aot__miss(aot_kernel *kernel, const aot__request *request, const aot__device *device,
                            aot_error *error) {
  enum { MOST_REASONS = 20 };
  aot__trace trace;
  const aot__entry *entry;
  aot__text text;
  uint64_t *counts, total = 0;
  size_t i, j, n = 0, shown = 0;
  bool wrong_target = true;
  if (!error) return AOT_ERROR_MISS;
  memset(&trace, 0, sizeof trace);
  if (!aot__select(kernel, request, &entry, &trace, error)) {
    aot__drop(&trace.arena);
    return error->status;
  }
  counts = (uint64_t *)aot__take(&trace.arena, trace.count + 1, sizeof *counts);
  if (!counts || trace.no_memory) {
    aot__drop(&trace.arena);
    return aot__no_memory(error);
  }
  for (i = 0; i < trace.count; i++) {
    const aot__decision *decision = trace.decisions + i;
    uint64_t count = decision->entry ? 1 : decision->table->count;
    total += count;
    wrong_target = wrong_target && !decision->entry &&
                   aot__target_fault(decision->table->target, request->capability, NULL);
    for (j = 0; j < n; j++)
      if (trace.decisions[j].table->pack == decision->table->pack &&
          !strcmp(trace.decisions[j].reason, decision->reason))
        break;
    if (j == n) trace.decisions[n++] = *decision;
    counts[j] += count;
  }
  aot__fail(error, AOT_ERROR_MISS, "%s", "");
  text = aot__text_of(error->text, sizeof error->text);
  if (wrong_target) {
    aot__put(&text, "kernel '%s' is not built for this GPU: found %s, %s has it for", kernel->name, device->shown,
             kernel->bundle->path);
    for (i = 0, j = 0; i < kernel->n_tables; i++)
      if (!i || strcmp(kernel->order[i]->target_name, kernel->order[i - 1]->target_name))
        aot__put(&text, "%s%s", j++ ? ", " : " ", kernel->order[i]->target_name);
    aot__put(&text, "%s; build it with: aot build SPEC --target sm_%d -o DIR", j ? "" : " no target",
             device->capability);
  } else {
    aot__put(&text, "kernel '%s' has no variant for the call (", kernel->name);
    aot__put_request(&text, kernel, request);
    aot__put(&text, ") on %s\n%s has %llu of this kernel:", device->shown, kernel->bundle->path,
             (unsigned long long)total);
    for (; shown < n && shown < MOST_REASONS; shown++) {
      size_t best = 0;
      for (j = 1; j < n; j++)
        if (counts[j] > counts[best]) best = j;
      aot__put(&text, "\n  %llu of %s: %s", (unsigned long long)counts[best],
               trace.decisions[best].table->target_name, trace.decisions[best].reason);
      counts[best] = 0;
    }
    if (n > shown) aot__put(&text, "\n  ... and %zu other reasons", n - shown);
  }
  if (kernel->n_failed)
    aot__put(&text, "\n%zu more failed to compile when the bundle was built; the first: %.300s", kernel->n_failed,
             kernel->first_failure);
  if (!wrong_target)
    aot__put(&text, "\nto add it, write what the call has into the kernel's spec and build the bundle again");
  aot__tidy(error->text);
  aot__drop(&trace.arena);
  return AOT_ERROR_MISS;
}
