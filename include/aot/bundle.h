/* Bundles and kernels: what the C API offers of them. */

aot_status aot_bundle_open(const char *path, aot_bundle **bundle, aot_error *error) {
  struct stat status;
  aot_bundle *made;
  aot_error ignored;
  size_t k;
  if (!error) error = &ignored;
  if (!bundle) return aot__fail(error, AOT_ERROR_USAGE, "aot_bundle_open: found no place for the bundle, wanted one");
  *bundle = NULL;
  if (!path || !*path)
    return aot__fail(error, AOT_ERROR_NO_BUNDLE,
                     "found an empty path, wanted a bundle (a directory with manifest.json)");
  if (strlen(path) > 1000)
    return aot__fail(error, AOT_ERROR_NO_BUNDLE, "%.60s...: found a path of %zu bytes, wanted at most 1000", path,
                     strlen(path));
  if (stat(path, &status) || !S_ISDIR(status.st_mode))
    return aot__fail(error, AOT_ERROR_NO_BUNDLE, "%s: found %s, wanted a bundle (a directory with manifest.json)",
                     path, stat(path, &status) ? "nothing" : "a file");
  made = (aot_bundle *)AOT_CALLOC(1, sizeof *made);
  if (!made) return aot__no_memory(error);
  made->path = (char *)AOT_CALLOC(1, strlen(path) + 1);
  if (!made->path) {
    AOT_FREE(made);
    return aot__no_memory(error);
  }
  memcpy(made->path, path, strlen(path));
  if (!aot__load(path, &made->manifest, error)) {
    AOT_FREE(made->path);
    AOT_FREE(made);
    return error->status;
  }
  pthread_mutex_init(&made->lock, NULL);
  for (k = 0; k < made->manifest.n_kernels; k++) made->manifest.kernels[k].bundle = made;
  *bundle = made;
  return AOT_OK;
}

void aot_bundle_close(aot_bundle *bundle) {
  if (!bundle) return;
  aot__free_manifest(&bundle->manifest);
  pthread_mutex_destroy(&bundle->lock);
  AOT_FREE(bundle->path);
  AOT_FREE(bundle);
}

size_t aot_bundle_kernel_count(const aot_bundle *bundle) { return bundle->manifest.n_kernels; }

const char *aot_bundle_kernel_name(const aot_bundle *bundle, size_t index) {
  return index < bundle->manifest.n_kernels ? bundle->manifest.kernels[index].name : NULL;
}

size_t aot_bundle_target_count(const aot_bundle *bundle) { return bundle->manifest.n_packs; }

const char *aot_bundle_target_name(const aot_bundle *bundle, size_t index) {
  return index < bundle->manifest.n_packs ? bundle->manifest.packs[index].target_name : NULL;
}

aot_status aot_bundle_kernel(aot_bundle *bundle, const char *name, aot_kernel **kernel, aot_error *error) {
  char known[1500];
  aot__text text = aot__text_of(known, sizeof known);
  size_t k;
  if (!bundle || !name || !kernel)
    return aot__fail(error, AOT_ERROR_USAGE,
                     "aot_bundle_kernel: found a null pointer, wanted bundle, name and kernel");
  *kernel = NULL;
  for (k = 0; k < bundle->manifest.n_kernels; k++) {
    if (!strcmp(bundle->manifest.kernels[k].name, name)) {
      *kernel = bundle->manifest.kernels + k;
      return AOT_OK;
    }
    aot__put(&text, "%s%s", k ? ", " : "", bundle->manifest.kernels[k].name);
  }
  return aot__fail(error, AOT_ERROR_USAGE, "%s: found no kernel '%.200s', wanted one of %s", bundle->path, name,
                   known);
}

const char *aot_kernel_name(const aot_kernel *kernel) { return kernel->name; }

size_t aot_kernel_param_count(const aot_kernel *kernel) { return kernel->n_params; }

const char *aot_kernel_param(const aot_kernel *kernel, size_t index, aot_param_kind *kind) {
  if (index >= kernel->n_params) return NULL;
  if (kind) *kind = (aot_param_kind)kernel->params[index].kind;
  return kernel->params[index].name;
}
