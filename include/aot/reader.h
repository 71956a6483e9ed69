/* A bundle on disk, read lazily, every byte checked before it is believed. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

struct aot_bundle {
  char *path;
  aot__manifest manifest;
  pthread_mutex_t lock; /* over the reading of tables */
};

/* Nothing in a sound bundle comes near these; they bound what a damaged one can cost. */
#define AOT__MAX_MANIFEST ((uint64_t)256 << 20)
#define AOT__MAX_TABLE ((uint64_t)128 << 20)
#define AOT__MAX_CUBIN ((uint64_t)128 << 20)

enum { AOT__WHERE = 1200 };

static bool aot__pread(int fd, void *data, uint64_t size, uint64_t offset, const char *where, aot_error *error) {
  uint64_t done = 0;
  while (done < size) {
    ssize_t more = pread(fd, (char *)data + done, (size_t)(size - done), (off_t)(offset + done));
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) {
      aot__fail(error, AOT_ERROR_BUNDLE, "%s: cannot be read (%s)", where, strerror(errno));
      return false;
    }
    if (!more) {
      aot__fail(error, AOT_ERROR_BUNDLE, "%s: found %llu bytes, wanted %llu; the file was cut", where,
                (unsigned long long)done, (unsigned long long)size);
      return false;
    }
    done += (uint64_t)more;
  }
  return true;
}

/* Open a regular file that is no symbolic link. Return its descriptor, or -1 with the error. */
static int aot__open_regular(const char *where, uint64_t *size, aot_error *error) {
  struct stat status;
  int fd = open(where, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    int reason = errno;
    bool link = lstat(where, &status) == 0 && S_ISLNK(status.st_mode);
    aot__fail(error, AOT_ERROR_BUNDLE, "%s: found %s, wanted a regular file of a bundle", where,
              link ? "a symbolic link" : reason == ENOENT ? "no such file or directory" : strerror(reason));
    return -1;
  }
  if (fstat(fd, &status) || !S_ISREG(status.st_mode)) {
    close(fd);
    aot__fail(error, AOT_ERROR_BUNDLE, "%s: wanted a regular file", where);
    return -1;
  }
  *size = (uint64_t)status.st_size;
  return fd;
}

static void aot__free_manifest(aot__manifest *manifest) {
  size_t i, k;
  for (i = 0; i < manifest->n_packs; i++)
    if (manifest->packs[i].fd >= 0) close(manifest->packs[i].fd);
  for (k = 0; k < manifest->n_kernels; k++)
    for (i = 0; i < manifest->kernels[k].n_tables; i++) {
      aot__drop(&manifest->kernels[k].tables[i].arena);
      AOT_FREE(manifest->kernels[k].tables[i].text);
    }
  aot__drop(&manifest->arena);
  AOT_FREE(manifest->text);
  memset(manifest, 0, sizeof *manifest);
}

static bool aot__load_manifest(const char *path, aot__manifest *manifest, aot_error *error) {
  char where[AOT__WHERE];
  uint64_t size;
  aot__arena nodes = {NULL};
  aot__source source;
  aot__json *root;
  bool sound;
  int fd;
  snprintf(where, sizeof where, "%s/manifest.json", path);
  fd = aot__open_regular(where, &size, error);
  if (fd < 0) return false;
  if (size > AOT__MAX_MANIFEST) {
    close(fd);
    aot__fail(error, AOT_ERROR_BUNDLE, "%s: found %llu bytes, wanted at most %llu", where, (unsigned long long)size,
              (unsigned long long)AOT__MAX_MANIFEST);
    return false;
  }
  manifest->text = (char *)AOT_CALLOC(1, (size_t)size + 1);
  sound = manifest->text && aot__pread(fd, manifest->text, size, 0, where, error);
  if (!manifest->text) aot__no_memory(error);
  close(fd);
  if (!sound) return false;
  root = aot__json_parse(manifest->text, (size_t)size, &nodes, where, error);
  source.where = where;
  source.arena = &manifest->arena;
  source.error = error;
  sound = root && aot__read_manifest(&source, root, manifest);
  aot__drop(&nodes);
  return sound;
}

static bool aot__open_packs(const char *path, aot__manifest *manifest, aot_error *error) {
  static const unsigned char header[16] = {'a', 'o', 't', 'p', 'a', 'c', 'k', 0, 1};
  size_t i, before;
  for (i = 0; i < manifest->n_packs; i++) {
    aot__pack *pack = manifest->packs + i;
    char where[AOT__WHERE];
    unsigned char found[16];
    uint64_t size;
    snprintf(where, sizeof where, "%s/%s", path, pack->file);
    pack->fd = aot__open_regular(where, &size, error);
    if (pack->fd < 0) return false;
    for (before = 0; before < i; before++)
      if (!strcmp(manifest->packs[before].target_name, pack->target_name)) {
        aot__fail(error, AOT_ERROR_BUNDLE, "%s/manifest.json: target %s has two packs", path, pack->target_name);
        return false;
      }
    if (size != pack->size) {
      aot__fail(error, AOT_ERROR_BUNDLE, "%s: found %llu bytes, wanted %llu; the file was cut or changed", where,
                (unsigned long long)size, (unsigned long long)pack->size);
      return false;
    }
    if (!aot__pread(pack->fd, found, sizeof found, 0, where, error)) return false;
    if (memcmp(found, header, sizeof header)) {
      aot__fail(error, AOT_ERROR_BUNDLE, "%s: the header is not that of a pack of version 1", where);
      return false;
    }
  }
  return true;
}

