/* Errors, bounded text and memory: what every other part uses. */
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The one way in which memory is got, so that a program can bring its own; it must be zeroed. */
#ifndef AOT_CALLOC
#define AOT_CALLOC(count, size) calloc(count, size)
#define AOT_FREE(pointer) free(pointer)
#endif

/* Expressions over 64-bit values are worked out without overflow. */
__extension__ typedef __int128 aot__wide;
__extension__ typedef unsigned __int128 aot__uwide;

#define AOT__COUNT(array) (sizeof(array) / sizeof *(array))

/* Text that grows until its array is full, and then ends in "...". */
typedef struct aot__text {
  char *start;
  size_t size, used;
} aot__text;

static aot__text aot__text_of(char *start, size_t size) {
  aot__text text = {start, size, 0};
  start[0] = 0;
  return text;
}

#if defined(__GNUC__)
__attribute__((format(printf, 2, 0)))
#endif
static void aot__vput(aot__text *text, const char *format, va_list args) {
  size_t left = text->size - text->used;
  int wanted = vsnprintf(text->start + text->used, left, format, args);
  if (wanted < 0) return;
  if ((size_t)wanted < left) {
    text->used += (size_t)wanted;
    return;
  }
  text->used = text->size - 1;
  if (text->size >= 4) memcpy(text->start + text->size - 4, "...", 4);
}

/* Append to `text`, which may be NULL: then nobody wants to know. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void aot__put(aot__text *text, const char *format, ...) {
  va_list args;
  if (!text) return;
  va_start(args, format);
  aot__vput(text, format, args);
  va_end(args);
}

/* Bytes of the UTF-8 character at `at`, or 0 where it is none. */
static int aot__utf8(const unsigned char *at, const unsigned char *end) {
  static const unsigned lowest[5] = {0, 0, 0x80, 0x800, 0x10000};
  int n = at[0] < 0x80 ? 1 : at[0] >> 5 == 6 ? 2 : at[0] >> 4 == 14 ? 3 : at[0] >> 3 == 30 ? 4 : 0, i;
  unsigned code;
  if (n < 2) return n;
  if (end - at < n) return 0;
  code = at[0] & (0x7fu >> n);
  for (i = 1; i < n; i++) {
    if (at[i] >> 6 != 2) return 0;
    code = code << 6 | (at[i] & 63);
  }
  return code < lowest[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : n;
}

/* Put a question mark for every byte that is not UTF-8: a name of a damaged bundle, or half of a
 * character where a text was cut. */
static void aot__tidy(char *text) {
  const unsigned char *end = (const unsigned char *)text + strlen(text);
  while (*text) {
    int n = aot__utf8((const unsigned char *)text, end);
    if (!n) *text = '?';
    text += n ? n : 1;
  }
}

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static aot_status aot__fail(aot_error *error, aot_status status, const char *format, ...) {
  va_list args;
  aot__text text;
  if (!error) return status;
  text = aot__text_of(error->text, sizeof error->text);
  error->status = status;
  error->driver_code = 0;
  va_start(args, format);
  aot__vput(&text, format, args);
  va_end(args);
  aot__tidy(error->text);
  return status;
}

static aot_status aot__no_memory(aot_error *error) {
  return aot__fail(error, AOT_ERROR_MEMORY, "the host is out of memory; free some and call again");
}

/* Memory that is freed all at once. */
typedef struct aot__block {
  struct aot__block *next;
  size_t used, size;
} aot__block;

typedef struct aot__arena {
  aot__block *blocks;
} aot__arena;

/* Return `count` zeroed items of `size` bytes, or NULL. */
static void *aot__take(aot__arena *arena, size_t count, size_t size) {
  enum { HEAD = (sizeof(aot__block) + 15) / 16 * 16, USUAL = 1 << 16 };
  aot__block *block = arena->blocks;
  size_t bytes;
  if (count > ((size_t)1 << 40) / (size ? size : 1)) return NULL;
  bytes = (count * size + 15) / 16 * 16;
  if (!block || block->size - block->used < bytes) {
    /* A small arena stays small: blocks double up to the usual size. */
    size_t room = block ? block->size * 2 : 1024;
    if (room > USUAL) room = USUAL;
    if (room < bytes) room = bytes;
    block = (aot__block *)AOT_CALLOC(1, HEAD + room);
    if (!block) return NULL;
    block->size = room;
    block->next = arena->blocks;
    arena->blocks = block;
  }
  block->used += bytes;
  return (char *)block + HEAD + (block->used - bytes);
}

static void aot__drop(aot__arena *arena) {
  while (arena->blocks) {
    aot__block *next = arena->blocks->next;
    AOT_FREE(arena->blocks);
    arena->blocks = next;
  }
}

static char *aot__copy(aot__arena *arena, const char *text, size_t length) {
  char *copy = (char *)aot__take(arena, length + 1, 1);
  if (copy && length) memcpy(copy, text, length);
  return copy;
}
