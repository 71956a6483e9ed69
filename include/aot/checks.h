/* A manifest as a whole: its parts against each other, and against its digest. */

static int aot__by_name(const void *a, const void *b) {
  return strcmp((*(const aot_kernel *const *)a)->name, (*(const aot_kernel *const *)b)->name);
}

static int aot__by_number(uint64_t a, uint64_t b) { return a < b ? -1 : a > b; }

static int aot__by_table(const void *first, const void *second) {
  const aot__table *a = *(const aot__table *const *)first, *b = *(const aot__table *const *)second;
  int order = aot__by_number(a->offset, b->offset);
  size_t i;
  if (!order) order = strcmp(a->target_name, b->target_name);
  if (!order) order = aot__by_number(a->size, b->size);
  if (!order) order = aot__by_number(a->raw_size, b->raw_size);
  if (!order) order = aot__by_number(a->count, b->count);
  if (!order) order = strcmp(a->sha256, b->sha256);
  if (!order) order = aot__by_number(a->n_types, b->n_types);
  for (i = 0; !order && i < a->n_types; i++) order = strcmp(a->types[i], b->types[i]);
  return order;
}

/* The tables of a kernel in the order in which selection reads them: targets by capability, the largest
 * first, a specific one before a plain one; else as the manifest has them. */
static void aot__order_tables(aot_kernel *kernel) {
  size_t i, j;
  for (i = 0; i < kernel->n_tables; i++) {
    aot__table *table = kernel->tables + i;
    int rank = table->target.capability * 2 + table->target.specific;
    for (j = i; j; j--) {
      const aot__target *before = &kernel->order[j - 1]->target;
      if (before->capability * 2 + before->specific >= rank) break;
      kernel->order[j] = kernel->order[j - 1];
    }
    kernel->order[j] = table;
  }
}

/* Is anything listed twice? */
static bool aot__check_unique(const aot__source *source, const aot__manifest *manifest, size_t n_tables) {
  size_t i, k, n = 0;
  const aot_kernel **kernels = (const aot_kernel **)aot__array(source, manifest->n_kernels, sizeof *kernels);
  const aot__table **tables = (const aot__table **)aot__array(source, n_tables, sizeof *tables);
  if (!kernels || !tables) return false;
  for (k = 0; k < manifest->n_kernels; k++) {
    kernels[k] = manifest->kernels + k;
    for (i = 0; i < kernels[k]->n_tables; i++) tables[n++] = kernels[k]->tables + i;
  }
  qsort(kernels, manifest->n_kernels, sizeof *kernels, aot__by_name);
  qsort(tables, n_tables, sizeof *tables, aot__by_table);
  for (i = 1; i < manifest->n_kernels; i++)
    if (!aot__by_name(kernels + i - 1, kernels + i)) {
      aot__fail(source->error, AOT_ERROR_BUNDLE, "%s: the same kernel is listed twice", source->where);
      return false;
    }
  for (i = 1; i < n_tables; i++)
    if (!aot__by_table(tables + i - 1, tables + i)) {
      aot__fail(source->error, AOT_ERROR_BUNDLE, "%s: the same table is listed twice", source->where);
      return false;
    }
  return true;
}

/* Compare the parts of a manifest with each other. */
static bool aot__check_manifest(const aot__source *source, aot__manifest *manifest, size_t n_missing) {
  uint64_t counted = 0;
  size_t i, k, p, n_tables = 0;
  for (k = 0; k < manifest->n_kernels; k++) {
    n_tables += manifest->kernels[k].n_tables;
    for (i = 0; i < manifest->kernels[k].n_tables; i++) counted += manifest->kernels[k].tables[i].count;
  }
  if (!aot__check_unique(source, manifest, n_tables)) return false;
  if (counted != manifest->variants) {
    aot__fail(source->error, AOT_ERROR_BUNDLE,
              "%s: its tables hold %llu variants, wanted %llu; build the bundle again", source->where,
              (unsigned long long)counted, (unsigned long long)manifest->variants);
    return false;
  }
  if (!counted && !n_missing) {
    aot__fail(source->error, AOT_ERROR_BUNDLE, "%s: the bundle is empty; build it again", source->where);
    return false;
  }
  for (p = 0; p < manifest->n_packs; p++) {
    aot__pack *pack = manifest->packs + p;
    if (!aot__target_of(pack->target_name, &pack->target)) {
      char known[400];
      aot__text text = aot__text_of(known, sizeof known);
      aot__put_targets(&text);
      aot__fail(source->error, AOT_ERROR_BUNDLE, "%s: found target '%.60s', wanted one of %s; upgrade aot-kernels",
                source->where, pack->target_name, known);
      return false;
    }
  }
  for (k = 0; k < manifest->n_kernels; k++) {
    aot_kernel *kernel = manifest->kernels + k;
    for (i = 0; i < kernel->n_tables; i++) {
      aot__table *table = kernel->tables + i;
      for (p = 0; p < manifest->n_packs; p++)
        if (!strcmp(manifest->packs[p].target_name, table->target_name)) break;
      if (p == manifest->n_packs) {
        aot__fail(source->error, AOT_ERROR_BUNDLE, "%s: kernel %s is built for %s, which has no pack", source->where,
                  kernel->name, table->target_name);
        return false;
      }
      table->pack = manifest->packs + p;
      table->target = table->pack->target;
    }
    aot__order_tables(kernel);
  }
  return true;
}

/* Read a manifest from its tree, whose digest must be what it says. */
static bool aot__read_manifest(const aot__source *source, aot__json *root, aot__manifest *manifest) {
  static const char *const names[] = {"format", "format_version", "launch_abi", "digest", "provenance",
                                      "variants", "packs", "kernels", "missing"};
  aot__json *f[9], *node;
  aot__sha256 sha;
  char digest[65];
  if (!aot__read_header(source, root) || !aot__fields(source, root, names, 8, 9, f) ||
      !aot__string(source, f[3], &manifest->digest) || !aot__read_provenance(source, f[4], manifest) ||
      !aot__size(source, f[5], 0, &manifest->variants) || !aot__read_packs(source, f[6], manifest) ||
      !aot__typed(source, f[7], AOT__ARRAY))
    return false;
  manifest->kernels = (aot_kernel *)aot__array(source, f[7]->count, sizeof *manifest->kernels);
  if (!manifest->kernels) return false;
  for (node = f[7]->child; node; node = node->next)
    if (!aot__read_kernel(source, node, manifest->kernels + manifest->n_kernels++)) return false;
  if (f[8] ? !aot__read_missing(source, f[8], manifest) : !aot__put_default(source, root, "missing", AOT__ARRAY))
    return false;
  f[3]->text = "";
  aot__sha256_start(&sha);
  aot__hash_json(&sha, root);
  aot__sha256_hex(&sha, digest);
  if (strcmp(digest, manifest->digest)) {
    aot__fail(source->error, AOT_ERROR_BUNDLE,
              "%s: found contents of digest %s, wanted %.64s; the manifest was changed after it was written, "
              "build the bundle again",
              source->where, digest, manifest->digest);
    return false;
  }
  return aot__check_manifest(source, manifest, f[8] ? f[8]->count : 0);
}