/* Read the manifest and open its packs. A builder that replaces the bundle meanwhile removes the packs of
 * the manifest that was read; then the new manifest is read instead. */
static bool aot__load(const char *path, aot__manifest *manifest, aot_error *error) {
  char digest[65] = "";
  for (;;) {
    aot_error found;
    aot__manifest again;
    bool sound;
    memset(&again, 0, sizeof again);
    sound = aot__load_manifest(path, &again, &found);
    if (sound && !strcmp(again.digest, digest)) {
      /* The same manifest a second time: `error` is what its packs failed with. */
      aot__free_manifest(&again);
      return false;
    }
    if (sound && aot__open_packs(path, &again, &found)) {
      *manifest = again;
      return true;
    }
    *error = found;
    if (sound) snprintf(digest, sizeof digest, "%s", again.digest);
    aot__free_manifest(&again);
    if (!sound || found.status == AOT_ERROR_MEMORY) return false;
  }
}

/* Return `size` bytes of a pack, decompressed to `raw_size` and one byte more, or NULL with the error. */
static char *aot__blob(const aot__pack *pack, uint64_t offset, uint64_t size, uint64_t raw_size, uint64_t limit,
                       bool compressed, const char *sha256, const char *where, aot_error *error) {
  char *stored, *raw, found[65];
  uint64_t largest = size > raw_size ? size : raw_size;
  if (largest > limit) {
    aot__fail(error, AOT_ERROR_BUNDLE, "%s: found %llu bytes, wanted at most %llu", where,
              (unsigned long long)largest, (unsigned long long)limit);
    return NULL;
  }
  /* What lies beyond the file is refused before memory is got for it. */
  if (offset > pack->size || size > pack->size - offset) {
    aot__fail(error, AOT_ERROR_BUNDLE, "%s: found %llu bytes, wanted %llu; the file was cut", where,
              (unsigned long long)(offset > pack->size ? 0 : pack->size - offset), (unsigned long long)size);
    return NULL;
  }
  stored = (char *)AOT_CALLOC(1, (size_t)size + 1);
  if (!stored) return aot__no_memory(error), (char *)NULL;
  if (!aot__pread(pack->fd, stored, size, offset, where, error)) {
    AOT_FREE(stored);
    return NULL;
  }
  raw = stored;
  if (compressed) {
    const char *fault;
    bool no_memory = true, sound = false;
    raw = (char *)AOT_CALLOC(1, (size_t)raw_size + 1);
    if (raw)
      sound = aot__inflate((const unsigned char *)stored, (size_t)size, (unsigned char *)raw, (size_t)raw_size,
                           &fault, &no_memory);
    AOT_FREE(stored);
    if (!sound) {
      AOT_FREE(raw);
      if (no_memory) aot__no_memory(error);
      else if (fault)
        aot__fail(error, AOT_ERROR_BUNDLE, "%s: does not decompress (%s); build the bundle again", where, fault);
      else
        aot__fail(error, AOT_ERROR_BUNDLE, "%s: does not decompress to %llu bytes; build the bundle again", where,
                  (unsigned long long)raw_size);
      return NULL;
    }
  } else if (size != raw_size) {
    AOT_FREE(stored);
    aot__fail(error, AOT_ERROR_BUNDLE, "%s: found %llu bytes, wanted %llu; build the bundle again", where,
              (unsigned long long)size, (unsigned long long)raw_size);
    return NULL;
  }
  aot__sha256_of(raw, (size_t)raw_size, found);
  if (strcmp(found, sha256)) {
    AOT_FREE(raw);
    aot__fail(error, AOT_ERROR_BUNDLE,
              "%s: found sha256 %s, wanted %s; the bundle is damaged, build it again", where, found, sha256);
    return NULL;
  }
  return raw;
}

/* Return a table's entries, read once and then kept, or NULL with the error. */
static const aot__entry *aot__table_entries(aot_bundle *bundle, aot__table *table, aot_error *error) {
  char where[AOT__WHERE];
  aot__arena nodes = {NULL};
  aot__source source;
  aot__json *root = NULL;
  aot__entry *entries = NULL;
  pthread_mutex_lock(&bundle->lock);
  if (!table->entries) {
    snprintf(where, sizeof where, "%s/%s, table at %llu", bundle->path, table->pack->file,
             (unsigned long long)table->offset);
    source.where = where;
    source.arena = &table->arena;
    source.error = error;
    table->text = aot__blob(table->pack, table->offset, table->size, table->raw_size, AOT__MAX_TABLE, true,
                            table->sha256, where, error);
    if (table->text) root = aot__json_parse(table->text, (size_t)table->raw_size, &nodes, where, error);
    if (root && aot__read_entries(&source, root, table, &entries)) {
      table->entries = entries;
    } else {
      aot__drop(&table->arena);
      AOT_FREE(table->text);
      table->text = NULL;
    }
    aot__drop(&nodes);
  }
  entries = table->entries;
  pthread_mutex_unlock(&bundle->lock);
  return entries;
}

/* Return the verified bytes of an entry's cubin, to be freed by the caller, or NULL with the error. */
static char *aot__cubin(const aot_bundle *bundle, const aot__entry *entry, aot_error *error) {
  const aot__pack *pack = entry->table->pack;
  char where[AOT__WHERE];
  snprintf(where, sizeof where, "%s/%s, cubin %.12s at %llu", bundle->path, pack->file, entry->sha256,
           (unsigned long long)entry->offset);
  return aot__blob(pack, entry->offset, entry->size, entry->raw_size, AOT__MAX_CUBIN, entry->compressed,
                   entry->sha256, where, error);
}
